"""A configuration that is a list."""

from pathlib import Path

import forge

REFUSED = ("config.json is a list", "object")


def build(folder: Path) -> Path:
    forge.write(folder / "config.json", b"[]")
    return forge.write(folder / "model.safetensors", forge.shard("a"))
