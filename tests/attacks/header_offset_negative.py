"""A tensor that begins before the data section, in the header."""

from pathlib import Path

import forge

REFUSED = ("tensor 'a'", "data_offsets [-4, 0]")


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(begin=-4, end=0)})
