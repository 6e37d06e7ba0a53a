"""A bare pickle by another name, which would run code."""

import pickle
from pathlib import Path

import forge

REFUSED = ("pickle file", "never read")


def build(folder: Path) -> Path:
    return forge.write(folder / "model.safetensors", pickle.dumps({"a": 1}, protocol=2))
