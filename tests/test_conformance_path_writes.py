"""What the check of a path says about caches and groups: the fault there is, and no other."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import paths
import pytest
import torch
from kv_rows import K2, K3, V32
from typer.testing import CliRunner

from latentkv import KVContract, LatentQuant, NormContract
from latentkv.cli import app
from latentkv.conformance import ImplementationError
from latentkv.conformance.path import identify_path

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        (paths.writes_nothing, "leaves the cache as it was"),
        (paths.latent_only, "writes the latent into the cache, but not the key"),
        (paths.key_only, "writes the key into the cache, but not the latent"),
        (paths.key_first, "writes the key, then the latent into the cache's records"),
        (paths.one_further, "writes its rows to other slots than theirs"),
        (paths.column_by_column, "writes its rows to other slots than theirs"),
        (paths.beside, "writes to slots that it was not given, beside its own"),
        (paths.without_a_row, "leaves another cache than its rows in their slots"),
        (paths.doubled, "leaves another cache than its rows in their slots"),
    ],
)
def test_a_wrong_write_is_named_and_nothing_else_is_tested(place, fault):
    report = identify_path(paths.writing(place), K3)
    assert report.faults == (fault,)
    assert (report.slot_minus_1, report.duplicates) == ("not tested", "not tested")
    assert report.grade == "deviates"


@pytest.mark.parametrize("width", [8, 15, 97, 100])
def test_a_quantised_latent_shows_at_any_width(width):
    def quantised(down, gain, eps, positions):
        latent = paths.e4m3(paths.vllm_cuda, group=width)(down, gain, eps)
        return latent, down[:, width:]

    norm = NormContract(width, 1e-6, "gain_then_cast")
    contract = KVContract(norm, 64, None, LatentQuant(width, "vllm_cuda"))
    assert identify_path(quantised, contract).follows
    plain = KVContract(replace(norm, order="cast_then_gain"), 64, None, None)
    assert identify_path(paths.unrotated, plain).follows


@pytest.mark.parametrize(
    ("place", "negative", "duplicates", "faults"),
    [
        (paths.before_the_cache, "writes elsewhere", "last",
         ["writes to slots that it was not given when one of them is -1"]),
        (paths.stops_at_minus_1, "spoils other rows", "last",
         ["does not write the other rows when a slot is -1"]),
        (paths.mixed_winners, "skipped", "one of them", []),
        (paths.adds_up, "skipped", "neither",
         ["leaves none of the rows in a slot that several are given"]),
        (paths.drops_after_equal, "skipped", "spoils other rows",
         ["leaves other rows or slots wrong when two slots are equal"]),
        (paths.raises_on_equal, "skipped", "raises", ["raises on equal slots"]),
    ],
)  # fmt: skip
def test_elsewhere_is_said_only_of_what_was_not_given(place, negative, duplicates, faults):
    report = identify_path(paths.writing(place), K3)
    assert (report.slot_minus_1, report.duplicates) == (negative, duplicates)
    assert list(report.faults) == faults


@pytest.mark.parametrize("rule", [paths.act_quant, paths.flashmla, paths.vllm_cuda])
@pytest.mark.parametrize("group", [16, 32, 64, 256, 512])
def test_groups_of_any_power_of_two_are_named(rule, group):
    report = identify_path(paths.deepseek(paths.e4m3(rule, group=group)), V32)
    assert (report.latent, report.group, report.order) == ("quantised", group, "gain_then_cast")
    assert rule.__name__ in report.rules
    assert f"quantises groups of {group} features, not 128" in report.faults


def test_groups_smaller_than_those_tried_are_not_explained():
    report = identify_path(paths.deepseek(paths.e4m3(paths.act_quant, group=8)), V32)
    assert (report.latent, report.group, report.rules) == ("quantised", None, ())
    assert re.fullmatch(
        r"no known scale rule explains its latents \(\d\.\d% of the features are not those of the "
        r"nearest, act_quant\)",
        report.reason,
    )


@pytest.mark.parametrize("group", [16, 128])
def test_a_quantised_latent_shows_whatever_its_group(group):
    report = identify_path(paths.path(paths.e4m3(paths.vllm_cuda, group=group)), K2)
    assert report.faults == ("quantises the latent (by vllm_cuda), which has to stay as it is",)


@pytest.mark.parametrize("other", [torch.Tensor.to_sparse, lambda value: value.to("meta")])
@pytest.mark.parametrize("part", [0, 1])
def test_outputs_without_numbers_to_compare_are_refused(other, part):
    def f(down, gain, eps, positions):
        pair = list(paths.unrotated(down, gain, eps, positions))
        pair[part] = other(pair[part])
        return tuple(pair)

    with pytest.raises(ImplementationError, match="can't be compared: layout .* on (cpu|meta)"):
        identify_path(f, K3, name="theirs")


THEIRS = """
import paths

