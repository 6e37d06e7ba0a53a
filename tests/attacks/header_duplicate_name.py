"""Two tensors of one name: readers differ in which they take."""

from pathlib import Path

import forge

REFUSED = ("name 'a' twice",)


def build(folder: Path) -> Path:
    return forge.file(
        folder,
        '{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},'
        ' "a": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}',
        8,
    )
