"""A length that is -1 where it is read as a signed integer."""

from pathlib import Path

import forge

REFUSED = ("18,446,744,073,709,551,615 bytes", "100,000,000")


def build(folder: Path) -> Path:
    return forge.write(folder / "model.safetensors", b"\xff" * 8 + b"{}")
