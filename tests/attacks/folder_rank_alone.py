"""One rank's file of eight: parts of tensors, presented as the whole."""

from pathlib import Path

import forge

REFUSED = ("split by rank", "parts of tensors")


def build(folder: Path) -> Path:
    forge.write(folder / "model0-mp8.safetensors", forge.shard("a"))
    return folder
