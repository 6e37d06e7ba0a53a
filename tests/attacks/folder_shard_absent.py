"""An index whose second file is not there: half a count."""

from pathlib import Path

import forge

REFUSED = ("lacks 1 of the 2 files", "model-00002-of-00002.safetensors", "Finish the download")


def build(folder: Path) -> Path:
    one, two = forge.SHARDS
    return forge.checkpoint(folder, {"a": one, "b": two}, {one: forge.shard("a")})
