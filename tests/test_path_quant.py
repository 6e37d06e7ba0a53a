"""The latent's e4m3 round trip against fractions, and the kernel's codes and scales with it."""

import math
from fractions import Fraction

import pytest
import torch
from e4m3 import (
    E4M3,
    MAGNITUDES,
    POWERS,
    RECIPROCAL,
    bytes_of,
    decoded,
    encoded,
    group_by_the_rule,
    power_from,
    scale_by_the_rule,
)
from helpers import (
    DTYPES,
    assert_same,
    from_bits,
    name_of,
    on_each_instruction_set,
    random_gain,
    random_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_rows import path, written
from oracle import rn32, round_float, round_fraction

import latentkv
from latentkv import LatentQuant, definition
from latentkv.contracts import RULES

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def check_codes(latent, group, rule, codes, scales, what=""):
    """The definition's and, on each instruction set, the kernel's: codes and scales of a row."""
    of_code = bytes_of(torch.tensor(codes, dtype=torch.uint8)) if codes is not None else None
    right = definition.quantise(latent, LatentQuant(group, rule))
    if codes is not None:
        assert_same(bytes_of(right[0]), of_code, f"{rule} {what}")
        assert_same(right[1], torch.tensor(scales), f"{rule} {what}")

    def on(name):
        actual = written(latent.float(), group, rule)
        assert_same(bytes_of(actual[0]), bytes_of(right[0]), f"{name} {rule} {what}")
        assert_same(actual[1], right[1], f"{name} {rule} {what}")

    on_each_instruction_set(on)
    return right


def test_every_code_is_its_exact_value():
    codes = torch.arange(256, dtype=torch.uint8).view(E4M3)
    right = torch.tensor([decoded(code) for code in range(256)])
    assert right.isnan().sum() == 2 and right.nan_to_num().max() == 448 and right[1] == 2.0**-9
    assert_same(definition.dequantise(codes, torch.ones(1), FP32), right)
    for exponent in (
        -117,
        -13,
        3,
        119,
    ):  # the smallest code is then 2^-126, the largest 1.75 * 2^127
        scale = torch.tensor([2.0**exponent])
        assert_same(definition.dequantise(codes, scale, FP32), right * scale)


@pytest.mark.parametrize("rule", RULES)
def test_every_code_survives_a_round_trip(rule):
    # All of them at once: 448 among them makes the power of two in front of it the scale.
    finite = [code for code in range(256) if code & 0x7F != 0x7F]
    codes = torch.tensor(finite, dtype=torch.uint8)
    smallest = -13 if rule in POWERS else -117
    for exponent in (smallest, smallest + 1, -9, -1, 0, 1, 7, 118, 119):
        scales = torch.tensor([2.0**exponent])
        latent = definition.dequantise(codes.view(E4M3), scales, FP32)
        check_codes(latent, len(finite), rule, finite, [2.0**exponent], f"2^{exponent}")


def around_every_middle():
    """Each e4m3 magnitude and each middle, 2 fp32 steps to both sides, quarters; both signs."""
    values = {0.0}
    for low, high in zip(MAGNITUDES, MAGNITUDES[1:], strict=False):
        for eighth in range(9):
            exact = float(low + (high - low) * Fraction(eighth, 8))
            (bits,) = torch.tensor([exact]).view(torch.int32).tolist()
            steps = range(max(bits - 2, 0), bits + 3) if eighth in (0, 4, 8) else (bits,)
            values.update(from_bits(steps, FP32).tolist())
    values.update([2.0**-149, 2.0**-126, 2.0**-10, 2.0**-11, 1e-30, 1e-4])
    inside = sorted(v for v in values if v <= 448)
    return inside + [-v for v in inside]


@pytest.mark.parametrize("rule", RULES)
def test_rounding_to_e4m3_everywhere_it_can_go_wrong(rule):
    # 448 is the largest, so every scale is 1, and nothing but the rounding is left.
    values = around_every_middle()
    assert len(values) > 3000 and values.count(0.0) == 2 and 448.0 in values
    codes = [encoded(value) for value in values]
    assert {code & 0x7F for code in codes} == set(range(0x7F)) and 0x80 in codes
    values += [0.0] * (-len(values) % 4)
    codes += [0] * (len(values) - len(codes))
    check_codes(torch.tensor(values), len(values), rule, codes, [1.0])


def test_ties_by_hand():
    # Between 16 (code 0x58) and 18 (0x59) lies 17; between 0 and 2^-9, and 2^-9 and 2^-8, others.
    values = [448.0, 17.0, 19.0, -17.0, 2.0**-10, 3 * 2.0**-10, 432.0, 2.0**-6 - 2.0**-10]
    codes = [0x7E, 0x58, 0x5A, 0xD8, 0x00, 0x02, 0x7E, 0x08]
    assert [encoded(value) for value in values] == codes
    check_codes(torch.tensor(values), 8, "act_quant", codes, [1.0])


@pytest.mark.parametrize("rule", ["vllm_cuda", "sglang"])
def test_the_largest_of_a_group_is_448(rule):
    # Scale and ratio are rounded, and the ratio may come out above 448: never a NaN.
    latent = random_rows(4096, 1, dtype=FP32).flatten()
    right = check_codes(latent, 1, rule, None, None)
    assert set(bytes_of(right[0]).tolist()) == {0x7E, 0xFE}
    scales = right[1]
    ratio = latent / scales if rule == "vllm_cuda" else latent * (1 / scales)
    assert (ratio.abs() > 448).any() and (ratio.abs() < 448).any()


def bf16_magnitudes():
    """All 32,640 finite ones, 0 first."""
    return from_bits(range(0x7F80), BF16)


@pytest.mark.parametrize("rule", RULES)
def test_the_scale_of_every_bf16_amax(rule):
    # Each magnitude as a group of its own.
    latent = bf16_magnitudes()
    scales = [scale_by_the_rule(amax, rule) for amax in latent.double().tolist()]
    codes, _ = definition.quantise(latent, LatentQuant(1, rule))
    check_codes(latent, 1, rule, bytes_of(codes).tolist(), scales)
    if rule in POWERS:
        assert all(math.frexp(scale)[0] == 0.5 for scale in scales)


@pytest.mark.parametrize("rule", POWERS)
def test_a_scale_is_a_whole_power_up_to_a_bit_above_448(rule):
    # 1.75 * 2^k is 448 * 2^(k - 8): that very power; one bf16 step more needs the next.
    for exponent in range(-4, 100):
        at = torch.tensor([1.75, 1.7578125]) * 2.0**exponent
        _, scales = definition.quantise(at.bfloat16(), LatentQuant(1, rule))
        assert scales.tolist() == [2.0 ** (exponent - 8), 2.0 ** (exponent - 7)]


def test_the_reciprocal_of_448_gives_the_powers_that_division_gives():
    # fp32(1/448) is 2^-24.4 above 1/448: enough to lift a quotient over a power of two, if one lay
    # that near below. No bf16 quotient does; amax = 448 comes back to 1 exactly.
    assert 0 < Fraction(RECIPROCAL) * 448 - 1 < Fraction(1, 2**24)
    for amax in bf16_magnitudes().double().tolist()[1:]:
        if not 2.0**-14 <= amax < 2.0**12:
            continue
        exact = power_from(Fraction(amax) / 448)
        assert power_from(Fraction(rn32(amax * RECIPROCAL))) == exact
        assert power_from(round_fraction(Fraction(amax) / 448, FP32)) == exact


def test_scales_by_hand():
    # Group by group: zero, below both floors, between them, 336 (3/4), 448, just above, the top.
    amax = [0.0, 2.0**-14, 0.03125, 336.0, 448.0, 450.0, 2.0**127]
    right = {
        "act_quant": [2.0**-22, 2.0**-22, 2.0**-13, 1.0, 1.0, 2.0, 2.0**119],
        "flashmla": [2.0**-13, 2.0**-13, 2.0**-13, 1.0, 1.0, 2.0, 2.0**119],
        "vllm_cuda": [
            2.0**-126,
            2.0**-14 / 448,
            0.03125 / 448,
            0.75,
            1.0,
            450 / 448,
            2.0**127 / 448,
        ],
        "sglang": [0.0, 2.0**-14 / 448, 0.03125 / 448, 0.75, 1.0, 450 / 448, 2.0**127 / 448],
    }
    right["vllm_fused"] = right["flashmla"]
    for rule, scales in right.items():
        latent = torch.tensor(amax).repeat_interleave(2) * torch.tensor([1.0, -0.5]).repeat(7)
        actual = check_codes(latent, 2, rule, None, None)
        assert_same(actual[1], torch.tensor(scales), rule)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_a_group_of_zeros(dtype, rule):
    latent = torch.tensor([0.0, -0.0, 0.0, 0.0, 1.0, -2.0, 3.0, -0.0], dtype=dtype)
    if rule == "sglang":  # 0 * (1 / 0)
        codes, scale, values = [0x7F] * 4, 0.0, [math.nan] * 4
    else:
        codes, values = [0, 0x80, 0, 0], [0.0, -0.0, 0.0, 0.0]
        scale = {"act_quant": 2.0**-22, "vllm_cuda": 2.0**-126}.get(rule, 2.0**-13)
    right = check_codes(latent, 4, rule, None, None)
    assert bytes_of(right[0])[:4].tolist() == codes and right[1][0] == scale
    back = definition.dequantise(*right, dtype)
    assert_same(back[:4], torch.tensor(values, dtype=dtype))
    assert back[4:].isfinite().all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("special", [math.inf, -math.inf, math.nan, -math.nan])
def test_an_infinity_or_a_nan_is_its_groups_alone(special, rule):
    # In each place of a vector and of its tail; 35 is one vector of 32 and a rest.
    rows = random_rows(3, 35, dtype=FP32)
    untouched = definition.quantise(rows.flatten(), LatentQuant(35, rule))
    for place in range(35):
        latent = rows.clone()
        latent[1, place] = special
        latent = torch.cat([latent.flatten(), rows[0]])  # 140: divisible by 4, as records are
        codes, scales = check_codes(latent, 35, rule, None, None)
        codes = bytes_of(codes)
        assert codes[35:70].tolist() == [0x7F] * 35 and scales[1].isnan()
        assert_same(codes[:35], bytes_of(untouched[0])[:35])
        assert_same(codes[70:105], bytes_of(untouched[0])[70:])
        assert_same(scales[[0, 2]], untouched[1][[0, 2]])
        for dtype in DTYPES:
            back = definition.dequantise(codes.view(E4M3), scales, dtype)
            assert back[35:70].isnan().all() and not back[:35].isnan().any()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=name_of)
