"""Bytes between two tensors, in which anything can hide."""

from pathlib import Path

import forge

REFUSED = ("2 bytes before tensor 'b' belong to no tensor",)


def build(folder: Path) -> Path:
    return forge.file(folder, {"a": forge.tensor(), "b": forge.tensor(begin=6, end=10)}, 10)
