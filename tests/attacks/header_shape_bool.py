"""True for 1, which Python takes for an integer."""

from pathlib import Path

import forge

REFUSED = ("shape [True]",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(shape=[True], end=1)}, 1)
