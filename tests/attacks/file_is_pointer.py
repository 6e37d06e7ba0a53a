"""A git-lfs pointer in the place of a file."""

from pathlib import Path

import forge

REFUSED = ("git-lfs pointer", "git lfs pull")


def build(folder: Path) -> Path:
    return forge.write(
        folder / "model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"
    )
