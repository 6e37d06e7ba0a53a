"""Files without an index that share a tensor, as ranks do."""

from pathlib import Path

import forge

REFUSED = ("split by rank", "parts of tensors")


def build(folder: Path) -> Path:
    for rank in range(2):
        forge.write(folder / f"model{rank}-mp2.safetensors", forge.shard("a"))
    return folder
