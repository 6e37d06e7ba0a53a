"""setup.py's choice of a compiler; what the built files do once installed, .ci/run tries."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

pytest.importorskip("setuptools")
ROOT = Path(__file__).parent.parent


@pytest.fixture
def setup(monkeypatch):
    """setup.py's names, with no compiler on the path and none asked for."""
    names = runpy.run_path(str(ROOT / "setup.py"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda program: None)
    return names


def installed(monkeypatch, *programs):
    monkeypatch.setattr(shutil, "which", lambda program: program if program in programs else None)


def test_no_compiler_is_no_error(setup):
    assert setup["compiler"]() is None


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_cxx_asks_for_nothing(setup, monkeypatch, blank):
    monkeypatch.setenv("CXX", blank)
    assert setup["compiler"]() is None


@pytest.mark.parametrize("asked", ["g++-13", "g++ -m64", "ccache g++"])
def test_cxx_may_have_arguments(setup, monkeypatch, asked):
    installed(monkeypatch, "g++-13", "g++", "ccache")
    monkeypatch.setenv("CXX", asked)
    assert setup["compiler"]() == asked


def test_cxx_naming_no_program_is_an_error_whatever_else_is_installed(setup, monkeypatch):
    installed(monkeypatch, "g++")
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(SystemExit, match="CXX=no-such-compiler -O2 names no program"):
        setup["compiler"]()


@pytest.mark.parametrize("program", ["g++", "c++", "clang++"])
def test_any_usual_compiler_is_found(setup, monkeypatch, program):
    installed(monkeypatch, program)
    assert setup["compiler"]().split()[0] == program


def test_no_flag_changes_the_arithmetic(setup):
    flags = setup["KERNELS"].extra_compile_args
    assert "-ffp-contract=off" in flags and "-fno-fast-math" in flags
    assert not {"-ffast-math", "-Ofast", "-march=native"} & set(flags)
    assert "-fno-fast-math" in setup["KERNELS"].extra_link_args
