"""A tensor that ends before it begins."""

from pathlib import Path

import forge

REFUSED = ("data_offsets [4, 0]",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(begin=4, end=0)}, 4)
