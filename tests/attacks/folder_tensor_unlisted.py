"""A tensor that the index doesn't list."""

from pathlib import Path

import forge

REFUSED = ("holds a tensor", "doesn't list: 'b'")


def build(folder: Path) -> Path:
    return forge.checkpoint(
        folder, {"a": "model.safetensors"}, {"model.safetensors": forge.shard("a", "b")}
    )
