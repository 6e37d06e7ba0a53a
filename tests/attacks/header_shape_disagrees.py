"""A shape larger than the tensor's bytes: a count that the file can't hold."""

from pathlib import Path

import forge

REFUSED = ("tensor 'a'", "4 bytes by its data_offsets", "8,000 by its shape")


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(shape=(1000, 2), dtype="F32")}, 4)
