"""A configuration that is a string of JSON."""

from pathlib import Path

import forge

REFUSED = ("config.json is a string",)


def build(folder: Path) -> Path:
    forge.write(folder / "config.json", b'"{}"')
    return forge.write(folder / "model.safetensors", forge.shard("a"))
