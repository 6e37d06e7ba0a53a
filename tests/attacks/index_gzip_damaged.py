"""A gzip file with a flipped bit."""

import gzip
from pathlib import Path

import forge

REFUSED = ("can't be read", "CRC")


def build(folder: Path) -> Path:
    raw = bytearray(gzip.compress(forge.index({"a": "a.safetensors"}), mtime=0))
    raw[-8] ^= 1
    return forge.write(folder / f"{forge.INDEX}.gz", raw)
