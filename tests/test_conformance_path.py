"""The key-value path identified from outputs alone: paths, each with one step done another way."""

from __future__ import annotations

from dataclasses import replace

import paths
import pytest
import torch
from kv_rows import K2, K3, V32

from latentkv import KVContract, LatentQuant, NormContract, compress_kv, write_kv
from latentkv.conformance.path import identify_path, latent
from latentkv.conformance.path.probes import sample
from latentkv.contracts import RULES

pytestmark = pytest.mark.usefixtures("one_thread")
DEEPSEEK = paths.deepseek(paths.e4m3(paths.act_quant))


@pytest.mark.parametrize(
    ("function", "contract", "grade", "told"),
    [
        (paths.path(), K2, "follows", ("rotated", "half", "each_step", "as it is", ())),
        (paths.unrotated, K3, "follows", ("not rotated", None, None, "as it is", ())),
        (
            DEEPSEEK,
            V32,
            "follows|identical",
            ("rotated", "interleaved", "result", "quantised", ("act_quant",)),
        ),
    ],
    ids=["kimi-k2", "kimi-k3", "deepseek-v3.2-exp"],
)
def test_the_models_own_arithmetic(function, contract, grade, told):
    report = identify_path(function, contract)
    assert report.grade in grade.split("|") and report.follows and report.faults == ()
    assert (report.key, report.layout, report.roundings, report.latent, report.rules) == told
    assert report.order == contract.norm.order
    assert report.key_differs == 0  # given the table, or without rotation, every bit is right
    assert report.differs <= 1e-4
    assert (report.slot_minus_1, report.strided, report.batch_invariant) == (
        "no slots",
        "same",
        True,
    )


@pytest.mark.parametrize("contract", [K2, K3, V32], ids=["kimi-k2", "kimi-k3", "deepseek-v3.2-exp"])
def test_latentkv_is_identical(contract):
    def ours(down, gain, eps, positions, cache=None, slots=None):
        if cache is not None:
            return write_kv(cache, slots, down, gain, contract, positions)
        return compress_kv(down, gain, contract, positions)

    report = identify_path(ours, contract)
    assert (report.grade, report.differs, report.key_differs) == ("identical", 0, 0)
    assert (report.slot_minus_1, report.duplicates) == ("skipped", "last")
    assert report.reason == "every bit equal"
    assert report.table == ("its own" if contract.rope else "none")


FREQUENCIES = paths.frequencies(K2.rope)


@pytest.mark.parametrize(
    ("function", "told", "faults"),
    [
        (paths.path(layout=paths.interleaved), ("rotated", "interleaved", "each_step"),
         ["leaves the key in the interleaved layout, not half"]),
        (paths.path(turn=paths.once), ("rotated", "half", "result"),
         ["rounds the rotation's result alone"]),
        (paths.path(turn=paths.rounded_table), ("rotated", "half", "table"),
         ["rounds cos and sin, and then the rotation's result"]),
        (paths.path(turn=paths.backwards), ("rotated", "half", "each_step"),
         ["rotates in the opposite direction"]),
        (paths.path(take=paths.halves), ("rotated", "half", "each_step"),
         ["takes the key's two halves for its pairs"]),
        (paths.path(turn=paths.once, take=paths.halves, layout=paths.interleaved),
         ("rotated", "interleaved", "result"),
         ["takes the key's two halves for its pairs",
          "leaves the key in the interleaved layout, not half",
          "rounds the rotation's result alone"]),
        (paths.unrotated, ("not rotated", None, None), ["does not rotate the key"]),
        (paths.reordered, ("not rotated", "half", None),
         ["brings the key into the half layout without rotating it"]),
        (paths.own_table(K2.rope, FREQUENCIES, lambda p: p + 1), ("rotated", "half", "each_step"),
         ["rotates by each position plus 1"]),
        (paths.own_table(K2.rope, FREQUENCIES, lambda p: p - 1), ("rotated", "half", "each_step"),
         ["rotates by each position minus 1"]),
        (paths.own_table(K2.rope, FREQUENCIES, lambda p: torch.arange(len(p))),
         ("rotated", "half", "each_step"),
         ["takes a row's number for its position", "a row's bits depend on the other rows"]),
        (paths.own_table(K2.rope, FREQUENCIES, lambda p: torch.full_like(p, 9)),
         ("rotated", None, None), ["rotates every position alike"]),
        (paths.own_table(K2.rope, paths.frequencies(K2.rope, yarn=False)),
         ("rotated", "half", "each_step"), ["rotates without YaRN"]),
        (paths.own_table(K2.rope, paths.frequencies(K2.rope, yarn=False, theta=1e4)),
         ("rotated", "half", "each_step"), ["rotates without YaRN and by theta 10000"]),
        (paths.own_table(K2.rope, paths.frequencies(V32.rope)), ("rotated", "half", "each_step"),
         ["rotates by theta 10000 and factor 40"]),
        (paths.own_table(K2.rope, FREQUENCIES.bfloat16().float()),
         ("rotated", "half", "each_step"), ["rounds the rotation's frequencies to bf16"]),
    ],
)  # fmt: skip
def test_a_deviating_key_is_named(function, told, faults):
    report = identify_path(function, K2)
    assert (report.key, report.layout, report.roundings) == told
    assert (report.grade, list(report.faults)) == ("deviates", faults)
    assert report.reason == "; ".join(faults)
    # The latent is right all the same.
    assert (report.latent, report.order, report.eps) == ("as it is", "cast_then_gain", 1e-6)


