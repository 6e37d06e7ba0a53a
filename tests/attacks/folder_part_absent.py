"""Numbered files without an index, the second of three absent."""

from pathlib import Path

import forge

REFUSED = ("lacks 1 of the 3 files", "number 2")


def build(folder: Path) -> Path:
    for n in (1, 3):
        forge.write(folder / f"model-0000{n}-of-00003.safetensors", forge.shard(f"{n}"))
    return folder