k2 = paths.path()
untouched = paths.writing(paths.writes_nothing)
writes = paths.writing(paths.skips)
unrotated = paths.unrotated
deepseek = paths.deepseek(paths.e4m3(paths.act_quant))
module = __import__("torch").nn.Identity()
module.forward = unrotated

def optional(down, gain, eps, positions=None):
    return down, down

def norm(x, gain, eps):
    return None
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    (tmp_path / "theirs.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent)])


def run(*args):
    return CliRunner().invoke(app, ["check", *args])


def words(*args):
    return " ".join(run(*args).stdout.split())


def test_json_has_what_was_not_tested(theirs):
    result = run("kimi-k3", "path", "--json", "--impl", "theirs.py:untouched")
    [row] = json.loads(result.stdout)
    assert (row["slot_minus_1"], row["duplicates"]) == ("not tested", "not tested")


def test_the_page_says_who_wins_and_what_was_not_tested(theirs):
    assert "of rows with equal slots: the last wins" in words(
        "kimi-k3", "path", "--impl", "theirs.py:writes"
    )
    without = words("kimi-k3", "path", "--impl", "theirs.py:unrotated")
    assert "slot -1: not tested, it takes no slots" in without and "equal slots" not in without
    failed = words("kimi-k3", "path", "--impl", "theirs.py:untouched")
    assert "slot -1: not tested, other slots already fail" in failed
    assert "of rows with equal slots: not tested" in failed


@pytest.mark.parametrize("name", ["unrotated", "optional", "module"])
@pytest.mark.parametrize(("model", "command"), [(["kimi-k2"], " kimi-k2 path"), ([], " path")])
def test_a_path_given_to_the_norms_check_is_recognised(theirs, name, model, command):
    result = run(*model, "--impl", f"theirs.py:{name}")
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(f"; did you mean `latentkv check{command}`?")


@pytest.mark.parametrize("args", [["--impl", "theirs.py:norm"], ["--impl", "theirs.py:absent"]])
def test_other_misuse_gets_no_such_hint(theirs, args):
    result = run("kimi-k2", *args)
    assert result.exit_code == 2 and "did you mean" not in result.stderr


def test_the_help_says_how_a_writer_is_called():
    text = " ".join(run("--help").stdout.split())
    assert (
        "One that writes must also be callable without cache and slots, and then return (latent, "
        "key); what it returns when it writes is not looked at." in text
    )
    assert (
        "An fp8 writer returns the latent after its round trip; 656-byte records are not looked at."
        in text
    )


HEADINGS = {
    200: "key layout roundings latent slot -1 Kimi K2 Kimi K3 DeepSeek-V3.2-Exp",
    100: "key latent slot -1 Kimi K2 Kimi K3 DeepSeek",
    80: "key latent Kimi K2 Kimi K3 DeepSeek",
    70: "key Kimi K2 Kimi K3 DeepSeek",
    60: "Kimi K2 Kimi K3 DeepSeek",
}


@pytest.mark.parametrize("columns", HEADINGS)
def test_a_narrow_table_has_fewer_columns(theirs, monkeypatch, columns):
    """With names and properties as long as those of what is found."""
    Path("a_longer_name.py").write_text(THEIRS)
    monkeypatch.setenv("COLUMNS", str(columns))
    names = ("k2", "unrotated", "deepseek")
    implementations = [word for name in names for word in ("--impl", f"a_longer_name.py:{name}")]
    lines = run("path", *implementations).stdout.splitlines()
    assert all(len(line) <= columns for line in lines)
    assert lines[0].split() == ["implementation", *HEADINGS[columns].split()]
    assert [line.split()[-3:] for line in lines[1:5]] == [
        ["follows", "deviates", "deviates"],
        ["deviates", "follows", "deviates"],
        ["deviates", "deviates", "identical"],
        [],
    ]


def test_without_a_table_there_are_grades_and_each_reason_once(theirs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "35")
    both = ["--impl", "theirs.py:k2", "--impl", "theirs:k2"]
    lines = run("path", *both).stdout.splitlines()
    assert all(len(line) <= 35 for line in lines)
    assert lines[0] == "theirs.py:k2"
    text = " ".join(" ".join(lines).split())
    assert text.count("Kimi K2 follows, Kimi K3 deviates, DeepSeek deviates") == 2
    assert text.count("does not quantise the latent") == 1
    assert text.count("rotates the key, which has to stay as it is (against Kimi K3)") == 1
