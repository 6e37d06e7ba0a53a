"""Three 4-bit values: a byte and a half."""

from pathlib import Path

import forge

REFUSED = ("12 bits", "no whole number of bytes")


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor("F4", (3,), end=2)}, 2)
