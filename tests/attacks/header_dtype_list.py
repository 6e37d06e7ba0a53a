"""A dtype that is a list."""

from pathlib import Path

import forge

REFUSED = ("dtype ['U8']",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor() | {"dtype": ["U8"]}}, 4)
