"""Two indices, neither by the usual name."""

from pathlib import Path

import forge

REFUSED = ("2 indices",)


def build(folder: Path) -> Path:
    for name in ("a", "b"):
        forge.write(folder / f"{name}.safetensors.index.json", forge.index({}))
    return folder
