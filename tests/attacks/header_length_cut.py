"""A file that ends within the header's length."""

from pathlib import Path

import forge

REFUSED = ("has 7 bytes",)


def build(folder: Path) -> Path:
    return forge.write(folder / "model.safetensors", bytes(7))
