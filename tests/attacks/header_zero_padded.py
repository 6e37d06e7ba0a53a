"""A header padded with zeros in place of spaces."""

from pathlib import Path

import forge

REFUSED = ("header is not JSON",)


def build(folder: Path) -> Path:
    return forge.file(folder, b"{}\0\0")
