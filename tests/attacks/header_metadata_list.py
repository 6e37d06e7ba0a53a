"""Metadata that is a list."""

from pathlib import Path

import forge

REFUSED = ("__metadata__ is []",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"__metadata__": []})
