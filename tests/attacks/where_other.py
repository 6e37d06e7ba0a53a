"""A file of another kind."""

from pathlib import Path

import forge

REFUSED = ("none of what is read here",)


def build(folder: Path) -> Path:
    return forge.write(folder / "README.md", b"# Kimi")
