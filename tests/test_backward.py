"""Gradients: the bits of the definition, over shapes, strides, threads and instruction sets."""

import math

import pytest
import torch
from gradients import BF16, FORMS, FP32, Case, make
from helpers import (
    INSTRUCTION_SETS,
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
from latentkv import _library, definition


# 130: more than one block of the sum and a tail; 7 rows: one block of four and a rest of three.
@pytest.mark.case("F12-01")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_every_dtype(pair, order):
    for form in FORMS:
        make(random_rows(7, 130, dtype=pair[0]), pair, order, form).check(form)


# Tails of one to three, the last below a block and a whole one, the models' widths, one past 7168.
@pytest.mark.parametrize("width", [1, 2, 3, 127, 128, 512, 1536, 7169])
def test_widths(width):
    for dtype in (BF16, FP32):
        for order, form in zip(ORDERS, FORMS, strict=False):
            make(random_rows(9, width, dtype=dtype), (dtype, dtype), order, form).check(form)


# Around a block of four rows, and 64 rows, the shortest piece that a thread takes: 1,000 rows are
# 16 of them, 255 to 257 have a last one that is short, whole, and a single row.
@pytest.mark.parametrize("rows", [1, 2, 3, 255, 256, 257, 1000])
def test_rows_and_threads(threads, rows):
    for order, form in zip(ORDERS, ("plain", "sum used"), strict=True):
        case = make(random_rows(rows, 192, dtype=BF16)[:, :128], (BF16, FP32), order, form)
        right = case.right()
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            for name in INSTRUCTION_SETS if rows < 1000 else INSTRUCTION_SETS[:1]:
                with using(name):
                    for value, expected in zip(case.gradients(), right, strict=True):
                        assert_same(value, expected, f"{form} {count} threads {name}")


def using(name):
    """The instruction set for a block; the definition has none."""
    return torch.enable_grad() if name == "none" else _library.using_instruction_set(name)


STRIDED = {
    "latent": lambda: random_rows(67, 576)[:, :512],
    "fused projection": lambda: random_rows(5, 2112)[:, 1536:2048],
    "3-D": lambda: random_rows(3, 7, 576)[..., :512],
    "one row": lambda: random_rows(512),
    "expanded rows": lambda: random_rows(1, 512).expand(66, 512),
    "expanded inside": lambda: random_rows(3, 1, 512).expand(3, 5, 512),
    "permuted": lambda: random_rows(2, 3, 5, 512).permute(2, 0, 1, 3),
    "every second row": lambda: random_rows(10, 512)[::2],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", STRIDED)
def test_any_leading_strides(layout, form):
    # The fold follows the order of the leading dimensions, not that of memory.
    case = make(STRIDED[layout](), form=form)
    if form != "plain":  # strides of its own
        case.residual = random_rows(*case.x.shape[:-1], 600, seed=3)[..., 8:520]
    case.check(layout)


def spread(dtype, *shape):
    """Gradients that no contiguous tensor has: name -> tensor."""
    rows, width = math.prod(shape[:-1]), shape[-1]
    return {
        "one number": torch.full((), 0.75, dtype=dtype).expand(shape),  # as sum().backward() gives
        "one row": random_rows(width, dtype=dtype, seed=1).expand(shape),
        "a column": random_rows(rows, 1, dtype=dtype, seed=2).view(*shape[:-1], 1).expand(shape),
        "transposed": random_rows(width, rows, dtype=dtype, seed=3).t().view(shape),
        "every second": random_rows(*shape[:-1], 2 * width, dtype=dtype, seed=4)[..., ::2],
        "columns of more": random_rows(*shape[:-1], width + 64, dtype=dtype, seed=5)[..., :width],
    }


@pytest.mark.case("F12-06")
@pytest.mark.case("F12-07")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(67, 512), (4, 1), (512,)], ids=str)
def test_any_strides_of_the_gradients(shape, order):
    x = random_rows(*shape)
    for name, dy in spread(BF16, *shape).items():
        for form in FORMS:
            case = make(x, order=order, form=form, dy=dy)
            if form == "sum used":
                case.dsum = spread(BF16, *shape)[name]
            case.check(name)


@pytest.mark.case("F12-06")
@pytest.mark.parametrize("order", ORDERS)
def test_the_gradient_of_a_sum(instruction_set, order):
    x, gain = random_rows(2, 64, 256).requires_grad_(), random_gain(256).requires_grad_()
    latentkv.rms_norm(x, gain, contract(256, order)).sum().backward()
    case = make(x.detach(), order=order, dy=torch.ones(2, 64, 256, dtype=BF16))
    for value, expected in zip((x.grad, gain.grad), case.right(), strict=True):
        assert_same(value, expected)
        assert value.is_contiguous()


def test_a_result_that_is_not_used():
    x, residual, gain = (v.requires_grad_() for v in (*random_rows(2, 5, 512), random_gain(512)))
    y, total = latentkv.add_rms_norm(x, residual, gain, contract(512))
    dsum = random_rows(5, 512, seed=9)
    # The sum alone: its rounding counts as an identity, and the gain has no part in it.
    of_x, of_residual, of_gain = torch.autograd.grad(
        total, (x, residual, gain), dsum, retain_graph=True, allow_unused=True
    )
    assert_same(of_x, dsum)
    assert_same(of_residual, dsum)
    assert of_gain is None or not of_gain.any()
    # y alone: an absent gradient is not a gradient of zeros, which would turn -0 into +0.
    dy = torch.full((5, 512), -0.0, dtype=BF16)
    of_x, _, _ = torch.autograd.grad(y, (x, residual, gain), dy)
    case = Case(x.detach(), gain.detach(), contract(512), residual.detach(), dy)
    assert_same(of_x, case.right()[0])


