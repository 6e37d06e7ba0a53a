"""Metadata with an object in it, for a reader that looks for tensors at any depth."""

from pathlib import Path

import forge

REFUSED = ("__metadata__", "only strings")


def build(folder: Path) -> Path:
    return forge.file(folder, {"__metadata__": {"a": forge.tensor()}})
