"""A link to itself."""

from pathlib import Path

import forge

REFUSED = ("lacks 1 of the 1 files",)


def build(folder: Path) -> Path:
    (folder / "model.safetensors").symlink_to("model.safetensors")
    return forge.checkpoint(folder, {"a": "model.safetensors"}, {})
