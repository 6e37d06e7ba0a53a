"""The published files that lie beside the checkout, and whether facts agree with their lines."""

from __future__ import annotations

import json

import pytest
from helpers import NO_SHARED, SHARED

from latentkv.models.spec import Fact

K3 = SHARED / "data" / "kimi-k3"
K3_INDEX = K3 / "model.safetensors.index.json.gz"
V32 = SHARED / "data" / "deepseek-v3.2-exp"

needs_shared = pytest.mark.skipif(not SHARED.exists(), reason=NO_SHARED)


def agrees(fact: Fact, text: str, key: str) -> None:
    """The lines that the fact cites hold this key, and its value."""
    line = text.splitlines()[fact.place.lines[0].first - 1]
    assert json.loads("{" + line.strip().rstrip(",") + "}") == {key: fact.value}
