"""A dtype that the format doesn't have."""

from pathlib import Path

import forge

REFUSED = ("dtype 'F4096'", "BF16")


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor("F4096")}, 4)
