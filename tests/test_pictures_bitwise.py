"""The arithmetic that pictures show, against the definition, bit for bit."""

import math

import pytest
import torch
from helpers import ORDERS, assert_same, check_python, contract, from_bits, hex_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from latentkv import bitwise, definition
from latentkv.definition.norm import unrounded_rms_norm

PATTERNS = st.integers(0, 0xFFFF)


def exactly(values, dtype=torch.float32):
    """A tensor of these very values, none rounded on the way."""
    wide = torch.tensor(values, dtype=torch.float64)
    assert_same(wide.to(dtype).double(), wide)
    return wide.to(dtype)


def same(pattern, value):
    """Whether a bf16 pattern is that of ``value``; every NaN is every other."""
    nan = pattern & 0x7F80 == 0x7F80 and pattern & 0x7F
    return math.isnan(value) if nan else bitwise.bf16_bits(value) == pattern


@settings(deadline=None, max_examples=200)
@given(
    patterns=st.lists(st.tuples(PATTERNS, PATTERNS), min_size=1, max_size=40),
    order=st.sampled_from(ORDERS),
    eps=st.sampled_from([1e-6, 1e-5, 2.0**-126, 1.0, 3e38]),
)
def test_any_row_has_the_definitions_bits(patterns, order, eps):
    x, gain = (from_bits(half, torch.bfloat16) for half in zip(*patterns, strict=True))
    stated = contract(len(patterns), order, eps)
    walk = bitwise.rms_norm(x.tolist(), gain.tolist(), stated)
    assert_same(exactly(walk.y, torch.bfloat16), definition.rms_norm(x, gain, stated))
    rho = definition.reciprocal_rms(x, stated)
    assert_same(exactly(walk.rho), rho)
    assert_same(exactly(walk.total), definition.fold(x.float() * x.float()))
    assert_same(exactly(walk.p), unrounded_rms_norm(x, gain, stated))


@pytest.mark.parametrize("order", ORDERS)
def test_each_step_of_a_row_has_the_definitions_bits(order):
    stated = contract(512, order)
    x = torch.randn(512, generator=torch.Generator().manual_seed(7)).bfloat16()
    gain = (torch.rand(512, generator=torch.Generator().manual_seed(8)) + 0.5).bfloat16()
    walk = bitwise.rms_norm(x.tolist(), gain.tolist(), stated)
    a, rho = x.float(), definition.reciprocal_rms(x, stated)
    assert_same(exactly(walk.a), a)
    assert_same(exactly(walk.q), a * a)
    assert_same(exactly(walk.n), a * rho)
    if order == "cast_then_gain":
        assert_same(exactly(walk.h, torch.bfloat16), (a * rho).bfloat16())
    else:
        assert walk.h is None
    mean = torch.tensor(walk.total) / 512
    assert_same(exactly(walk.mean), mean)
    assert_same(exactly(walk.v), mean + torch.tensor(1e-6))
    assert_same(exactly(walk.s), (mean + torch.tensor(1e-6)).double().sqrt().float())


def test_the_sum_is_the_definitions_fold():
    """Of values with all their bits: sums of bf16 squares are often exact in any order."""
    generator = torch.Generator().manual_seed(3)
    for width in (1, 2, 3, 7, 64, 99, 512, 1537):
        values = torch.randn(width, generator=generator)
        assert_same(exactly(bitwise.fold(values.tolist())), definition.fold(values))


@given(st.integers(0, 2**32 - 1))
def test_rounding_to_bf16_is_torchs(pattern):
    value = from_bits([pattern], torch.float32)
    assert same(hex_bits(value.bfloat16())[0], bitwise.bf16(value.item()))
    if not value.isnan():
        assert bitwise.fp32_bits(value.item()) == pattern


def test_rounding_to_bf16_by_hand():
    for pattern, rounded in (
        (0x3F808000, 0x3F80),  # half, to the even one below
        (0x3F818000, 0x3F82),  # half, to the even one above
        (0x3F808001, 0x3F81),
        (0x3F807FFF, 0x3F80),
        (0x7F7FFFFF, 0x7F80),  # beyond the range
        (0x80000001, 0x8000),  # -0 keeps its sign
    ):
        value = from_bits([pattern], torch.float32).item()
        assert bitwise.bf16_bits(bitwise.bf16(value)) == rounded


def test_what_is_no_bf16_row_is_refused():
    stated = contract(2)
    with pytest.raises(ValueError, match="gain has 1 values, the contract's width is 2"):
        bitwise.rms_norm([1.0, 2.0], [1.0], stated)
    with pytest.raises(ValueError, match=r"x\[1\] = 0\.1 is no bf16 value: round it"):
        bitwise.rms_norm([1.0, 0.1], [1.0, 1.0], stated)


def test_it_runs_without_torch():
    done = check_python("import sys, latentkv.bitwise; print('torch' in sys.modules)")
    assert done == "False\n"
