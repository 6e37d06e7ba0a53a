"""A file numbered above the number of files."""

from pathlib import Path

import forge

REFUSED = ("not numbered 1 to 1",)


def build(folder: Path) -> Path:
    for n in (1, 2):
        forge.write(folder / f"model-{n}-of-1.safetensors", forge.shard(f"{n}"))
    return folder
