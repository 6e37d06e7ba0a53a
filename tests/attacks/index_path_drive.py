"""A path with a drive."""

from pathlib import Path

import forge

REFUSED = ("not a plain file name",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "C:/model.safetensors"}))
