"""The contract refuses whatever the arithmetic leaves undefined."""

import dataclasses
import math
import pickle
import struct
from fractions import Fraction

import numpy as np
import pytest
import torch
from helpers import check_python
from hypothesis import given
from hypothesis import strategies as st
from oracle import round_float

from latentkv import NormContract, contracts


def test_is_a_frozen_value():
    one = NormContract(512, 1e-6, "cast_then_gain")
    assert one == NormContract(512, 1e-6, "cast_then_gain")
    assert hash(one) == hash(NormContract(512, 1e-6, "cast_then_gain"))
    assert one != NormContract(512, 1e-6, "gain_then_cast")
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.eps = 1e-5  # type: ignore[misc]
    assert repr(one) == "NormContract(width=512, eps=1e-06, order='cast_then_gain')"


def test_nothing_has_a_default():
    for arguments in ((), (512,), (512, 1e-6)):
        with pytest.raises(TypeError, match="missing"):
            NormContract(*arguments)  # type: ignore[call-arg]


@pytest.mark.parametrize("width", [1, 2, 512, 7169, 2**24])
def test_takes_widths(width):
    assert NormContract(width, 1e-6, "cast_then_gain").width == width


@pytest.mark.parametrize("width", [0, -1, 2**24 + 1])
def test_refuses_widths_outside_the_range(width):
    # Above 2^24 fp32(d) would be rounded, and "S / d" would mean something else.
    with pytest.raises(ValueError, match=rf"width must be between 1 and 2\^24.*got {width}"):
        NormContract(width, 1e-6, "cast_then_gain")


def test_takes_widths_of_other_libraries():
    width = NormContract(np.int64(512), 1e-6, "cast_then_gain").width
    assert type(width) is int and width == 512


@pytest.mark.parametrize("width", [512.0, "512", None, True])
def test_refuses_widths_that_are_no_int(width):
    with pytest.raises(TypeError, match="width must be an int, got"):
        NormContract(width, 1e-6, "cast_then_gain")


@pytest.mark.parametrize(
    "eps", [1e-6, 1e-5, 1, 2.0**-126, 3.4028234663852886e38, np.float32(1e-6), Fraction(1, 3)]
)
def test_takes_eps_and_holds_a_float(eps):
    held = NormContract(512, eps, "cast_then_gain").eps
    assert type(held) is float and held == float(eps)


@pytest.mark.parametrize(
    "eps",
    [0, 0.0, -0.0, -1e-6, 2.0**-127, 1e-300, math.inf, -math.inf, math.nan, 1e39]
    # Rounds to fp32 infinity: half a step above the largest number, which ties away from it.
    + [2.0**128 - 2.0**103, pytest.param(10**400, id="10^400")],
)
def test_refuses_eps_outside_fp32(eps):
    with pytest.raises(ValueError, match=r"fp32\(eps\) must be finite and at least 2\^-126.*got"):
        NormContract(512, eps, "cast_then_gain")


def test_the_range_of_eps_is_that_of_fp32_eps():
    # Just below 2^-126 and just below the overflow tie: both round into the range.
    assert NormContract(1, 2.0**-126 * (1 - 2.0**-40), "cast_then_gain")
    assert NormContract(1, math.nextafter(2.0**128 - 2.0**103, 0), "cast_then_gain")


@pytest.mark.parametrize("eps", [None, "1e-6", True, 1e-6j, [1e-6]])
def test_refuses_eps_that_is_no_number(eps):
    with pytest.raises(TypeError, match="eps must be a real number, got"):
        NormContract(512, eps, "cast_then_gain")


@pytest.mark.parametrize("order", ["", "Cast_then_gain", "gain", None, 0])
def test_refuses_other_orders(order):
    with pytest.raises(ValueError, match="'cast_then_gain', 'gain_then_cast', got"):
        NormContract(512, 1e-6, order)


@given(st.floats(allow_nan=False))
def test_fp32_rounds_to_nearest_even(value):
    mine = contracts.fp32(value)
    assert struct.pack("<d", mine) == struct.pack("<d", round_float(value, torch.float32))


@pytest.mark.parametrize("module", ["latentkv", "latentkv.contracts"])
def test_importing_stays_lean(module):
    # Pages and counts start in a sixth of a second because of this.
    check_python(
        f"import sys, {module}; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )


def test_a_contract_needs_no_torch():
    check_python(
        "import sys, latentkv; latentkv.NormContract(512, 1e-6, 'cast_then_gain'); dir(latentkv)\n"
        "assert 'torch' not in sys.modules"
    )


def test_public_names_are_bound_once():
    check_python(
        "import latentkv\n"
        "assert set(latentkv.__all__) <= set(dir(latentkv))\n"
        "latentkv.rms_norm\n"
        "assert 'rms_norm' in vars(latentkv)\n"
        "try: latentkv.nonsense\n"
        "except AttributeError as error: assert 'nonsense' in str(error)\n"
        "else: raise SystemExit(1)"
    )
