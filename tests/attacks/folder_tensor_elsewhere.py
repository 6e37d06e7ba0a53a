"""Two files exchanged."""

from pathlib import Path

import forge

REFUSED = ("places in",)


def build(folder: Path) -> Path:
    one, two = forge.SHARDS
    return forge.checkpoint(
        folder, {"a": one, "b": two}, {one: forge.shard("b"), two: forge.shard("a")}
    )
