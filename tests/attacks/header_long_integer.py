"""An integer of 100,000 digits, slow to read in full."""

from pathlib import Path

import forge

REFUSED = ("integer of 100,000 digits",)


def build(folder: Path) -> Path:
    return forge.file(
        folder,
        '{"a": {"dtype": "U8", "shape": [' + "9" * 100_000 + '], "data_offsets": [0, 4]}}',
        4,
    )
