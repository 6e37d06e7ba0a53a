"""A length one above what the format allows, which a reader would allocate."""

from pathlib import Path

import forge

REFUSED = ("100,000,001 bytes", "allows 100,000,000")


def build(folder: Path) -> Path:
    return forge.file(folder, {}, length=100_000_001)
