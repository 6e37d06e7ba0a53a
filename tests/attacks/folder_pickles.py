"""Only pickle files, which run code when they are read."""

from pathlib import Path

import forge

REFUSED = ("pickle files", "pytorch_model.bin")


def build(folder: Path) -> Path:
    forge.write(folder / "pytorch_model.bin", b"")
    return folder
