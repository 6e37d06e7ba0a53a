"""A tensor that is a number."""

from pathlib import Path

import forge

REFUSED = ("tensor 'a' is 4",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": 4})
