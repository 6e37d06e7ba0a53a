"""A name that C reads as another."""

from pathlib import Path

import forge

REFUSED = ("not a plain file name",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "model.bin\0.safetensors"}))
