"""A total that is a string."""

from pathlib import Path

import forge

REFUSED = ("'8' as total_size",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "a.safetensors"}, total_size="8"))
