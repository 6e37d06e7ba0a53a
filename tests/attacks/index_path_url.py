"""A URL, for a reader that fetches."""

from pathlib import Path

import forge

REFUSED = ("not a plain file name",)


def build(folder: Path) -> Path:
    return forge.write(
        folder / forge.INDEX, forge.index({"a": "https://example.com/model.safetensors"})
    )
