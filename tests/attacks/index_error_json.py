"""A hub's answer in JSON saved as an index."""

from pathlib import Path

import forge

REFUSED = ("no index", "no weight_map")


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, b'{"error": "Repository not found"}')
