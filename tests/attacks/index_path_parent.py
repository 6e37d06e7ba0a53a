"""A path up and out of the folder."""

from pathlib import Path

import forge

REFUSED = ("leaves the index's folder",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "../model.safetensors"}))
