"""Two tensors that share bytes: one file counted twice."""

from pathlib import Path

import forge

REFUSED = ("'a' and 'b' overlap", "ends at 4", "begins at 2")


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(), "b": forge.tensor(begin=2, end=6)}, 6)
