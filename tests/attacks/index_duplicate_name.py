"""A tensor placed in two files."""

from pathlib import Path

import forge

REFUSED = ("name 'a' twice",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, b'{"weight_map": {"a": "1", "a": "2"}}')
