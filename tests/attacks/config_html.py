"""A login page saved as the configuration."""

from pathlib import Path

import forge

REFUSED = ("config.json is a web page",)


def build(folder: Path) -> Path:
    forge.write(folder / "config.json", b"<html></html>")
    return forge.write(folder / "model.safetensors", forge.shard("a"))
