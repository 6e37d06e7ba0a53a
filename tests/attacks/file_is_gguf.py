"""A GGUF file by another name."""

from pathlib import Path

import forge

REFUSED = ("GGUF",)


def build(folder: Path) -> Path:
    return forge.write(folder / "model.safetensors", b"GGUF\x03\0\0\0" + bytes(100))
