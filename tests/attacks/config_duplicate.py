"""Two eps in one configuration."""

from pathlib import Path

import forge

REFUSED = ("name 'rms_norm_eps' twice",)


def build(folder: Path) -> Path:
    forge.write(folder / "config.json", b'{"rms_norm_eps": 1e-5, "rms_norm_eps": 1e-6}')
    return forge.write(folder / "model.safetensors", forge.shard("a"))
