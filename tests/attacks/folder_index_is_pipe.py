"""A pipe in the place of the index."""

import os
from pathlib import Path

import forge

REFUSED = ("pipe, socket or device",)


def build(folder: Path) -> Path:
    os.mkfifo(folder / forge.INDEX)
    return folder
