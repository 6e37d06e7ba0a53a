"""A tensor with a fourth field, whose meaning no reader knows."""

from pathlib import Path

import forge

REFUSED = ("exactly dtype, shape and data_offsets",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor() | {"strides": [1]}}, 4)
