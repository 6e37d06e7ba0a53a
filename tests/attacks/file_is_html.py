"""A login page saved as a file."""

from pathlib import Path

import forge

REFUSED = ("web page", "token")


def build(folder: Path) -> Path:
    return forge.write(folder / "model.safetensors", b"<!DOCTYPE html><title>Sign in</title>")
