"""Where the fast rounding and the fast squares end: magnitudes around every bound in the kernels.

The processor's bf16 instructions flush subnormals, so the kernels use them only where none can
occur. What decides that (elements, gain, sum of squares, eps) is here on both sides of its bound.
"""

import pytest
import torch
from helpers import ORDERS, assert_same, contract, on_each_instruction_set, random_gain, random_rows

import latentkv
from latentkv import definition

BF16, FP32 = torch.bfloat16, torch.float32
WIDTH = 512 + 96 + 5  # a block, whole vectors after it, a rest


def check(x, gain, rule, residual=None):
    if residual is None:
        right = (definition.rms_norm(x, gain, rule),)
    else:
        right = definition.add_rms_norm(x, residual, gain, rule)

    def on(name):
        if residual is None:
            outputs = (latentkv.rms_norm(x, gain, rule),)
        else:
            outputs = latentkv.add_rms_norm(x, residual, gain, rule)
        for value, expected in zip(outputs, right, strict=True):
            assert_same(value, expected, name)

    on_each_instruction_set(on)


def at(exponents, seed):
    """Rows of [2^e, 2^(e+1)), either sign."""
    values = 1 + random_rows(len(exponents), WIDTH, seed=seed).float().abs().frac()
    signs = random_rows(len(exponents), WIDTH, seed=seed + 1).float().sign()
    return (values * signs * torch.exp2(torch.tensor(exponents).float())[:, None]).bfloat16()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gain_exponent", [-126, -64, -33, -32, -31, 0, 19, 60])
def test_rows_and_gains_of_one_magnitude(gain_exponent, order):
    # Four rows of each, since rows are judged four at a time; small eps, so that n is near 1.
    exponents = [e for e in (*range(-130, -57), *range(-34, -29), *range(12, 24)) for _ in range(4)]
    x = at(exponents, 1)
    for dtype in (BF16, FP32):
        gain = at([gain_exponent], 3)[0].to(dtype)
        for eps in (2.0**-126, 1e-6, 2.0**41, 2.0**100):
            check(x, gain, contract(WIDTH, order, eps))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("place", [0, 31, 511, 512, 575, 607, 608, WIDTH - 1])
def test_one_small_element_among_large_ones(place, order):
    # Small after the norm, too, and with the gain maybe subnormal; in every kind of place.
    # Four rows of each, as above; with 13, their sum of squares stays below 2^40.
    small = [e for e in range(-130, -20, 2) for _ in range(4)]
    for large in (0, 13, 30):
        x = at([large] * len(small), 5)
        x[:, place] = torch.exp2(torch.tensor(small).float()).bfloat16() * 1.5
        for gain_exponent in (-20, -33, -54):  # with the last, 2^-129 where x is 2^-62
            gain = at([gain_exponent], 7)[0]
            check(x, gain, contract(WIDTH, order))
            check(x, gain, contract(WIDTH, order), residual=torch.zeros_like(x))


@pytest.mark.parametrize("order", ORDERS)
def test_zeros_among_the_rest(order):
    x = random_rows(12, WIDTH)
    x[1, 3], x[2, 600], x[5], x[9, ::2] = 0.0, -0.0, 0.0, -0.0
    gain = random_gain(WIDTH)
    check(x, gain, contract(WIDTH, order))
    gain[7], gain[WIDTH - 1] = 0.0, -0.0
    check(x, gain, contract(WIDTH, order))
    check(random_rows(8, WIDTH), gain, contract(WIDTH, order))
