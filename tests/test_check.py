"""``latentkv check`` as a user calls it: exit codes, the table, JSON, and every misuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from typer.testing import CliRunner

from latentkv import _library, models
from latentkv.cli import app

KEYS = {
    "implementation",
    "model",
    "follows",
    "grade",
    "order",
    "eps",
    "eps_placement",
    "residual",
    "out_dtype",
    "special",
    "differs",
    "ulp",
    "batch_invariant",
    "strided",
    "reason",
    "versions",
    "date",
}

THEIRS = """
import torch

def _rows(x, eps):
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)

def kimi_like(x, gain, eps):
    return gain * _rows(x, eps).to(x.dtype)

def deepseek_like(x, gain, eps):
    return (gain.float() * _rows(x, eps)).to(x.dtype)

def wrong_eps(x, gain, eps):
    return kimi_like(x, gain, 1e-5)

def raises(x, gain, eps):
    raise RuntimeError("no kernel image is available")

def prints(x, gain, eps):
    print("hello")
    return kimi_like(x, gain, eps)

def exits(x, gain, eps):
    raise SystemExit(0)

def flattens(x, gain, eps):
    return kimi_like(x, gain, eps).flatten()

def mutates(x, gain, eps):
    x.zero_()
    return x

def two(x, gain):
    return x

class Norm(torch.nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return kimi_like(x, self.weight, self.eps)

class Space:
    inner = Norm

built = Norm(512)
number = 3
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    (tmp_path / "their_norms.py").write_text(THEIRS)
    (tmp_path / "broken.py").write_text("import a_module_that_is_not_there\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "their_norms", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(*args):
    return CliRunner().invoke(app, ["check", *args])


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["kimi-k2", "--impl", "their_norms.py:kimi_like"], 0),
        (["kimi-k2", "--impl", "their_norms:kimi_like"], 0),
        (["Kimi-K3", "--impl", "their_norms.py:Norm"], 0),
        (["kimi-k2", "--impl", "their_norms.py:built"], 0),
        (["kimi-k2", "--impl", "their_norms.py:Space.inner"], 0),
        (["deepseek-v3.2-exp", "--impl", "their_norms.py:kimi_like"], 1),
        (["deepseek-v3.2-exp", "--impl", "their_norms.py:deepseek_like"], 0),
        (["kimi-k3", "--impl", "their_norms.py:deepseek_like"], 1),
        (["--impl", "their_norms.py:kimi_like"], 0),
        (["--impl", "their_norms.py:wrong_eps"], 1),
        (["--impl", "their_norms.py:kimi_like", "--impl", "their_norms.py:wrong_eps"], 1),
        (["kimi-k2", "--strict", "--impl", "their_norms.py:kimi_like"], 1),
        (["kimi-k2", "--impl", "their_norms.py:raises"], 2),
    ],
)
def test_exit_codes(theirs, args, code):
    result = run(*args)
    assert result.exit_code == code, result.output


def test_strict_accepts_identical_bits(theirs):
    (theirs / "ours.py").write_text(
        textwrap.dedent("""
        from latentkv import models, rms_norm

        def norm(x, gain, eps):
            return rms_norm(x, gain, models.get("kimi-k2").norms.kv_latent)
        """)
    )
    assert run("kimi-k2", "--strict", "--impl", "ours.py:norm").exit_code == 0


def test_json(theirs):
    result = run("--json", "--impl", "their_norms.py:wrong_eps")
    rows = json.loads(result.stdout)
    assert [row["model"] for row in rows] == list(models.names())
    for row in rows:
        assert set(row) == KEYS
        assert row["implementation"] == "their_norms.py:wrong_eps"
        assert (row["eps"], row["order"], row["follows"]) == (1e-5, "cast_then_gain", False)
        assert row["grade"] == "deviates" and "applies eps 1e-05" in row["reason"]


def test_what_the_implementation_prints_stays_out_of_the_json(theirs):
    (theirs / "chatty.py").write_text("print('hi')\nfrom their_norms import prints\n")
    result = run("kimi-k2", "--json", "--impl", "chatty.py:prints")
    assert json.loads(result.stdout)[0]["follows"] is True
    assert "hello" in result.stderr and "hi" in result.stderr


def test_a_class_without_a_weight_is_said_once(theirs):
    (theirs / "no_weight.py").write_text(
        "import torch\nclass N(torch.nn.Module):\n"
        "    def __init__(self, width): super().__init__()\n"
        "    def forward(self, x): return x\n"
    )
    result = run("kimi-k2", "--impl", "no_weight.py:N")
    assert result.exit_code == 2
    assert result.output.strip().splitlines()[-1] == (
        "latentkv: no_weight.py:N: the module has no parameter or buffer named weight"
    )


def test_a_file_may_bear_a_modules_name(theirs):
    (theirs / "random.py").write_text(THEIRS)
    assert run("kimi-k2", "--impl", "random.py:kimi_like").exit_code == 0
    import random

    assert hasattr(random, "Random")


@pytest.mark.parametrize("name", ["LATENTKV_BACKEND", "LATENTKV_INSTRUCTION_SET"])
@pytest.mark.parametrize("command", [["--version"], ["check", "kimi-k2"]])
def test_a_wrong_environment_is_misuse(name, command):
    result = subprocess.run(
        [sys.executable, "-m", "latentkv", *command],
        capture_output=True,
        text=True,
        env={**os.environ, name: "nonsense"},
    )
    assert result.returncode == 2
    assert "nonsense" in result.stderr and "Traceback" not in result.stderr


