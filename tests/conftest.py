"""Fixtures that more than one test file uses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import INSTRUCTION_SETS
from hub_server import Hub, serving, shards

from latentkv import _library


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set of this processor in turn."""
    if request.param == "none":
        yield request.param
        return
    with _library.using_instruction_set(request.param):
        yield request.param


@pytest.fixture(scope="session")
def everything_checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], str]:
    """What one run of ``latentkv check`` prints as JSON, and what it says besides."""
    result = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-m", "latentkv", "check", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path_factory.mktemp("elsewhere"),
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Hub]:
    """A repository with nothing in it."""
    with serving(tmp_path) as hub:
        yield hub


@pytest.fixture
def hub(bare: Hub) -> Hub:
    """A repository of three files."""
    shards(bare.folder, 3, tensors=50)
    return bare


@pytest.fixture
def threads() -> Iterator[None]:
    """Give back the number of threads that a test changes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread(threads: None) -> None:
    """Thousands of small operations: threads would wait for each other."""
    torch.set_num_threads(1)
