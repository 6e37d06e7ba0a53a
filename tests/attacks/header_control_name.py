"""A name that clears the terminal which shows it."""

from pathlib import Path

import forge

REFUSED = ("\\x1b[2J",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"\x1b[2J": forge.tensor(end=5)})
