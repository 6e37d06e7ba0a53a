"""A size of -0, which some readers take for 0 and others for no integer."""

from pathlib import Path

import forge

REFUSED = ("shape [-0.0]",)


def build(folder: Path) -> Path:
    return forge.file(folder, '{"a": {"dtype": "U8", "shape": [-0], "data_offsets": [0, 0]}}')
