"""A shape whose product is 4 once it wraps at 64 bits."""

from pathlib import Path

import forge

REFUSED = ("shape [4, 4611686018427387905]", "int64")


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(shape=(4, (1 << 62) + 1))}, 4)
