"""A file of no bytes, as a full disk leaves it."""

from pathlib import Path

import forge

REFUSED = ("has 0 bytes", "download it again")


def build(folder: Path) -> Path:
    return forge.write(folder / "model.safetensors", b"")
