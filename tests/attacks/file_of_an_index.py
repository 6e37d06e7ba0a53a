"""One of two files that the index beside it names, counted alone."""

from pathlib import Path

import forge

REFUSED = ("one of the 2 files", "give its folder")


def build(folder: Path) -> Path:
    files = {"a": "a.safetensors", "b": "b.safetensors"}
    forge.checkpoint(folder, files, {file: forge.shard(name) for name, file in files.items()})
    return folder / "a.safetensors"
