"""A tensor with two shapes."""

from pathlib import Path

import forge

REFUSED = ("name 'shape' twice",)


def build(folder: Path) -> Path:
    return forge.file(
        folder, '{"a": {"dtype": "U8", "shape": [4], "shape": [2, 2], "data_offsets": [0, 4]}}', 4
    )
