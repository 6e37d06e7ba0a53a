"""F10, F11 and F28: range, dtypes, and oracles that can fail."""

import pytest
import torch
from helpers import (
    DTYPES,
    ORDERS,
    PAIRS,
    assert_same,
    contract,
    name_of,
    output_dtype,
    random_gain,
    random_rows,
)

import latentkv
from latentkv import definition


@pytest.mark.case("F10-01")
@pytest.mark.case("F10-02")
@pytest.mark.case("F10-04")
@pytest.mark.case("F10-06")
@pytest.mark.case("F10-09")
@pytest.mark.parametrize(
    ("dtype", "value", "width"),
    [
        (torch.float16, 300.0, 512),  # its square is no fp16
        (torch.float16, 20.0, 512),  # nor is the sum of 512 squares
        (torch.float16, 256.0, 1536),
        (torch.float32, 20.0, 512),
        (torch.bfloat16, 1.0, 512),  # a running sum in bf16 stalls at 256: 1.414
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_a_constant_row_is_one(instruction_set, dtype, value, width, order):
    x, gain = torch.full((2, width), value, dtype=dtype), torch.ones(width, dtype=dtype)
    assert_same(latentkv.rms_norm(x, gain, contract(width, order)), torch.ones_like(x))


@pytest.mark.case("F11-01")
@pytest.mark.parametrize("order", ORDERS)
def test_an_fp32_gain_is_never_reinterpreted(instruction_set, order):
    x = random_rows(4, 512)
    y = latentkv.rms_norm(x, torch.full((512,), 1.5), contract(512, order))
    assert y.dtype == (torch.float32 if order == "cast_then_gain" else torch.bfloat16)
    same = latentkv.rms_norm(x, torch.full((512,), 1.5).bfloat16(), contract(512, order))
    assert_same(y.bfloat16(), same)  # 1.5 is exact in both


@pytest.mark.case("F11-02")
@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:torch\.")  # torch's own, compiling
def test_a_graph_with_a_residual_and_an_fp32_gain():
    x, residual, gain = random_rows(3, 512), random_rows(3, 512, seed=2), random_gain(512).float()
    for order in ORDERS:
        rule = contract(512, order)

        def block(x, residual, rule=rule):
            added = latentkv.rms_norm(x + residual, gain, rule)
            return added, *latentkv.add_rms_norm(x, residual, gain, rule)

        compiled = torch.compile(block, fullgraph=True)(x, residual)
        for actual, eager in zip(compiled, block(x, residual), strict=True):
            assert_same(actual, eager)


@pytest.mark.case("F11-04")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_each_pair_of_dtypes_has_a_result(instruction_set, pair, order):
    x, gain, rule = (
        random_rows(3, 512, dtype=pair[0]),
        random_gain(512, pair[1]),
        contract(512, order),
    )
    y = latentkv.rms_norm(x, gain, rule)
    assert y.dtype == output_dtype(*pair, order)
    assert_same(y, definition.rms_norm(x, gain, rule))


@pytest.mark.case("F11-06")
def test_autocast_keeps_the_dtype(instruction_set):
    for dtype in DTYPES:
        x, gain = random_rows(3, 512, dtype=dtype), random_gain(512, dtype)
        right = latentkv.rms_norm(x, gain, contract(512))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = latentkv.rms_norm(x, gain, contract(512))
        assert y.dtype == dtype
        assert_same(y, right)


@pytest.mark.case("F11-07")
def test_fp32_inputs_are_not_written(instruction_set):
    x, residual = (random_rows(3, 512, dtype=torch.float32, seed=s) for s in (1, 2))
    copies, gain = (x.clone(), residual.clone()), random_gain(512, torch.float32)
    for compute in (latentkv, definition):
        for order in ORDERS:
            compute.rms_norm(x, gain, contract(512, order))
            y, total = compute.add_rms_norm(x, residual, gain, contract(512, order))
            y.zero_()
            total.zero_()
        assert_same(x, copies[0])
        assert_same(residual, copies[1])


@pytest.mark.case("F11-09")
def test_a_grouped_gain_is_refused():
    with pytest.raises(ValueError, match=r"gain has shape \(2, 512\); it must be 1-D with 512"):
        latentkv.rms_norm(random_rows(5, 2, 512), random_gain(512).repeat(2, 1), contract(512))


@pytest.mark.case("F28-02")
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_the_norm_divides(instruction_set, dtype):
    # x * mean(x^2) would be 8, and a golden function with the same mistake would agree.
    x, gain = torch.full((2, 512), 2.0, dtype=dtype), torch.ones(512, dtype=dtype)
    y = latentkv.rms_norm(x, gain, contract(512))
    # (4 + 1e-6)^-1/2 * 2 = 1 - 1.25e-7: two fp32 steps below 1, and 1 in the 16-bit formats.
    assert (y == (1 - 2.0**-23 if dtype == torch.float32 else 1)).all()
