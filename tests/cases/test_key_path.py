"""F10, F16, F17 and F21: layouts of the rotated key, and scales of the coded latent."""

import dataclasses
import math

import pytest
import torch
from e4m3 import POWERS
from helpers import assert_same, random_gain, random_rows
from kv_rows import K2, K3, path, written

import latentkv
from latentkv import KVContract, NormContract
from latentkv.cache import half_to_interleaved, interleaved_to_half
from latentkv.contracts import RULES

BF16, FP32 = torch.bfloat16, torch.float32
HALF, INTERLEAVED = (
    dataclasses.replace(K2, rope=dataclasses.replace(K2.rope, layout=layout, rounding="result"))
    for layout in ("half", "interleaved")
)


def keys_of(rows, position, contract):
    """The shared key of fp32 rows [n, 64], all at one position."""
    down = torch.cat([torch.ones(len(rows), 512), rows], dim=-1)
    return latentkv.compress_kv(down, torch.ones(512), contract, torch.tensor(position))[1]


def score(one, other):
    """In fp64: a layout is a permutation, which changes an fp32 sum's last bits."""
    return (one.double() * other.double()).sum(-1)


def half_without_permuting(rows, position):
    """What a stack does that takes the stored features for halves: pair i is (i, i + 32)."""
    taken_apart = half_to_interleaved(rows)
    return keys_of(taken_apart, position, HALF)


@pytest.mark.case("F16-01")
def test_scores_agree_where_pairs_are_the_same(instruction_set):
    # A query at position 7 and a key at 3. Both layouts of the same rotation, but for the order of
    # 64 exact products: the scores are equal up to fp64's rounding of their sum.
    query, key = random_rows(16, 64, dtype=FP32, seed=1), random_rows(16, 64, dtype=FP32, seed=2)
    apart, halves = (
        score(keys_of(query, 7, contract), keys_of(key, 3, contract))
        for contract in (INTERLEAVED, HALF)
    )
    scale = query.norm(dim=-1).double() * key.norm(dim=-1)
    # 64 products of 48 bits each, exact in fp64, and 63 sums of 2^-53 each
    assert ((apart - halves).abs() <= 2.0**-46 * scale).all()
    # Read as halves without the permutation, or one side in each layout: another score.
    wrong = score(half_without_permuting(query, 7), half_without_permuting(key, 3))
    mixed = score(keys_of(query, 7, INTERLEAVED), keys_of(key, 3, HALF))
    for other in (wrong, mixed):
        assert ((other - apart).abs() > 1e-3 * scale).all()
    # At position 0 nothing turns: the first of these faults doesn't show.
    right = score(keys_of(query, 0, INTERLEAVED), keys_of(key, 0, INTERLEAVED))
    blind = score(half_without_permuting(query, 0), half_without_permuting(key, 0))
    assert ((right - blind).abs() <= 2.0**-46 * scale).all()


@pytest.mark.case("F16-02")
def test_bytes_of_one_layout_are_the_others_permuted(instruction_set):
    # Scores agree, cached bytes don't: reading one as the other gives another score.
    query, key = random_rows(16, 64, dtype=FP32, seed=1), random_rows(16, 64, dtype=FP32, seed=2)
    apart, halves = keys_of(key, 3, INTERLEAVED), keys_of(key, 3, HALF)
    order = [*range(0, 64, 2), *range(1, 64, 2)]
    assert_same(halves, apart[:, order])
    assert_same(interleaved_to_half(apart), halves)
    assert_same(half_to_interleaved(halves), apart)
    assert (halves != apart).any(-1).all()
    right = score(keys_of(query, 7, HALF), halves)
    wrong = score(keys_of(query, 7, HALF), apart)
    scale = query.norm(dim=-1).double() * key.norm(dim=-1)
    assert ((right - wrong).abs() > 1e-3 * scale).all()


@pytest.mark.case("F16-04")
def test_a_key_without_rotation_is_passed_on_at_any_position(instruction_set):
    # In and out the same bytes, NaN payloads and all; a position is not even looked at.
    contract = K3
    assert contract.rope is None
    down, gain = random_rows(3, 576), random_gain(512)
    down[0, 512:] = torch.arange(-32, 32).to(torch.int16).view(BF16)  # NaN and subnormal numbers
    positions = torch.tensor([0, 1, 1_000_000])
    for given in (positions, positions.int(), None):
        _, key = latentkv.compress_kv(down, gain, contract, given)
        assert torch.equal(key.view(torch.int16), down[:, 512:].view(torch.int16))
        cache = torch.zeros(1, 64, 576, dtype=BF16)
        latentkv.write_kv(cache, torch.arange(3), down, gain, contract, given)
        written = cache[0, :3, 512:].view(torch.int16)
        assert torch.equal(written, down[:, 512:].view(torch.int16))
    # a rotation would have refused the last of them: it doesn't wrap, nor is it clamped
    with pytest.raises(ValueError, match="from 0 to 1000000"):
        latentkv.compress_kv(down, gain, K2, positions)


