"""A total with a fraction."""

from pathlib import Path

import forge

REFUSED = ("1.5 as total_size",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "a.safetensors"}, total_size=1.5))
