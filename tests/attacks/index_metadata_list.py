"""Metadata that is a list."""

from pathlib import Path

import forge

REFUSED = ("metadata is [1]",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, b'{"metadata": [1], "weight_map": {"a": "a"}}')
