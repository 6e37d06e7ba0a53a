"""A number that reads as infinity."""

from pathlib import Path

import forge

REFUSED = ("1e999",)


def build(folder: Path) -> Path:
    return forge.file(folder, '{"a": 1e999}')
