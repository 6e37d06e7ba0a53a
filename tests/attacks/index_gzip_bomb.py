"""610 kB that gunzip to 608 MiB."""

import gzip
from pathlib import Path

import forge

REFUSED = ("more than 512 MiB", "gunzipped")


def build(folder: Path) -> Path:
    piece = gzip.compress(b" " * (32 << 20))
    return forge.write(folder / f"{forge.INDEX}.gz", piece * 19)
