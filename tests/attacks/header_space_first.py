"""White space before the header's brace, which hides it from a reader of magic bytes."""

from pathlib import Path

import forge

REFUSED = ("header begins with",)


def build(folder: Path) -> Path:
    return forge.file(folder, " {}")
