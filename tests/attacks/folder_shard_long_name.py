"""A file whose name no file can have."""

from pathlib import Path

import forge

REFUSED = ("lacks 1 of the 1 files",)


def build(folder: Path) -> Path:
    return forge.checkpoint(folder, {"a": "a" * 5000 + ".safetensors"}, {})
