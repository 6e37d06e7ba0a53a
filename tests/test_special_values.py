"""Every value of the 16-bit formats, and everything that is not an ordinary number."""

import math
from functools import partial

import pytest
import torch
from helpers import (
    DTYPES,
    ORDERS,
    PAIRS,
    assert_same,
    contract,
    from_bits,
    name_of,
    on_each_instruction_set,
    output_dtype,
    random_gain,
    random_rows,
)

import latentkv
from latentkv import definition

INF, NAN = math.inf, math.nan


def every_value(dtype):
    return from_bits(range(65536), dtype)


def check_all(inputs, right, arrangement, instruction_set):
    x, residual, gain, rule = inputs
    actual = (latentkv.rms_norm(x, gain, rule), *latentkv.add_rms_norm(x, residual, gain, rule))
    for value, expected in zip(actual, right, strict=True):
        assert_same(value, expected, f"{instruction_set}, {arrangement}")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gain_dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name_of)
def test_all_65536_values(dtype, gain_dtype, order):
    values = every_value(dtype)
    shuffled = values[torch.randperm(65536, generator=torch.Generator().manual_seed(0))]
    finite = torch.where(values.isfinite(), values, torch.ones((), dtype=dtype))
    arrangements = {
        "alone": values.view(65536, 1),  # tails only; NaN and infinity keep to themselves
        "beside 1": torch.stack([values, torch.ones_like(values)], -1),
        "in order": values.view(128, 512),  # rows of one magnitude, the last exponents NaN
        "shuffled": shuffled.view(-1, 256),
        "finite": finite.view(512, 128),
        "finite, all magnitudes": finite.view(128, 512).t().contiguous(),
        "scaled to 1": torch.where(finite.abs() < 1, finite, 1).view(-1, 512),
    }
    for name, x in arrangements.items():
        width = x.shape[-1]
        gain, rule = random_gain(width, gain_dtype), contract(width, order)
        residual = random_rows(*x.shape, dtype=dtype)
        inputs = (x, residual, gain, rule)
        right = (definition.rms_norm(x, gain, rule), *definition.add_rms_norm(*inputs))
        on_each_instruction_set(partial(check_all, inputs, right, name))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name_of)
def test_all_65536_gains(instruction_set, dtype, order):
    # Every value as a gain: every result, its rounding and its overflow; in and out of 16 bits.
    gain = every_value(dtype)
    for in_dtype in DTYPES:
        x = random_rows(2, 65536, dtype=in_dtype)
        rule = contract(65536, order)
        assert_same(latentkv.rms_norm(x, gain, rule), definition.rms_norm(x, gain, rule))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=name_of)
def test_stores_round_to_nearest_even(instruction_set, dtype):
    # Sums of a value and half its last place: a tie each, for every finite value of the format.
    values = every_value(dtype)
    values = values[values.isfinite()]
    half = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}[dtype]
    exponents = torch.frexp(values.float())[1].float()
    step = (torch.exp2(exponents) * half).to(dtype)  # exact, or rounded to a value of its own
    rule, gain = contract(1), torch.ones(1, dtype=dtype)
    for residual in (step, -step, torch.nextafter(step, torch.ones_like(step))):
        x, r = values.view(-1, 1), residual.view(-1, 1)
        _, total = latentkv.add_rms_norm(x, r, gain, rule)
        assert_same(total, (x.float() + r.float()).to(dtype))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_subnormals_survive(instruction_set, pair, order):
    # As input (with an eps that leaves them visible), as gain, as result, as sum.
    tiny = {
        torch.bfloat16: 2.0**-133,
        torch.float16: 2.0**-24,
        torch.float32: 2.0**-149,
    }
    smallest, small_gain = tiny[pair[0]], tiny[pair[1]]
    steps = torch.tensor([1.0, -2.0, 3.0, 5.0, 100.0, -127.0, 0.0])
    x = (steps * smallest).to(pair[0])
    ones, ordinary = torch.ones(7, dtype=pair[0]), random_gain(7, pair[1])
    gain = (steps * small_gain).to(pair[1])
    assert (x != 0).sum() == 6 and (gain != 0).sum() == 6
    for eps in (2.0**-126, 1e-6, 1.0):
        rule = contract(7, order, eps)
        for value, scale in ((x, ordinary), (ones, gain), (x, gain)):
            actual = latentkv.rms_norm(value, scale, rule)
            assert_same(actual, definition.rms_norm(value, scale, rule))
        y, total = latentkv.add_rms_norm(x, x, ordinary, rule)
        right_y, right_sum = definition.add_rms_norm(x, x, ordinary, rule)
        assert_same(y, right_y)
        assert_same(total, right_sum)
        assert_same(total, (steps * (2 * smallest)).to(pair[0]))
    # eps = 2^-126 makes rstd 2^63: a bf16 or fp32 subnormal becomes an ordinary number.
    scaled = latentkv.rms_norm(x, torch.ones(7, dtype=pair[1]), contract(7, order, 2.0**-126))
    assert (scaled != 0).sum() == 6


