"""A configuration in the place of a checkpoint."""

from pathlib import Path

import forge

REFUSED = ("configuration", "index file")


def build(folder: Path) -> Path:
    return forge.write(folder / "config.json", b"{}")
