"""Two checkpoints in one folder, and no index."""

from pathlib import Path

import forge

REFUSED = ("more than one checkpoint",)


def build(folder: Path) -> Path:
    forge.write(folder / "model-1-of-1.safetensors", forge.shard("a"))
    forge.write(folder / "consolidated.safetensors", forge.shard("b"))
    return folder
