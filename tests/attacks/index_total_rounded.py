"""A floating-point total above 2^53, where integers are no longer exact."""

from pathlib import Path

import forge

REFUSED = ("9007199254740992.0 as total_size",)


def build(folder: Path) -> Path:
    return forge.write(folder / forge.INDEX, forge.index({"": "a.safetensors"}, total_size=2.0**53))
