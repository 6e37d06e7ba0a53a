"""A tensor in two files, counted twice by a reader that sums files."""

from pathlib import Path

import forge

REFUSED = ("holds tensor 'a'", "places in")


def build(folder: Path) -> Path:
    one, two = forge.SHARDS
    return forge.checkpoint(
        folder, {"a": one, "b": two}, {one: forge.shard("a"), two: forge.shard("a", "b")}
    )
