"""NaN, which Python reads and JSON doesn't have."""

from pathlib import Path

import forge

REFUSED = ("NaN, which is not JSON",)


def build(folder: Path) -> Path:
    return forge.file(folder, '{"a": NaN}')
