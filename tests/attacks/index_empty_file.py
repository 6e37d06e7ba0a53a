"""An index of no bytes."""

from pathlib import Path

import forge

REFUSED = ("is empty",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, b"")
