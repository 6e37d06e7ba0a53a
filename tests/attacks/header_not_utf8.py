"""A header with a byte that UTF-8 doesn't have."""

from pathlib import Path

import forge

REFUSED = ("header is not UTF-8", "0xff")


def build(folder: Path) -> Path:
    return forge.file(folder, b'{"\xff": 0}')