@pytest.mark.case("F16-06")
def test_a_key_has_an_even_width():
    norm = NormContract(512, 1e-6, "cast_then_gain")
    for width in (7, 1, 63):
        with pytest.raises(ValueError, match=r"qk_rope_head_dim\) must be even"):
            KVContract(norm, width, None, None)
        with pytest.raises(ValueError, match="width must be even"):
            dataclasses.replace(K2.rope, width=width)
    assert KVContract(norm, 0, None, None).width == 512
    assert KVContract(norm, 64, K2.rope, None).width == 576
    latent, key = latentkv.compress_kv(
        random_rows(3, 512), random_gain(512), KVContract(norm, 0, None, None), None
    )
    assert latent.shape == (3, 512) and key.shape == (3, 0)


def codes_of(latent, rule):
    """Codes and scale in a record, of one group."""
    codes, scale = written(latent, len(latent), rule)
    return codes, scale.item()


def compressed(latent, rule):
    contract = path(len(latent), 0, rule=rule, eps=2.0**-126)
    return latentkv.compress_kv(torch.ones(len(latent), dtype=BF16), latent, contract, None)[0]


@pytest.mark.case("F17-07")
@pytest.mark.case("F21-01")
@pytest.mark.parametrize("rule", RULES)
def test_a_scale_is_a_power_of_two_where_it_should_be(instruction_set, rule):
    # 336 / 448 = 3/4, kept as it is by two rules. 449 is no bf16 number, which would be 448.
    for amax, power in ((336.0, 1.0), (448.0, 1.0), (449.0, 2.0), (1.75, 2.0**-8)):
        scale = power if rule in POWERS else torch.tensor(amax).div(448).item()
        latent = torch.tensor([1.0, -amax, 0.5, 0.0])
        assert codes_of(latent, rule)[1] == scale, amax
        # the plain path's scale is the same: its values are multiples of it
        codes, _ = codes_of(latent, rule)
        assert_same(compressed(latent, rule), codes.float() * torch.tensor(scale))
    assert codes_of(torch.tensor([449.0]).bfloat16().float().repeat(4), "act_quant")[1] == 1.0
    codes, scale = codes_of(torch.zeros(4), rule)
    floors = {"act_quant": 2.0**-22, "vllm_cuda": 2.0**-126, "sglang": 0.0}
    assert scale == floors.get(rule, 2.0**-13)
    zeros = compressed(torch.zeros(4), rule)
    assert zeros.isnan().all() if rule == "sglang" else zeros.tolist() == [0.0] * 4


@pytest.mark.case("F21-02")
@pytest.mark.parametrize("rule", RULES)
def test_a_value_is_divided_by_its_scale_and_multiplied_again(instruction_set, rule):
    # 224 makes the scale 1/2 by each rule; with * for /, 3 would come back as 3/4.
    latent = torch.tensor([224.0, 3.0, -3.0, 0.0])
    codes, scale = codes_of(latent, rule)
    assert scale == 0.5 and codes.float().tolist() == [448.0, 6.0, -6.0, 0.0]
    assert_same(compressed(latent, rule), latent)


@pytest.mark.case("F21-02")
def test_what_lies_beyond_448_becomes_448(instruction_set):
    # A power-of-two scale leaves nothing beyond it, the others a rounding.
    for rule in RULES:
        for amax in (448.0, 448.00003, 500.0, 1e30, 3e38):
            codes, scale = codes_of(torch.tensor([amax, -amax, 0.0, 0.0]), rule)
            values = codes.float()
            assert 224 <= values[0] <= 448 and values[1] == -values[0] and math.isfinite(scale)
    # And one rule's reciprocal may be infinite: 2^-140 / 448 is 2^-149, whose inverse fp32 lacks.
    codes, scale = codes_of(torch.tensor([2.0**-140, -(2.0**-140), 2.0**-149, 0.0]), "sglang")
    assert codes.view(torch.uint8).tolist() == [0x7E, 0xFE, 0x7E, 0x7F] and scale == 2.0**-149


@pytest.mark.case("F10-07")
@pytest.mark.parametrize("rule", RULES)
def test_a_large_gain_saturates_nothing_into_nan(instruction_set, rule):
    # Rows of ones times a gain of 500 and 600, which an unclamped cast to e4m3 would make NaN.
    for gain in (500.0, 600.0, 1e6):
        down, large = torch.ones(2, 512, dtype=BF16), torch.full((512,), gain, dtype=BF16)
        contract = path(512, 0, "gain_then_cast", rule=rule, group=128, eps=2.0**-126)
        latent, _ = latentkv.compress_kv(down, large, contract, None)
        assert latent.isfinite().all()
        # e4m3 has three bits of mantissa, so a code is off by 1/16 at most
        assert ((latent - large).abs() <= large / 16).all()
