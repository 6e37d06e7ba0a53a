"""A configuration of 9 MiB."""

from pathlib import Path

import forge

REFUSED = ("more than 8 MiB",)


def build(folder: Path) -> Path:
    forge.write(folder / "config.json", b" " * (9 << 20) + b"{}")
    return forge.write(folder / "model.safetensors", forge.shard("a"))
