"""A weight_map that is a list."""

from pathlib import Path

import forge

REFUSED = ("weight_map is [",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index([["a", "model.safetensors"]]))
