"""A name that moves the cursor."""

from pathlib import Path

import forge

REFUSED = ("not a plain file name",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"a": "\x1b[1A.safetensors"}))
