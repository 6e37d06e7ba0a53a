"""The README's first screen: its table is what is printed, its lines of code run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_table_is_what_check_prints(everything_checked):
    printed = {}
    for row in everything_checked[0]:
        grade = row["grade"]
        printed.setdefault(row["implementation"], []).append(grade)
    table = re.search(r"```text\n(.*?)```", README, re.DOTALL).group(1)
    compared = 0
    for line in table.splitlines()[1:]:
        name, _order, _eps, *cells = re.split(r"\s{2,}", line.strip())
        if name in printed:  # transformers, AVX-512, a compiler: not everywhere
            assert [cell.split()[0] for cell in cells] == printed[name], name
            compared += 1
    assert compared >= 5


def test_the_first_lines_of_code_run(capsys):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    assert len([line for line in code.splitlines() if line.strip()]) <= 8
    scope = {}
    exec(compile(code, "README.md", "exec"), scope)
    latent = scope["latent"]
    assert (latent.shape, latent.dtype, latent.is_contiguous()) == ((8, 512), torch.bfloat16, True)
    assert not scope["down"][:, :512].is_contiguous()


def test_the_lines_about_the_cache_run():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    code = next(block for block in blocks if "LatentCache" in block)
    scope = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert not scope["latent"][2].any() and scope["latent"][4].any()


def test_the_page_about_caches_runs():
    page = (Path(__file__).parents[1] / "docs/caches.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope = {}
    for block in blocks:  # one after the other, as it says
        exec(compile(block, "docs/caches.md", "exec"), scope)
    assert len(blocks) >= 6 and scope["latent"][96].any() and not scope["latent"][97].any()


@pytest.mark.parametrize("command", ["make demo", "make test", "latentkv show", "latentkv check"])
def test_the_commands_are_there(command):
    assert command in README
