"""What the documents say of the tests and of the package holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _defined_tests():
    names = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names.add(node.name)
    return names


def test_each_line_of_what_is_accepted_names_tests_that_exist():
    text = (ROOT / "docs/numerics.md").read_text(encoding="utf-8")
    table = text.split("## What is accepted")[1].split("##")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 15
    defined = _defined_tests()
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, f"no test backs: {row}"
        assert set(named) <= defined, set(named) - defined
    assert set(re.findall(r"`(test_\w+)`", text)) <= defined


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/accounting.md",
        "docs/atlas.md",
        "docs/caches.md",
        "docs/numerics.md",
        "docs/integrations.md",
        "docs/sharding.md",
    ],
)
def test_links_inside_the_repository_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), target
