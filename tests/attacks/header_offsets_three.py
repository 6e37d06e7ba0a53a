"""Three offsets where two are due."""

from pathlib import Path

import forge

REFUSED = ("data_offsets [0, 4, 8]",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 8]}}, 4)
