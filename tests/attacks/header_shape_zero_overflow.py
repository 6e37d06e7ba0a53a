"""A zero beside sizes that overflow before it is reached."""

from pathlib import Path

import forge

REFUSED = ("int64",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(shape=(1 << 62, 1 << 62, 0), end=0)})
