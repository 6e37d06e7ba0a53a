"""A name of a million letters, in a message."""

from pathlib import Path

import forge

REFUSED = ("aaa...aaa",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a" * 10**6: forge.tensor(end=5)})
