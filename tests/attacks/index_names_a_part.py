"""An index that leaves one of three numbered files out."""

from pathlib import Path

import forge

REFUSED = ("has 2 of the 3 files", "of a part")


def build(folder: Path) -> Path:
    files = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    forge.checkpoint(
        folder,
        {"a": files[0], "b": files[1]},
        {file: forge.shard(name) for file, name in zip(files, "abc", strict=True)},
    )
    return folder
