"""A million lists one in the other, which exhaust a reader's stack."""

from pathlib import Path

import forge

REFUSED = ("too deep",)


def build(folder: Path) -> Path:
    return forge.file(folder, '{"a": ' + "[" * 10**6 + "]" * 10**6 + "}")
