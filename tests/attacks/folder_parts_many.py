"""A file that says it is one of a billion."""

from pathlib import Path

import forge

REFUSED = ("lacks 999,999,998 of the 999,999,999 files", "number 2, 3, 4 and more")


def build(folder: Path) -> Path:
    forge.write(folder / "model-1-of-999999999.safetensors", forge.shard("a"))
    return folder
