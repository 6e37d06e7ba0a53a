"""An index of pickle files."""

from pathlib import Path

import forge

REFUSED = ("no .safetensors file", "convert")


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "pytorch_model.bin"}))
