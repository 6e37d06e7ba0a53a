"""A path that leaves the folder on Windows."""

from pathlib import Path

import forge

REFUSED = ("not a plain file name",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "..\\model.safetensors"}))
