"""Fixtures that more than one test file uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers import INSTRUCTION_SETS

from latentkv import _library


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set of this processor in turn."""
    if request.param == "none":
        yield request.param
        return
    with _library.using_instruction_set(request.param):
        yield request.param


@pytest.fixture
def threads() -> Iterator[None]:
    """Give back the number of threads that a test changes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
