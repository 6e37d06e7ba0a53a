"""The definition against arithmetic that shares nothing with it: Python floats and fractions."""

import math
import struct

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
    random_gain,
    random_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import chain, divide32, fold, fp32_bits, rn32, sqrt32

from latentkv import definition

# Every shape of tree up to 5 levels; then around powers of two, and the widths of the models.
LENGTHS = [*range(1, 34), 63, 64, 65, 127, 128, 129, 511, 512, 513, 1536, 7168, 7169]


@pytest.mark.parametrize("length", LENGTHS)
def test_fold_adds_neighbours(length):
    # Magnitudes over 2^20, so that every other order of adding rounds differently.
    generator = torch.Generator().manual_seed(length)
    q = torch.randn(3, length, generator=generator)
    q *= torch.exp2(torch.randint(-10, 10, q.shape, generator=generator).float())
    expected = torch.tensor([fold(row) for row in q.tolist()])
    assert_same(definition.fold(q), expected)


@given(st.lists(st.floats(width=32), max_size=40))
@settings(max_examples=300, deadline=None)
def test_fold_of_anything(values):
    # Infinities, NaN, subnormals, both zeros, and overflow on the way.
    q = torch.tensor(values, dtype=torch.float32)
    assert_same(definition.fold(q), torch.tensor(fold(values), dtype=torch.float32))


def test_fold_of_nothing_is_plus_zero():
    for shape in ((0,), (3, 0), (0, 0)):
        assert_same(definition.fold(torch.empty(shape)), torch.zeros(shape[:-1]))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 8])
def test_fold_keeps_minus_zero(length):
    # -0 is the identity of addition, +0 is not: padding with +0 would turn this into +0.
    assert_same(definition.fold(torch.full((length,), -0.0)), torch.tensor(-0.0))


def test_fold_carries_the_last_value_unchanged():
    # (1 + 1) + 2^-24: carried past the first level it is lost in the sum, added earlier it isn't.
    q = torch.tensor([1.0, 2.0**-24, 2.0**-24])
    assert definition.fold(q).item() == rn32(rn32(1.0 + 2.0**-24) + 2.0**-24) == 1.0
    assert definition.fold(q[[1, 2, 0]]).item() == 1.0 + 2.0**-23


def hard_roots():
    """fp32 values whose root lies nearest to a tie: (m + 1/2)^2 = m^2 + m + 1/4, off by c - 1/4.

    m(m + 1) = -c mod 2^23 is solved bit by bit; then m^2 + m + c is a multiple of 2^23 and, where
    the quotient has 24 bits, an fp32 number whose root is m + 1/2 + about (c - 1/4) / 2m.
    """
    for c in range(-400, 401, 2):  # odd c has no solution: m(m + 1) is even
        for m in (0, 1):
            for bit in range(1, 23):
                if (m * (m + 1) + c) % (1 << (bit + 1)):
                    m |= 1 << bit
            m += 1 << 23
            square = m * (m + 1) + c
            assert square % (1 << 23) == 0
            value = square >> 23
            if value < 1 << 24 or value % 2 == 0:
                yield value * 2.0**-23


def rstd_of(v: float, norm=definition.rms_norm) -> float:
    """1 / sqrt(v) as a norm computes it, exactly: eps = v, and one feature too small to count.

    The square 2^-120 vanishes in the sum with eps, and 2^-60 * rstd is exact.
    """
    x = torch.tensor([[2.0**-60]])
    y = norm(x, torch.ones(1), contract(1, "gain_then_cast", v))
    return y.item() * 2.0**60


def test_root_and_reciprocal_are_correctly_rounded():
    hard = list(hard_roots())
    assert len(hard) > 300 and all(rn32(v) == v for v in hard)
    generator = torch.Generator().manual_seed(0)
    # Two binades decide a root, six make sure that no exponent is special.
    random = (torch.rand(1500, generator=generator) * 63 + 1) * 2.0**-20
    for v in hard + random.tolist():
        assert rstd_of(v) == divide32(1.0, sqrt32(v)), v.hex()


def test_the_fp64_root_rounded_is_right_where_it_is_hardest():
    # Why the definition may take torch's root in fp64, which is not correctly rounded itself.
    values = torch.tensor(list(hard_roots()))
    right = torch.tensor([sqrt32(v) for v in values.tolist()])
    assert_same(values.double().sqrt().float(), right)


# Any bit pattern of each format: this is where NaN, infinities, subnormals and overflow meet.
def patterns(dtype):
    return st.integers(0, (1 << (8 * dtype.itemsize)) - 1)


def moderate(dtype):
    return st.floats(-4, 4, width=32).map(lambda v: struct.unpack("<f", struct.pack("<f", v))[0])


@st.composite
def norms(draw):
    in_dtype, gain_dtype = draw(st.sampled_from(PAIRS))
    width = draw(st.integers(1, 20))

    def values(dtype):
        if draw(st.booleans()):
            chosen = draw(st.lists(patterns(dtype), min_size=width, max_size=width))
            return from_bits(chosen, dtype)
        chosen = draw(st.lists(moderate(dtype), min_size=width, max_size=width))
        return torch.tensor(chosen).to(dtype)

    eps = draw(st.sampled_from([1e-6, 1e-5, 2.0**-126, 0.3, 1e30]))
    return (
        values(in_dtype),
        values(in_dtype),
        values(gain_dtype),
        eps,
        draw(st.sampled_from(ORDERS)),
    )


