"""A header of no bytes."""

from pathlib import Path

import forge

REFUSED = ("header begins with",)


def build(folder: Path) -> Path:
    return forge.file(folder, "", 4)