@pytest.mark.parametrize("order", ORDERS)
def test_subnormal_results(instruction_set, order):
    # 1 / rms is 2^-7 and the gain 2^-126 * odd: the result keeps its last bits, rounded to even.
    x = torch.ones(1, 8)
    gain = torch.arange(1.0, 9.0) * (1 + 2.0**-20) * 2.0**-126
    y = latentkv.rms_norm(x, gain, contract(8, order, 2.0**14))
    assert_same(y, definition.rms_norm(x, gain, contract(8, order, 2.0**14)))
    assert ((y != 0) & (y.abs() < 2.0**-126)).all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_special_values_anywhere(instruction_set, pair, order):
    # In each position of a vector and of the tail: 35 is two vectors of 16 and a rest.
    width, rule = 35, contract(35, order)
    gain = random_gain(width, pair[1])
    specials = [NAN, INF, -INF, -0.0, torch.finfo(pair[0]).max, torch.finfo(pair[0]).tiny]
    base = random_rows(width, width, dtype=pair[0], seed=8)
    diagonal = torch.eye(width, dtype=torch.bool)
    for special in specials:
        x = base.masked_fill(diagonal, special)
        y = latentkv.rms_norm(x, gain, rule)
        assert_same(y, definition.rms_norm(x, gain, rule), f"{special} in x")
        summed = latentkv.add_rms_norm(base, x, gain, rule)
        for actual, right in zip(summed, definition.add_rms_norm(base, x, gain, rule), strict=True):
            assert_same(actual, right, f"{special} in the residual")
        for i in (0, 15, 16, 34):
            scale = gain.clone()
            scale[i] = special if abs(special) != torch.finfo(pair[0]).max else INF
            y = latentkv.rms_norm(base, scale, rule)
            assert_same(y, definition.rms_norm(base, scale, rule), f"{special} in the gain")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_what_the_arithmetic_says_of_them(instruction_set, pair, order):
    # Without the definition: the values by hand.
    gain, rule = torch.full((4,), 1.5).to(pair[1]), contract(4, order)
    out = output_dtype(*pair, order)

    def norm(*values, scale=gain):
        y = latentkv.rms_norm(torch.tensor(values).to(pair[0]), scale, rule)
        assert y.dtype == out
        return y.tolist()

    def same(actual, expected):
        assert_same(torch.tensor(actual), torch.tensor(expected))

    same(norm(NAN, 1.0, 2.0, 3.0), [NAN] * 4)  # the row's sum is NaN
    same(norm(INF, 1.0, -1.0, -0.0), [NAN, 0.0, -0.0, -0.0])  # rstd = 0, and inf * 0 = NaN
    same(norm(INF, -INF, 0.0, 0.0), [NAN, NAN, 0.0, 0.0])
    same(norm(0.0, -0.0, 0.0, -0.0), [0.0, -0.0, 0.0, -0.0])  # a zero keeps its sign
    negative = -gain
    same(norm(0.0, -0.0, 0.0, -0.0, scale=negative), [-0.0, 0.0, -0.0, 0.0])  # times the gain's
    special = torch.tensor([INF, -INF, NAN, 1.0]).to(pair[1])
    same(norm(0.0, 0.0, 0.0, 0.0, scale=special), [NAN, NAN, NAN, 0.0])
    same(norm(-1.0, 1.0, 1.0, 1.0, scale=special)[:3], [-INF, -INF, NAN])
    if pair[0] != torch.float16:
        # 2^100 squared overflows fp32: rstd = 0 and the row is zeros, each with its sign.
        same(norm(2.0**100, -(2.0**100), 1.0, -0.0), [0.0, -0.0, 0.0, -0.0])
        # 2^64 squared doesn't quite: the sum does. 2^63 is an ordinary row.
        same(norm(2.0**64, 1.0, 1.0, 1.0), [0.0] * 4)
        same(norm(2.0**63, 0.0, 0.0, 0.0), [3.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("order", ORDERS)
def test_results_overflow_to_infinity(instruction_set, order):
    # Never to the largest number: 2 * 65504 is no fp16, nor is 65520, the tie above 65504.
    x = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=torch.float16)
    gain = torch.tensor([65504.0, 65504.0, 65520.0, 65519.0])  # fp32
    y = latentkv.rms_norm(x, gain, contract(4, order, 2.0**-126))
    expected = [65504.0, -65504.0, INF, 65504.0]
    if order == "cast_then_gain":  # and there the output is fp32
        expected = [65504.0, -65504.0, 65520.0, 65519.0]
    assert y.tolist() == expected
    big = torch.full((4,), torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16)
    y, total = latentkv.add_rms_norm(big, big, torch.ones(4).bfloat16(), contract(4, order))
    assert total.tolist() == [INF] * 4 and y.isnan().all()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pattern", [0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000])
def test_a_nan_stays_one(instruction_set, order, pattern):
    # Rounding on the bit pattern carries 0x7fffffff into -0; dropping 16 bits of 0x7f800001 gives
    # infinity. As a gain, the payload reaches the store unchanged but for the quiet bit.
    nan = from_bits([pattern], torch.float32)
    gain = nan.repeat(33)
    for dtype in DTYPES:
        x = random_rows(2, 33, dtype=dtype)
        assert latentkv.rms_norm(x, gain, contract(33, order)).isnan().all()
        y = latentkv.rms_norm(nan.repeat(2, 33), x[0], contract(33, order))
        assert y.isnan().all()
    for dtype, nans in (
        (torch.bfloat16, [0x7F81, 0x7FFF, 0xFF81, 0xFFFF]),
        (torch.float16, [0x7C01, 0x7FFF, 0xFC01, 0xFFFF]),
    ):
        x = from_bits(nans, dtype).view(-1, 1)
        y, total = latentkv.add_rms_norm(x, x, torch.ones(1, dtype=dtype), contract(1, order))
        assert y.isnan().all() and total.isnan().all()
        assert_same(y, x)  # nor does a neighbour's NaN matter: each row is one value
