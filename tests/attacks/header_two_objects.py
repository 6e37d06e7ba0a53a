"""A second object within the header, which a lenient reader would not see."""

from pathlib import Path

import forge

REFUSED = ("header is not JSON",)


def build(folder: Path) -> Path:
    return forge.file(folder, "{}{}")
