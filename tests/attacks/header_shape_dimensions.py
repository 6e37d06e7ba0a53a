"""A shape of a million dimensions."""

from pathlib import Path

import forge

REFUSED = ("1,000,000 dimensions; 64",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(shape=[1] * 10**6, end=1)}, 1)
