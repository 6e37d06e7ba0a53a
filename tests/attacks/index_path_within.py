"""A path that leaves the folder and comes back."""

from pathlib import Path

import forge

REFUSED = ("leaves the index's folder",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "sub/../../x/model.safetensors"}))
