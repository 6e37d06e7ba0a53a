"""A shape written as a string."""

from pathlib import Path

import forge

REFUSED = ("shape '4'",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(shape=()) | {"shape": "4"}}, 4)
