"""A folder in the place of a file."""

from pathlib import Path

import forge

REFUSED = ("is a folder",)


def build(folder: Path) -> Path:
    (folder / "model.safetensors").mkdir()
    return forge.checkpoint(folder, {"a": "model.safetensors"}, {})
