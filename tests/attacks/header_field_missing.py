"""A tensor without a shape."""

from pathlib import Path

import forge

REFUSED = ("exactly dtype, shape and data_offsets",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": {"dtype": "U8", "data_offsets": [0, 0]}})
