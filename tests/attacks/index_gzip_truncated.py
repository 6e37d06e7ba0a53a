"""A gzip file that ends early."""

import gzip
from pathlib import Path

import forge

REFUSED = ("can't be read", "end-of-stream")


def build(folder: Path) -> Path:
    raw = gzip.compress(forge.index({"a": "a.safetensors"}))
    return forge.write(folder / f"{forge.INDEX}.gz", raw[:-9])
