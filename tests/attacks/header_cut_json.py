"""A header whose length ends it early."""

from pathlib import Path

import forge

REFUSED = ("header is not JSON", "line 1")


def build(folder: Path) -> Path:
    return forge.file(folder, '{"a": {"dtype": "U8"')
