"""``latentkv check path`` as a user calls it: exit codes, the table, JSON, and every misuse."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import SOURCE
from typer.testing import CliRunner

from latentkv import _library, models
from latentkv.cli import app
from latentkv.conformance import Report
from latentkv.conformance.known import Skipped
from latentkv.conformance.path import PathReport, identify_path, known

pytestmark = pytest.mark.usefixtures("one_thread")
ONE = {"OMP_NUM_THREADS": "1"}  # of a process what one_thread is here


THEIRS = """
import paths

k2 = paths.path()
k3 = paths.unrotated

def deepseek(down, gain, eps, positions, cos, sin):
    print("hello")
    return paths.deepseek(paths.e4m3(paths.act_quant))(down, gain, eps, positions, cos, sin)

def raises(down, gain, eps, positions):
    raise RuntimeError("no kernel image is available")

def mutates(down, gain, eps, positions):
    down.zero_()
    return k3(down, gain, eps, positions)

def norm(x, gain, eps):
    return x

number = 3
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    (tmp_path / "their_paths.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "their_paths", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent)])


def run(*args):
    return CliRunner().invoke(app, ["check", *args])


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["kimi-k2", "path", "--impl", "their_paths.py:k2"], 0),
        (["Kimi-K3", "Path", "--impl", "their_paths:k3"], 0),
        (["path", "--impl", "their_paths.py:k3"], 0),
        (["kimi-k2", "path", "--impl", "their_paths.py:k3"], 1),
        (["path", "--impl", "their_paths.py:k2", "--impl", "their_paths.py:k3"], 0),
        (["kimi-k2", "path", "--strict", "--impl", "their_paths.py:k2"], 1),
        (["kimi-k2", "path", "--impl", "their_paths.py:raises"], 2),
    ],
)
def test_exit_codes(theirs, args, code):
    result = run(*args)
    assert result.exit_code == code, result.output


def test_strict_accepts_identical_bits(theirs):
    Path("ours.py").write_text(
        "from latentkv import compress_kv, models\n"
        "def path(down, gain, eps, positions):\n"
        "    return compress_kv(down, gain, models.get('kimi-k2').kv, positions)\n"
    )
    assert run("kimi-k2", "path", "--strict", "--impl", "ours.py:path").exit_code == 0


def test_the_norm_stays_the_default(theirs):
    Path("norms.py").write_text(
        "def norm(x, gain, eps):\n"
        "    wide = x.float()\n"
        "    wide = wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()\n"
        "    return gain * wide.to(x.dtype)\n"
    )
    spelled = [
        json.loads(run(*words, "--json", "--impl", "norms.py:norm").stdout)
        for words in (["kimi-k2"], ["kimi-k2", "norm"])
    ]
    assert spelled[0] == spelled[1] and "key" not in spelled[0][0]


def test_json(theirs):
    result = run("path", "--json", "--impl", "their_paths.py:deepseek")
    assert "hello" in result.stderr
    rows = json.loads(result.stdout)
    assert [row["model"] for row in rows] == list(models.names())
    fields = {"model", *PathReport.__dataclass_fields__}
    assert fields > {"model", *Report.__dataclass_fields__}
    for row in rows:
        assert set(row) == fields | {"versions", "date"}
        assert row["versions"]["torch"] == torch.__version__
        assert datetime.date.fromisoformat(row["date"])
        assert (row["key"], row["layout"], row["roundings"]) == ("rotated", "interleaved", "result")
        assert (row["latent"], row["rules"], row["group"]) == ("quantised", ["act_quant"], 128)
        assert row["follows"] == (row["model"] == "deepseek-v3.2-exp")
        assert row["reason"] == "; ".join(row["faults"]) or row["follows"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["kimi-k2", "pfad"], ["unknown component 'pfad'", "norm, path"]),
        (["kimi-k2", "kimi-k3"], ["unknown component 'kimi-k3'", "the model comes first"]),
        (["path", "kimi-k2"], ["unknown component 'kimi-k2'", "the model comes first"]),
        (["pfad"], ["unknown model 'pfad'", "Components: norm, path"]),
        (["kimi-k4", "path"], ["unknown model 'kimi-k4'", "kimi-k3"]),
        (["kimi-k2", "path", "norm"], []),
        (["path", "--impl", "their_paths"], ["MODULE:NAME or FILE.py:NAME"]),
        (["path", "--impl", "absent.py:f"], ["there is no file absent.py"]),
        (["path", "--impl", "their_paths.py:absent"], ["their_paths.py has no absent"]),
        (
            ["path", "--impl", "their_paths.py:number"],
            ["is an object of type int", "f(down, gain, eps, positions) -> (latent, key)"],
        ),
        (["path", "--impl", "their_paths.py:norm"], ["can't be called as f(down, gain, eps"]),
        (["path", "--impl", "their_paths.py:raises"], ["raised RuntimeError", "no kernel image"]),
        (["path", "--impl", "their_paths.py:mutates"], ["mutates its input down"]),
    ],
)
def test_misuse_exits_with_2_and_says_what(theirs, args, words):
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output


