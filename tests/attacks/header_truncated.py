"""A download that broke off within the header."""

from pathlib import Path

import forge

REFUSED = ("truncated", "bytes are missing")


def build(folder: Path) -> Path:
    return forge.write(folder / "model.safetensors", forge.shard("a", "b")[:40])