@given(norms())
@settings(max_examples=600, deadline=None)
def test_every_rounding_of_a_row(sample):
    x, residual, gain, eps, order = sample
    rule = contract(len(x), order, eps)
    arguments = (gain.tolist(), eps, order, x.dtype, gain.dtype)
    out = torch.promote_types(x.dtype, gain.dtype) if order == "cast_then_gain" else x.dtype

    y, _ = chain(x.tolist(), *arguments)
    assert_same(definition.rms_norm(x, gain, rule), torch.tensor(y, dtype=out))
    y, total = chain(x.tolist(), *arguments, residual=residual.tolist())
    actual, actual_sum = definition.add_rms_norm(x, residual, gain, rule)
    assert_same(actual, torch.tensor(y, dtype=out))
    assert_same(actual_sum, torch.tensor(total, dtype=x.dtype))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_every_rounding_of_the_latent(pair, order):
    # The width that all three models use, in every pair of dtypes, with and without a residual.
    x, residual = (random_rows(2, 512, dtype=pair[0], seed=s) for s in (3, 4))
    gain = random_gain(512, pair[1])
    y, total = definition.add_rms_norm(x, residual, gain, contract(512, order))
    plain = definition.rms_norm(x, gain, contract(512, order))
    for row in range(2):
        arguments = (gain.tolist(), 1e-6, order, *pair)
        right, _ = chain(x[row].tolist(), *arguments)
        assert_same(plain[row], torch.tensor(right, dtype=plain.dtype))
        right, right_sum = chain(x[row].tolist(), *arguments, residual=residual[row].tolist())
        assert_same(y[row], torch.tensor(right, dtype=y.dtype))
        assert_same(total[row], torch.tensor(right_sum, dtype=x.dtype))


@pytest.mark.parametrize("gain_dtype", DTYPES, ids=name_of)
def test_both_orders_agree_on_fp32_input(gain_dtype):
    x, gain = random_rows(64, 512, dtype=torch.float32), random_gain(512, gain_dtype)
    one = definition.rms_norm(x, gain, contract(512, "cast_then_gain"))
    assert_same(one, definition.rms_norm(x, gain, contract(512, "gain_then_cast")))


@pytest.mark.parametrize("order", ORDERS)
def test_fp64_is_fp64_throughout(order):
    # 1 / (1 + 2^-40) is 1 in fp32 and not in fp64; eps is the fp64 number here.
    x = torch.tensor([[1.0 + 2.0**-40, 1.0]], dtype=torch.float64)
    gain = torch.tensor([1.1, 0.9], dtype=torch.float64)
    y = definition.rms_norm(x, gain, contract(2, order, 1e-6))
    a, b = x[0].tolist()
    rms = math.sqrt((a * a + b * b) / 2 + 1e-6)
    assert y.dtype == torch.float64
    # Three fp64 roundings apart (the quotient instead of the reciprocal): 4 * 2^-53.
    assert y[0].tolist() == pytest.approx([1.1 * a / rms, 0.9 * b / rms], rel=2.0**-51)
    y2, total = definition.add_rms_norm(x, x, gain, contract(2, order, 1e-6))
    assert y2.dtype == total.dtype == torch.float64
    assert_same(total, x * 2)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", [1, 5, 8])
def test_gradients_of_the_definition(order, width):
    # Analytic against finite differences: what fp64 is taken for. 5 has a carry in its fold.
    x, residual = (random_rows(3, width, dtype=torch.float64, seed=s) for s in (1, 2))
    gain = random_gain(width, torch.float64)
    rule = contract(width, order, 1e-3)
    for value in (x, residual, gain):
        value.requires_grad_()
    assert torch.autograd.gradcheck(lambda *a: definition.rms_norm(*a, rule), (x, gain))
    assert torch.autograd.gradcheck(
        lambda *a: definition.add_rms_norm(*a, rule), (x, residual, gain)
    )


def test_refuses_fp64_with_another_dtype():
    with pytest.raises(TypeError, match="float64 x and gain go together"):
        definition.rms_norm(torch.ones(2, dtype=torch.float64), torch.ones(2), contract(2))


def test_takes_any_strides():
    # Only operators want unit stride: the definition is what a copy would be compared with.
    x, gain = random_rows(8, 512).t().contiguous().t(), random_gain(1024)[::2]
    y = definition.rms_norm(x, gain, contract(512))
    assert y.is_contiguous()
    assert_same(y, definition.rms_norm(x.contiguous(), gain.contiguous(), contract(512)))


def test_refuses_to_be_compiled():
    @torch.compile(fullgraph=True, backend="eager")
    def graph(x, gain):
        return definition.rms_norm(x, gain, contract(512))

    with pytest.raises(RuntimeError, match="latentkv.definition can't be compiled"):
        graph(random_rows(2, 512), random_gain(512))


def test_golden_bits_of_one_fp32_row():
    # Three roundings that fp64 would not make, by hand: v = 7/4 + 1e-6, then 1 / s, then times x.
    y = definition.rms_norm(torch.tensor([1.0, 1.0, 1.0, 2.0]), torch.ones(4), contract(4))
    v = rn32(1.75 + rn32(1e-6))
    rstd = divide32(1.0, sqrt32(v))
    assert [fp32_bits(value) for value in y.tolist()] == [fp32_bits(rstd)] * 3 + [
        fp32_bits(2 * rstd)
    ]