def test_files_beside_it_do_not_disturb_what_runs_apart(tmp_path):
    (tmp_path / "random.py").write_text("raise RuntimeError('not the one')\n")
    code = textwrap.dedent("""
        from latentkv.conformance.apart import Apart
        with Apart(["latentkv.conformance.known:kimi_eager"], ["kimi-k2"]) as process:
            print([(model, report.grade) for model, report in process.reports()])
        with Apart(["latentkv.conformance.known:absent"], ["kimi-k2"]) as process:
            try: list(process.reports())
            except Exception as error: print(type(error).__name__, error)
        """)
    result = subprocess.run(
        [sys.executable, "-c", "import sys; del sys.path[0]\n" + code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert result.stdout.splitlines() == [
        "[('kimi-k2', 'follows')]",
        "ImplementationError latentkv.conformance.known has no absent",
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["kimi-k4"], ["kimi-k4", "kimi-k3", "deepseek-v3.2-exp"]),
        (["kimi-k2", "kimi-k3"], []),
        (["--impl", "their_norms"], ["their_norms", "MODULE:NAME or FILE.py:NAME"]),
        (["--impl", ":f"], ["MODULE:NAME or FILE.py:NAME"]),
        (["--impl", "f:"], ["MODULE:NAME or FILE.py:NAME"]),
        (["--impl", "absent.py:f"], ["there is no file absent.py"]),
        (["--impl", "no_such_module:f"], ["can't import no_such_module", "ModuleNotFoundError"]),
        (["--impl", "broken.py:f"], ["can't import broken.py", "a_module_that_is_not_there"]),
        (["--impl", "their_norms.py:absent"], ["their_norms.py has no absent"]),
        (["--impl", "their_norms.py:number"], ["is an object of type int", "f(x, gain, eps)"]),
        (["--impl", "their_norms.py:Space"], ["is the class Space"]),
        (["--impl", "their_norms.py:two"], ["can't be called as f(x, gain, eps)"]),
        (["--impl", "their_norms.py:raises"], ["raised RuntimeError", "no kernel image", "bf"]),
        (["--impl", "their_norms.py:exits"], ["raised SystemExit"]),
        (["--impl", "leaves.py:f"], ["can't import leaves.py", "SystemExit"]),
        (["--impl", "their_norms.py:flattens"], ["returned y of shape", "(64, 512)"]),
        (["--impl", "their_norms.py:mutates"], ["mutates its input x"]),
        (["--impl"], []),
        (["--unknown"], []),
    ],
)
def test_misuse_exits_with_2_and_says_what(theirs, args, words):
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output


def test_the_help_names_every_form():
    text = run("--help").output
    for form in ("f(x, gain, eps)", "residual=r", "[width]", "C(width, eps=...)", "MODULE:NAME"):
        assert form in text


def test_everything_found_is_held_against_every_model(everything_checked):
    rows, _ = everything_checked
    names = {row["implementation"] for row in rows}
    assert len(rows) == 3 * len(names)
    expected = {"Kimi, eager PyTorch", "DeepSeek, eager PyTorch", "torch.nn.RMSNorm"}
    expected |= {f"latentkv, {name}" for name in _library.instruction_sets()}
    assert expected | {"latentkv, definition"} <= names


def test_latentkv_is_identical_on_each_backend(everything_checked):
    for row in everything_checked[0]:
        if row["implementation"].startswith("latentkv"):
            assert (row["grade"], row["differs"], row["ulp"]) == ("identical", 0, 0), row


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("Kimi, eager PyTorch", "cast_then_gain"),
        ("DeepSeek, eager PyTorch", "gain_then_cast"),
        ("Kimi, torch.compile", "gain_then_cast"),  # the intermediate cast is compiled away
        ("DeepSeek, torch.compile", "gain_then_cast"),
        ("torch.nn.RMSNorm", "gain_then_cast"),
        ("transformers DeepseekV3", "cast_then_gain"),
        ("transformers KimiLinear", "cast_then_gain"),
        ("transformers DeepseekV32", "cast_then_gain"),  # unlike DeepSeek's own code
    ],
)
def test_who_computes_what(everything_checked, name, order):
    rows, said = everything_checked
    found = [row for row in rows if row["implementation"] == name]
    if not found:
        assert f"skipped: {name}" in said
        pytest.skip(said)
    for row in found:
        contract = models.get(row["model"]).norms.kv_latent
        assert (row["order"], row["eps"]) == (order, 1e-6)
        assert row["follows"] == (order == contract.order)
        assert row["batch_invariant"] and row["strided"] == "same"
        assert row["special"] == "as defined"


@pytest.mark.parametrize("columns", [40, 80, 100, 200])
def test_the_table_fits_the_terminal(theirs, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = run("--impl", "their_norms.py:kimi_like", "--impl", "their_norms.py:wrong_eps")
    lines = result.output.splitlines()
    assert all(len(line) <= columns for line in lines)
    assert "…" not in result.output  # nothing is cut
    text = " ".join(result.output.split())
    assert "follows" in text and "deviates" in text
    assert "applies eps 1e-05, not 1e-06" in text


def test_compile_rows_are_skipped_without_a_compiler(tmp_path):
    code = textwrap.dedent("""
        from latentkv.conformance.known import Skipped, under_compile
        print([(type(entry) is Skipped, entry.reason) for entry in under_compile()])
        """)
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path), "LATENTKV_BACKEND": "definition"},
        check=True,
    )
    assert result.stdout.count("(True, 'torch.compile needs a C++ compiler: g++ is not") == 2
