"""How this project compares: if this were wrong, every other test would be."""

import pytest
import torch
from helpers import DTYPES, from_bits, name_of

from latentkv import bits

INTEGERS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_zeros_differ_and_nans_agree(dtype):
    # Exactly the two things that torch.equal gets wrong for this purpose.
    plus, minus = torch.tensor([0.0], dtype=dtype), torch.tensor([-0.0], dtype=dtype)
    assert torch.equal(plus, minus) and not bits.same_bits(plus, minus)
    nan = torch.tensor([float("nan")], dtype=dtype)
    assert not torch.equal(nan, nan) and bits.same_bits(nan, nan)


def test_every_nan_equals_every_nan():
    # Quiet, signalling, negative, all payload bits set: free by docs/numerics.md.
    nans = from_bits([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFF800001], torch.float32)
    for nan in nans:
        assert bits.same_bits(nan.expand(5), nans)
        assert bits.ulp_distance(nan.expand(5), nans).eq(0).all()
    infinity = torch.full((5,), float("inf"))
    assert bits.differing(nans, infinity).all()
    assert bits.ulp_distance(nans, infinity).eq(torch.iinfo(torch.int64).max).all()


def test_same_bits_wants_shape_and_dtype():
    one = torch.ones(2, 3)
    assert bits.same_bits(one, torch.ones(2, 3))
    assert not bits.same_bits(one, torch.ones(3, 2))
    assert not bits.same_bits(one, torch.ones(6))
    assert not bits.same_bits(one, torch.ones(2, 3, dtype=torch.float64))
    assert bits.same_bits(torch.ones(0, 3), torch.ones(0, 3))


def test_same_bits_sees_one_bit_in_any_layout():
    a = torch.arange(12.0).reshape(3, 4)
    b = a.clone().t().contiguous().t()  # the same values with other strides
    assert bits.same_bits(a, b)
    b[2, 3] = torch.nextafter(b[2, 3], torch.tensor(99.0))
    assert bits.differing(a, b).nonzero().tolist() == [[2, 3]]


@pytest.mark.parametrize(
    "other", [torch.ones(3), torch.ones(2, dtype=torch.float16), torch.ones(2, device="meta")]
)
def test_differing_refuses_what_has_no_answer(other):
    for compare in (bits.differing, bits.ulp_distance):
        with pytest.raises(ValueError, match="can't compare"):
            compare(torch.ones(2), other)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_neighbours_are_one_apart(dtype):
    # From the lowest number through both zeros to infinity, by pattern. All 65,536 of the 16-bit
    # formats; for fp32 the neighbourhood of each border.
    top = 0x7F80 if dtype == torch.bfloat16 else 0x7C00
    sign = 0x8000
    if dtype == torch.float32:
        top, sign = 0x7F800000, 0x80000000
        ups = [*range(3), *range(0x7FFFFE, 0x800003), *range(top - 2, top + 1)]
    else:
        ups = list(range(top + 1))
    ordered = from_bits([sign | p for p in reversed(ups)] + ups, dtype)
    steps = bits.ulp_distance(ordered[1:], ordered[:-1])
    expected = [b - a for a, b in zip(ups, ups[1:], strict=False)]
    assert steps.tolist() == [*reversed(expected), 1, *expected]  # the 1: from -0 to +0


def test_distance_counts_representable_values():
    a = torch.tensor([1.0, 1.0, -1.0, 0.0, -0.0])
    b = torch.tensor([1.0 + 2**-23, 1.0 + 3 * 2**-23, 1.0, 2.0**-149, -(2.0**-149)])
    # -1 to 1: twice the 127 * 2^23 patterns below 1, and the second zero.
    assert bits.ulp_distance(a, b).tolist() == [1, 3, 2 * 127 * 2**23 + 1, 1, 1]
    assert bits.ulp_distance(a, b).dtype == torch.int64


def test_float64_distance_never_turns_small():
    # Between 2 and -2 lie 2^63 + 1 fp64 values, more than int64 holds: it may saturate, not wrap.
    a = torch.tensor([2.0, float("inf"), 1.0], dtype=torch.float64)
    distance = bits.ulp_distance(a, -a)
    assert distance[0] == distance[1] == torch.iinfo(torch.int64).max
    assert distance[2].item() == 2 * 1023 * 2**52 + 1
    assert bits.ulp_distance(-a, a).tolist() == distance.tolist()
