"""A folder with nothing in it."""

from pathlib import Path

REFUSED = ("no .safetensors file and no index",)


def build(folder: Path) -> Path:
    return folder
