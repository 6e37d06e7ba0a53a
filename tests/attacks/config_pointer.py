"""A git-lfs pointer in the place of the configuration."""

from pathlib import Path

import forge

REFUSED = ("git-lfs pointer",)


def build(folder: Path) -> Path:
    forge.write(folder / "config.json", b"version https://git-lfs.github.com/spec/v1\n")
    return forge.write(folder / "model.safetensors", forge.shard("a"))
