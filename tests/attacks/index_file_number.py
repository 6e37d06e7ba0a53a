"""A tensor placed in a number."""

from pathlib import Path

import forge

REFUSED = ("tensor 'a' in 1", "not a string")


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": 1}))
