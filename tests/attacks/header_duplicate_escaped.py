"""Two names that are one once the escape is read."""

from pathlib import Path

import forge

REFUSED = ("name 'a' twice",)


def build(folder: Path) -> Path:
    return forge.file(folder, '{"__metadata__": {"a": "", "\\u0061": ""}}')