@pytest.mark.case("F05-04")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [257, 1000])
def test_pieces_fold_to_the_whole(instruction_set, rows, order):
    # An fp32 gain: its gradient is D itself. Pieces of one power of two, the last may be shorter.
    x, gain = random_rows(rows, 576)[:, :512], random_gain(512, FP32)
    dy = random_rows(rows, 512, dtype=output_dtype(BF16, FP32, order), seed=2)
    rule = contract(512, order)
    _, whole = Case(x, gain, rule, dy=dy).gradients()
    for size in (64, 128, 256, 1024):
        pieces = [
            Case(*piece).gradients()[1]
            for piece in (
                (x[i : i + size], gain, rule, None, dy[i : i + size]) for i in range(0, rows, size)
            )
        ]
        assert_same(definition.fold(torch.stack(pieces, -1)), whole, f"pieces of {size}")


@pytest.mark.case("F12-16")
@pytest.mark.parametrize("rows", [1023, 1024, 1025, 4097, 65537])
def test_rows_around_every_length_of_piece(threads, rows):
    # 64 rows in a piece up to 256 per thread, then 128, 256 and so on.
    case = make(random_rows(rows, 8), (BF16, FP32))
    right = case.right()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        for value, expected in zip(case.gradients(), right, strict=True):
            assert_same(value, expected, f"{count} threads")


@pytest.mark.parametrize("order", ORDERS)
def test_a_gain_gradient_known_by_heart(instruction_set, order):
    # 64 rows of ones, gradients 1 to 64: 64 * 65 / 2. One row missing or twice shows.
    x = torch.ones(64, 512, dtype=BF16)
    dy = torch.arange(1.0, 65.0).unsqueeze(-1).expand(64, 512)
    for gain_dtype in (BF16, FP32):
        gain = torch.full((512,), 0.75, dtype=gain_dtype)
        above = dy.to(output_dtype(BF16, gain_dtype, order))
        _, dgain = Case(x, gain, contract(512, order), dy=above).gradients()
        if gain_dtype == BF16 or order == "cast_then_gain":
            assert (dgain == 2080).all()
        else:
            # n is 1 / sqrt(1 + eps), not 1: no cast to bf16 hides that in t or in the result.
            # Half an fp32 rounding (2^-24) off where 4 are allowed; a row too many is 2^-11 off.
            assert dgain.tolist() == pytest.approx([2080 / math.sqrt(1 + 1e-6)] * 512, rel=2**-22)
            assert (dgain < 2080).all()


@pytest.mark.case("F12-02")
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_a_long_sum_does_not_stall(instruction_set, dtype):
    # A running sum in bf16 stalls at 256, one in fp16 at 2,048.
    for rows in (1024, 4096):
        x, gain = torch.ones(rows, 64, dtype=dtype), torch.full((64,), 1.5, dtype=dtype)
        _, dgain = Case(x, gain, contract(64), dy=torch.ones_like(x)).gradients()
        assert (dgain == rows).all()


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=name_of)
def test_outputs_past_the_caches(dtype):
    # Above 16 MiB, y, sum and dx are written past the caches, by other instructions.
    rows = 17 * 2**20 // (512 * dtype.itemsize) + 3
    case = make(random_rows(rows, 576, dtype=dtype)[:, :512], (dtype, dtype), form="sum used")
    case.check()
    right = definition.add_rms_norm(case.x, case.residual, case.gain, case.rule)
    for value, expected in zip(case.outputs(case.inputs()), right, strict=True):
        assert_same(value.detach(), expected)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_no_rows(instruction_set, pair, order):
    for shape in ((0, 512), (3, 0, 512)):
        for form in FORMS:
            case = make(random_rows(*shape, dtype=pair[0]), pair, order, form)
            *of_rows, dgain = case.gradients()
            assert_same(dgain, torch.zeros(512, dtype=pair[1]))  # +0
            for value in of_rows:
                assert value.shape == shape and value.dtype == pair[0]


@pytest.mark.case("F12-17")
def test_zeros_give_zeros(instruction_set):
    for x in (torch.zeros(4), torch.zeros(4, 512), torch.zeros(300, 512, dtype=BF16)):
        for _ in range(10):
            gain = random_gain(x.shape[-1], x.dtype)
            _, dgain = Case(x, gain, contract(x.shape[-1]), dy=torch.ones_like(x)).gradients()
            assert_same(dgain, torch.zeros_like(gain))


@pytest.mark.case("F12-11")
@pytest.mark.parametrize("order", ORDERS)
def test_a_gain_of_zero(instruction_set, order):
    # Recovering n as y / gain would be NaN here.
    for some in (random_gain(512), torch.zeros(512, dtype=BF16)):
        some[3] = 0
        case = Case(random_rows(5, 512), some, contract(512, order), dy=random_rows(5, 512, seed=4))
        for value, expected in zip(case.gradients(), case.right(), strict=True):
            assert value.isfinite().all()
            assert_same(value, expected)
        assert case.gradients()[1][3] != 0
