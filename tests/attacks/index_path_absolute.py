"""An absolute path."""

from pathlib import Path

import forge

REFUSED = ("leaves the index's folder",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "/etc/model.safetensors"}))
