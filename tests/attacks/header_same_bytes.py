"""A thousand tensors over the same bytes."""

from pathlib import Path

import forge

REFUSED = ("overlap",)


def build(folder: Path) -> Path:
    return forge.file(folder, {f"{n}": forge.tensor() for n in range(1000)}, 4)
