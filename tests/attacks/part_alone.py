"""One file of 96, which would be counted as if it were all."""

from pathlib import Path

import forge

REFUSED = ("one of 96 files", "give its folder")


def build(folder: Path) -> Path:
    return forge.write(folder / "model-00001-of-00096.safetensors", forge.shard("a"))
