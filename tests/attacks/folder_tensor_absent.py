"""A tensor that the index lists and the file lacks."""

from pathlib import Path

import forge

REFUSED = ("lists a tensor", "lack: 'b'")


def build(folder: Path) -> Path:
    return forge.checkpoint(
        folder,
        {"a": "model.safetensors", "b": "model.safetensors"},
        {"model.safetensors": forge.shard("a")},
    )
