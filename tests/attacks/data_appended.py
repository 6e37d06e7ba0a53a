"""Bytes after the last tensor: a second file in the first."""

from pathlib import Path

import forge

REFUSED = ("9 bytes follow the last tensor",)


def build(folder: Path) -> Path:
    return forge.write(folder / "model.safetensors", forge.shard("a") + bytes(9))