def test_the_top_of_the_range(dtype, rule):
    # A power-of-two scale rounds the largest number up to 256 scales, which the format lacks.
    latent = torch.full((4,), torch.finfo(dtype).max, dtype=dtype)
    right = check_codes(latent, 4, rule, None, None)
    values = definition.dequantise(*right, dtype)
    if rule in POWERS:
        assert bytes_of(right[0]).tolist() == [0x78] * 4 and decoded(0x78) == 256
        assert values.tolist() == [math.inf] * 4
    else:
        assert bytes_of(right[0]).tolist() == [0x7E] * 4
        assert_same(values, latent)
    contract = path(4, 0, rule=rule, group=4, eps=2.0**-126)
    actual, _ = latentkv.compress_kv(torch.ones(4, dtype=dtype), latent, contract, None)
    assert_same(actual, values)


def test_the_fused_rule_takes_the_latent_before_it_is_rounded():
    # 17 + 2^-10 is nearer to 18 than to 16; rounded to bf16 it is 17, a tie, which goes to 16.
    gain = torch.tensor([448.0, 17 + 2.0**-10, 1.0, 1.0])
    ones = torch.ones(4, dtype=BF16)
    for rule, value in (("vllm_fused", 18.0), ("flashmla", 16.0)):
        contract = path(4, 0, "gain_then_cast", rule=rule, group=4, eps=2.0**-126)
        for compute in (latentkv.compress_kv, definition.compress_kv):
            latent, _ = compute(ones, gain, contract, None)
            assert latent.dtype == BF16 and latent.tolist() == [448.0, value, 1.0, 1.0]
    # The other order, where the product of two bf16 values is what bf16 would round.
    down = random_rows(257, 512, seed=4)
    gain = random_gain(512)
    fused, flashmla = (
        latentkv.compress_kv(down, gain, path(512, 0, rule=rule, group=128), None)[0]
        for rule in ("vllm_fused", "flashmla")
    )
    share = (fused != flashmla).double().mean().item()
    # bf16 has 4 bits more than e4m3: one value in 16 rounds to a tie, and half of those come from
    # the side that the tie doesn't go to. 1 in 32, by 4 standard deviations of 131,584 values and
    # a few ties less, where codes are subnormal.
    assert abs(share - 1 / 32) < 0.002


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_values_are_rounded_twice(dtype, rule):
    # code * scale to fp32 and then to the dtype, as the words say; scales of 24 bits show it.
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 0x7F, (4, 128), generator=generator, dtype=torch.uint8)
    scales = torch.rand(4, 4, generator=generator) * 2.0 ** torch.tensor([-20.0, -4.0, 0.0, 3.0])
    values = definition.dequantise(codes.view(E4M3), scales, dtype)
    every = scales.repeat_interleave(32, -1).flatten().tolist()
    right = [
        round_float(rn32(decoded(code) * scale), dtype)
        for code, scale in zip(codes.flatten().tolist(), every, strict=True)
    ]
    assert_same(values, torch.tensor(right, dtype=torch.float64).to(dtype).view(4, 128))
    # and so does the kernel: its values are those of its own codes and scales
    gain = (random_rows(8, 64, dtype=FP32, seed=6).flatten()).to(dtype)
    codes, scales = definition.quantise(gain, LatentQuant(64, rule))
    contract = path(512, 0, rule=rule, group=64, eps=2.0**-126)

    def on(name):
        actual, _ = latentkv.compress_kv(torch.ones(512, dtype=dtype), gain, contract, None)
        assert_same(actual, definition.dequantise(codes, scales, dtype), name)

    on_each_instruction_set(on)


