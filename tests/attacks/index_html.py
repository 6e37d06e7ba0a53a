"""An error page saved as an index."""

from pathlib import Path

import forge

REFUSED = ("web page",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, b"\n<html><body>404</body></html>")