def test_a_table_of_ones_own_is_no_fault():
    report = identify_path(paths.own_table(K2.rope, FREQUENCIES), K2)
    assert (report.grade, report.table) == ("follows", "its own")
    assert 0 < report.key_differs <= 1e-2  # docs: 0.02 to 0.7% of bf16 keys
    assert "another table of cos and sin" in report.reason


def test_given_the_table_each_bit_counts():
    def turn(x0, x1, cos, sin):
        return paths.once(x0, x1, cos + 2.0**-16, sin)

    report = identify_path(paths.deepseek(paths.e4m3(paths.act_quant), turn=turn), V32)
    assert (report.grade, report.key, report.roundings) == ("deviates", "rotated", "result")
    assert "though it was given cos and sin" in report.reason and report.key_differs < 1e-2


def test_exact_angles_are_not_the_models():
    def f(down, gain, eps, positions):
        i = torch.arange(K2.rope.width // 2, dtype=torch.float64)
        plain = K2.rope.theta ** (-2 * i / K2.rope.width)
        angle = positions.unsqueeze(-1) * plain / torch.where(i < 20, 1, K2.rope.factor)
        turned = paths.each_step(*paths.pairs(down, gain), angle.cos(), angle.sin())
        return paths.kimi_latent(down, gain, eps), paths.half(*turned)

    report = identify_path(f, K2)
    assert (report.key, report.layout, report.roundings) == ("rotated", "half", "each_step")
    assert "more or further than the last bits of another table" in report.reason


def test_a_rotation_that_nothing_explains():
    def turn(x0, x1, cos, sin):
        return paths.once(x0, x1, cos, 0.5 * sin)

    report = identify_path(paths.path(turn=turn), K2)
    assert (report.key, report.layout, report.roundings) == ("unknown", None, None)
    assert "no known rotation explains its keys" in report.reason


def test_roundings_that_nothing_explains():
    def turn(x0, x1, cos, sin):  # truncates
        lo, hi = x0.float() * cos - x1.float() * sin, x1.float() * cos + x0.float() * sin
        return tuple(
            (part.view(torch.int32) & -0x10000).view(torch.float32).bfloat16() for part in (lo, hi)
        )

    report = identify_path(paths.path(turn=turn), K2)
    assert (report.key, report.layout, report.roundings) == ("rotated", "half", None)
    assert "no known roundings explain its keys" in report.reason


def test_a_key_that_has_to_stay():
    report = identify_path(paths.path(), K3)
    assert (report.key, report.layout, report.roundings) == ("rotated", "half", "each_step")
    assert report.faults == ("rotates the key, which has to stay as it is",)


@pytest.mark.parametrize(
    ("latent_of", "rules", "order", "fault"),
    [
        (paths.e4m3(paths.flashmla), ["flashmla"], "gain_then_cast",
         "quantises the latent by flashmla, not act_quant"),
        (paths.e4m3(paths.flashmla, paths.unrounded), ["vllm_fused"], "gain_then_cast",
         "quantises the latent by vllm_fused, not act_quant"),
        (paths.e4m3(paths.vllm_cuda), ["vllm_cuda"], "gain_then_cast",
         "quantises the latent by vllm_cuda, not act_quant"),
        (paths.sglang, ["sglang"], "gain_then_cast",
         "quantises the latent by sglang, not act_quant"),
        (paths.e4m3(paths.act_quant, paths.kimi_latent), ["act_quant"], "cast_then_gain",
         "normalises in the order cast_then_gain, not gain_then_cast"),
        (paths.e4m3(paths.act_quant, group=512), ["act_quant", "flashmla"], "gain_then_cast",
         "quantises groups of 512 features, not 128"),
        (paths.other_eps(paths.e4m3(paths.act_quant)), ["act_quant"], "gain_then_cast",
         "applies another eps than 1e-06"),
        (paths.e4m3(paths.next_power), ["act_quant"], "gain_then_cast",
         "of latent features differ"),
        (paths.e4m3(paths.act_quant, group=64), ["act_quant"], "gain_then_cast",
         "quantises groups of 64 features, not 128"),
        (paths.deepseek_latent, [], "gain_then_cast",
         "does not quantise the latent (act_quant, groups of 128)"),
    ],
)  # fmt: skip
def test_a_deviating_latent_is_named(latent_of, rules, order, fault):
    report = identify_path(paths.deepseek(latent_of), V32)
    assert report.grade == "deviates" and len(report.faults) == 1 and fault in report.reason
    assert (list(report.rules), report.order) == (rules, order)
    assert report.latent == ("as it is" if latent_of is paths.deepseek_latent else "quantised")
    assert report.key_differs == 0


def test_a_latent_that_has_to_stay():
    report = identify_path(paths.path(paths.e4m3(paths.flashmla)), K2)
    assert report.faults == ("quantises the latent (by flashmla), which has to stay as it is",)


def test_the_norm_is_judged_as_by_the_norms_own_check():
    report = identify_path(paths.path(paths.other_eps(paths.deepseek_latent)), K2)
    assert (report.order, report.eps, report.table) == ("gain_then_cast", 1e-5, "given")
    assert report.faults == (
        "applies eps 1e-05, not 1e-06",
        "multiplies by the gain, then rounds",
    )


def test_rules_that_no_row_tells_apart_are_all_named(monkeypatch):
    monkeypatch.setattr(latent, "expected_latent", lambda _: torch.zeros(512, 512).bfloat16())
    zeros = torch.zeros(512, 512, dtype=torch.bfloat16)
    assert latent.observe_latent(zeros, sample(V32), V32).rules == RULES


@pytest.mark.parametrize(
    ("place", "negative", "duplicates", "faults"),
    [
        (paths.skips, "skipped", "last", []),
        (paths.first_wins, "skipped", "first", []),
        (paths.to_slot_0, "written to slot 0", "last", ["writes a row with slot -1 to slot 0"]),
        (paths.to_the_last, "written to the last slot", "last",
         ["writes a row with slot -1 to the last slot"]),
        (paths.before_the_cache, "writes elsewhere", "last",
         ["writes to slots that it was not given when one of them is -1"]),
        (paths.raises_on_minus_1, "raises", "last", ["raises on a slot -1"]),
        (paths.adds_up, "skipped", "neither",
         ["leaves none of the rows in a slot that several are given"]),
    ],
)  # fmt: skip
def test_slots(place, negative, duplicates, faults):
    report = identify_path(paths.writing(place), K3)
    assert (report.slot_minus_1, report.duplicates, report.table) == (negative, duplicates, "none")
    assert list(report.faults) == faults
    assert report.grade == ("deviates" if faults else "follows")


@pytest.mark.parametrize("place", [paths.beside, paths.writes_nothing])
def test_a_cache_holds_the_rows_and_nothing_else(place):
    report = identify_path(paths.writing(place), K3)
    assert len(report.faults) == 1 and report.slot_minus_1 == "not tested"


def test_a_cache_that_is_refused():
    report = identify_path(paths.writing(paths.raises_always), K3)
    assert (report.slot_minus_1, report.duplicates) == ("not tested", "not tested")
    assert "raised NotImplementedError: no cache" in report.reason


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (paths.mean_of_the_batch, "a row's bits depend on the other rows"),
        (paths.nan_from_neighbours, "a row's bits depend on the other rows"),
        (paths.packed_strides, "wrong on a slice of rows 1728 wide"),
        (paths.counted_calls(), "gives other bits when it is called again"),
    ],
)
def test_rows_are_independent(function, fault):
    report = identify_path(function, K3)
    assert report.grade == "deviates" and fault in report.faults, report.reason


def test_a_wide_output_is_a_fault():
    def wide(down, gain, eps, positions):
        latent, key = paths.unrotated(down, gain, eps, positions)
        return latent.float(), key.float()

    faults = identify_path(wide, K3).faults
    assert faults[-2:] == ("returns the latent in float32", "returns the key in float32")


def test_other_sizes():
    rope = replace(K2.rope, width=32, low=5, high=9)
    contract = KVContract(NormContract(256, 1e-5, "cast_then_gain"), 32, rope, None)
    assert identify_path(paths.path(), contract).grade == "follows"
    assert identify_path(paths.own_table(rope, paths.frequencies(rope)), contract).follows
    quantised = replace(V32, norm=NormContract(384, 1e-6, "gain_then_cast"))
    assert identify_path(DEEPSEEK, quantised).follows
    finer = replace(V32, quant=LatentQuant(64, "flashmla"))
    report = identify_path(paths.deepseek(paths.e4m3(paths.flashmla, group=64)), finer)
    assert report.follows and (report.rules, report.group) == (("flashmla",), 64)
