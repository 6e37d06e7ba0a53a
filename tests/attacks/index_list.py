"""An index that is a list."""

from pathlib import Path

import forge

REFUSED = ("is a list",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, b"[]")
