"""A configuration with an infinite eps."""

from pathlib import Path

import forge

REFUSED = ("Infinity, which is not JSON",)


def build(folder: Path) -> Path:
    forge.write(folder / "config.json", b'{"rms_norm_eps": Infinity}')
    return forge.write(folder / "model.safetensors", forge.shard("a"))
