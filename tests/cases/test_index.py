"""Every named case exists, and every case of the parts that exist is answered."""

import ast
import re
from pathlib import Path

import pytest
from helpers import NO_SHARED, SHARED

TESTS = Path(__file__).parents[1]
# Of F17, rotation and scales of the indexer, the scale alone: there is no indexer yet.
KINDS = (*(f"F{kind:02}" for kind in (*range(1, 15), 16, *range(18, 22), 24, 25, 26, 28)), "F17-07")

RANKS = "answered outside this process: sharding_worker.py on two ranks, by test_sharding.py"

LOADING = "loading weights: only headers are read"
CONVERTING = "writing and reading GGUF files, which nothing here does"

WAITING = {
    "F13-04": RANKS,
    "F14-01": RANKS,
    "F14-02": RANKS,
    "F14-04": RANKS,
    "F14-06": RANKS,
    "F14-07": RANKS,
    "F21-06": "scales kept as exponent bytes: the records here have fp32 scales",
    "F21-07": "attention over the cached latents, where heads are",
    "F24-02": f"{LOADING}, and no projections are fused",
    "F24-04": f"{LOADING}, and no projections are fused",
    "F24-07": "writing checkpoints: names are derived and compared, tensors are not converted",
    "F24-09": "attention: both gates are counted, none is run",
    "F24-11": "writing configurations: they are read only",
    "F25-01": CONVERTING,
    "F25-02": CONVERTING,
    "F25-04": CONVERTING,
    "F28-01": "answered outside pytest: make mutants breaks the kernel and wants a red suite",
}

# Answered but for one part, which waits.
PARTLY = {"F24-12": f"the dequantised row: {LOADING}"}


def marked():
    """Case id -> the tests that carry it, read from the sources: nothing is imported."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef):
                continue
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.case":
                    for argument in call.args:
                        assert isinstance(argument, ast.Constant), f"{path.name}: {node.name}"
                        found.setdefault(argument.value, []).append(f"{path.name}::{node.name}")
    return found


@pytest.fixture(scope="module")
def listed():
    page = SHARED / "CASES.md"
    if not page.exists():
        pytest.skip(NO_SHARED)
    return set(re.findall(r"^\| (F\d\d-\d\d) \|", page.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_named_case_exists(listed):
    assert set(marked()) - listed == set()
    assert set(WAITING) - listed == set()


def test_every_case_is_answered_or_waits(listed):
    mine = {case for case in listed if case.startswith(KINDS)}
    assert len(mine) > 50  # the page was read
    assert mine - set(marked()) - set(WAITING) == set()


def test_nothing_waits_that_is_answered():
    assert set(WAITING) & set(marked()) == set()
    assert set(PARTLY) <= set(marked())
