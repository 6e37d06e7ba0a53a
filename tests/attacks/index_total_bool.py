"""A total that is true."""

from pathlib import Path

import forge

REFUSED = ("True as total_size",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "a.safetensors"}, total_size=True))
