"""Which regular expressions of a stranger's configuration are run, and that they end."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentkv.models.patterns import compiled

PUBLISHED = [
    r".*self_attn.*",
    r".*shared_experts.*",
    r".*mlp\.(gate|up|gate_up|down)_proj.*",
    r".*lm_head.*",
    r"model\.layers\.[0-3]\..*",
    r".*experts\.\d+\.w1",
    r".*mlp.gate$",
    r"^model\.layers\.(0|1|[2-9])\.",
    r".*\.experts\.\d{2}\.",
    "visual.*",
    "",
]


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_what_published_lists_have_is_run(pattern):
    assert compiled(pattern).pattern == pattern


@pytest.mark.parametrize(
    "pattern",
    [
        r"([a-z_.0-9]+)+!",  # exponential in the name's length
        r"(a*)*b",
        r"(a|a)*b",
        r"(.*a){20}",
        r".*a.*b.*c.*d",
        r"a{1,99999}",
        r"(?=a)b",
        r"(?P<x>a)\1",
        "(",
        "[",
        "a**",
        "x" * 301,
    ],
)
def test_anything_else_is_refused_and_says_what_is_taken(pattern):
    with pytest.raises(ValueError, match="is not run: only literal text"):
        compiled(pattern)


@given(st.text(alphabet=r"ab.*+?()[]|\d{}2^$_", max_size=30))
def test_what_is_run_has_no_repeated_group(pattern):
    try:
        compiled(pattern)
    except ValueError:
        return
    assert not re.search(r"\)[*+{]", pattern.replace(r"\)", ""))
    assert len(re.findall(r"(?<!\\)[*+]", pattern)) <= 3
    re.compile(pattern)
