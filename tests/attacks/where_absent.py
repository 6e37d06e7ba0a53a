"""A path with nothing at it."""

from pathlib import Path

REFUSED = ("no file or folder",)


def build(folder: Path) -> Path:
    return folder / "model.safetensors"
