"""A name with half a surrogate pair, which can't be printed."""

from pathlib import Path

import forge

REFUSED = ("surrogate pair",)


def build(folder: Path) -> Path:
    return forge.file(folder, '{"__metadata__": {"\\ud800": ""}}')
