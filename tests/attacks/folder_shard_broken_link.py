"""A file that is a link to nothing, as an interrupted download's cache has it."""

from pathlib import Path

import forge

REFUSED = ("lacks 1 of the 1 files",)


def build(folder: Path) -> Path:
    (folder / "model.safetensors").symlink_to("../blobs/absent")
    return forge.checkpoint(folder, {"a": "model.safetensors"}, {})