def moderate():
    return st.floats(-1000, 1000, width=32)


@st.composite
def groups(draw):
    size = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["any", "moderate", "small"]))
    values = {
        "any": st.integers(0, 2**32 - 1).map(lambda bits: from_bits([bits], FP32).item()),
        "moderate": moderate(),
        "small": moderate().map(lambda v: rn32(v * 2.0**-135)),
    }[kind]
    return draw(st.lists(values, min_size=size, max_size=size)), draw(st.sampled_from(RULES))


@given(groups())
@settings(max_examples=400, deadline=None)
def test_any_group_against_fractions(sample):
    # Every bit pattern: NaN, infinities, subnormals, quotients that vanish, reciprocals that don't
    # fit; where the scale is a subnormal number, the ratio is far from 448.
    values, rule = sample
    codes, scale = group_by_the_rule(values, rule)
    check_codes(torch.tensor(values), len(values), rule, codes, [scale], str(values))


@pytest.mark.parametrize("rule", RULES)
def test_latents_of_a_model_against_fractions(rule):
    # 512 features in groups of 128, as the norm gives them, in bf16.
    latent = definition.rms_norm(random_rows(512), random_gain(512), path(512, 0).norm)
    codes, scales = [], []
    for group in latent.view(4, 128).tolist():
        of_group, scale = group_by_the_rule(group, rule)
        codes += of_group
        scales.append(scale)
    check_codes(latent, 128, rule, codes, scales)


def test_shapes_and_memory():
    latent = random_rows(2, 3, 640)[..., 100:612].transpose(0, 1)
    codes, scales = definition.quantise(latent, LatentQuant(128, "act_quant"))
    assert codes.shape == (3, 2, 512) and codes.dtype == E4M3 and codes.is_contiguous()
    assert scales.shape == (3, 2, 4) and scales.dtype == FP32 and scales.is_contiguous()
    values = definition.dequantise(codes, scales, BF16)
    assert values.shape == (3, 2, 512) and values.dtype == BF16 and values.is_contiguous()
    for row in range(3):
        alone = definition.quantise(latent[row, 1].clone(), LatentQuant(128, "act_quant"))
        assert_same(bytes_of(alone[0]), bytes_of(codes)[row, 1])
        assert_same(alone[1], scales[row, 1])