def test_the_help_names_the_form():
    text = run("--help").output
    for word in ("COMPONENT", "f(down, gain, eps, positions) -> (latent, key)", "cos", "slots"):
        assert word in text


@pytest.mark.parametrize("columns", [40, 100, 200])
def test_the_table_fits_the_terminal(theirs, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run("path", "--impl", "their_paths.py:k2")
    assert all(len(line) <= columns for line in result.output.splitlines())
    assert "…" not in result.output  # nothing is cut
    text = " ".join(result.output.split())
    assert "follows" in text and "deviates" in text
    assert "does not quantise the latent" in text


def test_the_table_is_ascii_where_the_stream_is():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "latentkv",
            "check",
            "kimi-k3",
            "path",
            "--impl",
            "paths.py:unrotated",
        ],
        capture_output=True,
        cwd=Path(__file__).parent,
        env={**ONE, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(SOURCE.parent)},
    )
    assert done.returncode == 0, done.stderr
    assert b"not rotated" in done.stdout and done.stdout.isascii()


@pytest.fixture(scope="module")
def every_path():
    """What one run of ``latentkv check path`` prints as JSON, and what it says besides."""
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-m", "latentkv", "check", "path"]
        + ["--json"],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | ONE,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_everything_found_is_held_against_every_model(every_path):
    rows, _ = every_path
    names = {row["implementation"] for row in rows}
    assert len(rows) == len(models.names()) * len(names)
    expected = {f"latentkv, {name}" for name in ("definition", *_library.instruction_sets())}
    eager = {f"{owner}, eager PyTorch" for owner in ("Kimi K2", "Kimi K3", "DeepSeek")}
    assert expected | eager <= names


def test_latentkv_is_identical_on_each_backend(every_path):
    for row in every_path[0]:
        if row["implementation"].startswith("latentkv"):
            assert (row["grade"], row["differs"], row["key_differs"]) == ("identical", 0, 0), row
            assert (row["slot_minus_1"], row["duplicates"]) == ("skipped", "last")


@pytest.mark.parametrize("name", models.names())
def test_each_models_eager_path_is_its_own(name):
    model = models.get(name)
    assert identify_path(known.eager_path(model), model.kv).follows


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("transformers", "transformers is not installed"),
        (None, "not in the transformers installed"),
    ],
)
def test_what_is_missing_is_skipped_with_the_reason(monkeypatch, module, reason):
    def broken(name):
        raise ImportError("no such model")

    if module:
        monkeypatch.setattr(known.importlib.util, "find_spec", lambda name: None)
    else:
        monkeypatch.setattr(known.importlib, "import_module", broken)
    entries = [entry for entry in known.found() if entry.name.startswith("transformers")]
    assert len(entries) == 3
    assert all(isinstance(entry, Skipped) and reason in entry.reason for entry in entries)


HALF = ("rotated", "half", "each_step", "as it is")


@pytest.mark.parametrize(
    ("name", "follows", "told"),
    [
        ("Kimi K2, eager PyTorch", "kimi-k2", HALF),
        ("Kimi K3, eager PyTorch", "kimi-k3", ("not rotated", None, None, "as it is")),
        (
            "DeepSeek, eager PyTorch",
            "deepseek-v3.2-exp",
            ("rotated", "interleaved", "result", "quantised"),
        ),
        ("transformers DeepseekV3", "kimi-k2", HALF),
        ("transformers KimiLinear", "kimi-k3", ("not rotated", None, None, "as it is")),
        # Not DeepSeek's own path: it keeps the latent as it is, and K2's key layout.
        ("transformers DeepseekV32", "kimi-k2", HALF),
    ],
)
def test_who_computes_what(every_path, name, follows, told):
    rows, said = every_path
    found = [row for row in rows if row["implementation"] == name]
    if not found:
        assert f"skipped: {name}" in said
        pytest.skip(said)
    for row in found:
        assert (row["key"], row["layout"], row["roundings"], row["latent"]) == told
        assert row["follows"] == (row["model"] == follows), row["reason"]
        assert row["batch_invariant"] and row["strided"] == "same"
        assert row["slot_minus_1"] == "no slots"
