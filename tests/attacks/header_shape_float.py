"""A size with a fraction point."""

from pathlib import Path

import forge

REFUSED = ("shape [4.0]",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(shape=[4.0])}, 4)
