"""A configuration in UTF-16."""

from pathlib import Path

import forge

REFUSED = ("not UTF-8",)


def build(folder: Path) -> Path:
    forge.write(folder / "config.json", "{}".encode("utf-16"))
    return forge.write(folder / "model.safetensors", forge.shard("a"))
