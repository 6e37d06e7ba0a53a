"""Two negative sizes, whose product is positive."""

from pathlib import Path

import forge

REFUSED = ("shape [-2, -2]",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(shape=(-2, -2))}, 4)
