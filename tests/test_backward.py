"""Gradients: the bits of the definition, which in turn is held against autograd in fp64."""

import ctypes
import ctypes.util
import math

import pytest
import torch
from helpers import (
    DTYPES,
    INSTRUCTION_SETS,
    ORDERS,
    PAIRS,
    assert_same,
    check_python,
    contract,
    from_bits,
    name_of,
    on_each_instruction_set,
    output_dtype,
    random_gain,
    random_rows,
)
from torch.utils.checkpoint import checkpoint

import latentkv
from latentkv import _library, definition

# No residual; a residual whose sum is used; one whose sum is not.
FORMS = ("plain", "sum used", "y only")
BF16, FP32 = torch.bfloat16, torch.float32


class Case:
    """One call's tensors: x, residual, gain and the gradients that come from above."""

    def __init__(self, x, gain, rule, residual=None, dy=None, dsum=None):
        self.x, self.gain, self.rule, self.residual = x, gain, rule, residual
        self.dy, self.dsum = dy, dsum

    def inputs(self):
        """What gradients are taken of; fresh views, so that no test changes another's."""
        given = (self.x, self.gain) if self.residual is None else (self.x, self.residual, self.gain)
        return [value.detach().requires_grad_() for value in given]

    def outputs(self, inputs):
        if self.residual is None:
            return (latentkv.rms_norm(*inputs, self.rule),)
        return latentkv.add_rms_norm(*inputs, self.rule)

    def gradients(self):
        """Through the public functions: of x (and the residual) and of the gain."""
        inputs = self.inputs()
        above = [(self.outputs(inputs), (self.dy, self.dsum))]
        used = [(y, d) for ys, ds in above for y, d in zip(ys, ds, strict=False) if d is not None]
        return torch.autograd.grad([y for y, _ in used], inputs, [d for _, d in used])

    def right(self):
        dx, dgain = definition.rms_norm_backward(
            self.dy,
            self.x,
            self.gain,
            definition.reciprocal_rms(self.x, self.rule, self.residual),
            self.rule,
            self.residual,
            self.dsum,
        )
        return (dx, dgain) if self.residual is None else (dx, dx, dgain)

    def check(self, what=""):
        right = self.right()

        def on(name):
            for value, expected, of in zip(
                self.gradients(), right, ("dx", "dgain")[: len(right)] * 2, strict=False
            ):
                assert_same(value, expected, f"{name} {what} {of}")

        on_each_instruction_set(on)


def make(x, pair=(BF16, BF16), order="cast_then_gain", form="plain", dy=None, seed=5):
    """A case around rows of x, in x's shape."""
    gain = random_gain(x.shape[-1], pair[1])
    dtype = output_dtype(x.dtype, pair[1], order)
    above = random_rows(*x.shape, dtype=dtype, seed=seed) if dy is None else dy
    residual = random_rows(*x.shape, dtype=x.dtype, seed=seed + 1) if form != "plain" else None
    dsum = random_rows(*x.shape, dtype=x.dtype, seed=seed + 2) if form == "sum used" else None
    return Case(x, gain, contract(x.shape[-1], order), residual, above, dsum)


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


@pytest.mark.case("F12-04")
@pytest.mark.parametrize("form", FORMS)
def test_gradients_share_no_memory(instruction_set, form):
    case = make(random_rows(9, 576)[:, :512], form=form)
    inputs = case.inputs()
    outputs = case.outputs(inputs)
    above = [d for d in (case.dy, case.dsum) if d is not None]
    torch.autograd.backward(outputs[: len(above)], above)
    grads = [value.grad for value in inputs]
    assert grads[-1].shape == (512,) and grads[-1].any()
    owners = {v.untyped_storage().data_ptr() for v in (*grads, *above, *inputs)}
    assert len(owners) == len(grads) + len(above) + len(inputs)


@pytest.mark.parametrize("form", FORMS)
def test_graphs_kept_and_hooks(instruction_set, form):
    case = make(random_rows(9, 512), form=form)
    right, seen = case.right(), []
    inputs = case.inputs()
    outputs = case.outputs(inputs)
    above = [d for d in (case.dy, case.dsum) if d is not None]
    copies = [d.clone() for d in above]
    outputs[0].register_hook(lambda d: seen.append(d))
    for _ in range(3):  # a kept graph gives the same again, and leaves what came from above alone
        grads = torch.autograd.grad(outputs[: len(above)], inputs, above, retain_graph=True)
        for value, expected in zip(grads, right, strict=True):
            assert_same(value, expected)
    for value, copy in zip(above, copies, strict=True):
        assert_same(value, copy)
    for value in seen:
        assert_same(value, copies[0])
    outputs[0].register_hook(lambda d: d * 2)  # a hook that changes it is heeded
    doubled = torch.autograd.grad(outputs[: len(above)], inputs, above)
    case.dy = case.dy * 2
    for value, expected in zip(doubled, case.right(), strict=True):
        assert_same(value, expected)


@pytest.mark.parametrize("wanted", ["x", "residual", "gain"])
def test_one_input_alone(instruction_set, wanted):
    for form in FORMS if wanted != "residual" else FORMS[1:]:
        case = make(random_rows(9, 512), form=form)
        names = ["x", "gain"] if form == "plain" else ["x", "residual", "gain"]
        inputs = dict(zip(names, case.inputs(), strict=True))
        for name in names:
            inputs[name].requires_grad_(name == wanted)
        outputs = case.outputs(inputs.values())
        above = [d for d in (case.dy, case.dsum) if d is not None]
        if wanted == "gain" and form == "sum used":
            outputs, above = outputs[:1], above[:1]
        torch.autograd.backward(outputs[: len(above)], above)
        assert [name for name in names if inputs[name].grad is not None] == [wanted]
        right = dict(zip(names, case.right(), strict=True))[wanted]
        assert_same(inputs[wanted].grad, right)


def test_the_forward_is_the_same_with_and_without_a_gradient(instruction_set):
    for pair in PAIRS:
        for order in ORDERS:
            case = make(random_rows(7, 576, dtype=pair[0])[:, :130], pair, order, "y only")
            case.x = random_rows(7, 576, dtype=pair[0])[:, :130]
            inputs = case.inputs()
            with_graph = (latentkv.rms_norm(inputs[0], inputs[2], case.rule), *case.outputs(inputs))
            x, residual, gain = (value.detach() for value in inputs)
            without = (
                latentkv.rms_norm(x, gain, case.rule),
                *latentkv.add_rms_norm(x, residual, gain, case.rule),
            )
            for value, expected in zip(with_graph, without, strict=True):
                assert value.requires_grad and not expected.requires_grad
                assert_same(value.detach(), expected)


@pytest.mark.case("F12-12")
@pytest.mark.parametrize("form", ["plain", "y only"])
def test_what_is_kept_for_the_backward(instruction_set, form):
    # Nothing but the inputs, which live anyway, and one fp32 for each row.
    case, kept = make(random_rows(3, 5, 576)[..., :512], form=form), []
    inputs = case.inputs()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        case.outputs(inputs)
    *operands, rstd = kept
    assert [v.data_ptr() for v in operands] == [v.data_ptr() for v in inputs]
    assert [v.stride() for v in operands] == [v.stride() for v in inputs]
    assert_same(rstd, definition.reciprocal_rms(case.x, case.rule, case.residual))
    assert rstd.dtype == FP32 and rstd.shape == (3, 5)
    assert rstd.untyped_storage().nbytes() == 4 * 15


def test_what_was_saved_must_not_change():
    x, gain = random_rows(3, 512).requires_grad_(), random_gain(512)
    y = latentkv.rms_norm(x, gain, contract(512))
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.case("F12-14")
@pytest.mark.parametrize("order", ORDERS)
def test_activation_checkpointing(instruction_set, order):
    rule = contract(512, order)

    def block(x, residual, gain):
        y, total = latentkv.add_rms_norm(x * 2, residual, gain, rule)
        return torch.sigmoid(latentkv.rms_norm(total, gain, rule)) * y

    inputs = [random_rows(7, 512, seed=1), random_rows(7, 512, seed=2), random_gain(512)]
    for value in inputs:
        value.requires_grad_()
    kept = torch.autograd.grad(block(*inputs).sum(), inputs)
    again = torch.autograd.grad(checkpoint(block, *inputs, use_reentrant=False).sum(), inputs)
    for value, expected in zip(again, kept, strict=True):
        assert_same(value, expected)


SPECIAL = {
    # zeros, the smallest and largest subnormal, the smallest normal, 1, the largest, inf, NaN
    BF16: (0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x3F80, 0xC000, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0),
    torch.float16: (0, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xC000, 0x7BFF, 0x7C00, 0xFC00,
                    0x7E00),
    FP32: (0, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x3F800000, 0xC0000000, 0x7F7FFFFF,
           0x7F800000, 0xFF800000, 0x7FFFFFFF),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_special_values(dtype, order):
    # Rows with every value (all of them NaN), with all that is finite, and with what is tiny.
    values = from_bits(SPECIAL[dtype], dtype)
    generator = torch.Generator().manual_seed(0)
    for kinds in (len(values), 8, 5):

        def pick(*shape, kinds=kinds):
            return values[torch.randint(0, kinds, shape, generator=generator)]

        for form in FORMS:
            case = make(pick(13, 131), (dtype, dtype), order, form)
            case.check(f"{kinds} x, {form}")
            case.dy, case.gain = pick(13, 131), pick(131)
            case.check(f"{kinds} x, dy and gain, {form}")
            case.x = random_rows(13, 131, dtype=dtype)
            case.check(f"{kinds} dy and gain, {form}")
            if form == "sum used":
                case.dsum = pick(13, 131)
                case.check(f"{kinds} dsum")


@pytest.mark.parametrize("order", ORDERS)
def test_one_row_never_touches_another(instruction_set, order):
    # But for the gain's gradient, which is theirs together.
    case = make(random_rows(67, 512), order=order)
    dx, _ = case.gradients()
    case.x[::3], case.dy[::3] = math.nan, math.inf
    other, _ = case.gradients()
    keep = torch.arange(67) % 3 != 0
    assert_same(other[keep], dx[keep])
    assert other[::3].isnan().all()


def test_flushing_has_no_effect():
    # In a process of its own: the mode of worker threads can't be taken back.
    check_python(
        "import torch\n"
        "import test_backward as t\n"
        "from helpers import contract\n"
        "torch.set_num_threads(1)\n"
        "steps = torch.arange(-256.0, 256.0).repeat(300, 1)\n"
        "cases = [t.Case(steps * 2.0**-149, torch.full((512,), 1.5), contract(512, order, eps),\n"
        "                residual, steps.flip(0, 1) * 2.0**-141, dsum)\n"
        "         for order in t.ORDERS for eps in (2.0**-126, 1.0)\n"
        "         for residual, dsum in ((None, None), (steps * 2.0**-148, steps * 2.0**-149))]\n"
        "right = [case.right() for case in cases]\n"
        "assert right[2][0].count_nonzero() > 100_000\n"
        "torch.set_num_threads(2)\n"
        "assert torch.set_flush_denormal(True)\n"
        "torch.ones(1_000_000) * 2\n"  # workers start with the mode, and keep it
        "def flushes(): return bool(torch.ones((), dtype=torch.int32).view(torch.float32) == 0)\n"
        "def check(name):\n"
        "    for case, expected in zip(cases, right):\n"
        "        # the operators: autograd's own thread has a mode of its own\n"
        "        for a, b in zip(t.operator(case), expected[-2:]): t.assert_same(a, b, name)\n"
        "        for a, b in zip(case.gradients(), expected): t.assert_same(a, b, name)\n"
        "        for a, b in zip(case.right(), expected): t.assert_same(a, b, 'definition')\n"
        "t.on_each_instruction_set(check)\n"
        "assert bool(torch.ones((), dtype=torch.int32).view(torch.float32) * 1 == 0)\n"
    )


def operator(case):
    """The raw operator: dx and the gain's gradient."""
    rstd = definition.reciprocal_rms(case.x, case.rule, case.residual)
    if case.residual is None:
        return torch.ops.latentkv.rms_norm_bwd(case.dy, case.x, case.gain, rstd, case.rule.order)
    return torch.ops.latentkv.add_rms_norm_bwd(
        case.dy, case.dsum, case.x, case.residual, case.gain, rstd, case.rule.order
    )


@pytest.mark.skipif(_library.backend() != "cpu", reason="the promise is the compiled kernels'")
@pytest.mark.parametrize("direction", [0x400, 0x800, 0xC00], ids=["down", "up", "zero"])
def test_rounding_mode_has_no_effect(direction, threads):
    # x86-64's numbers for fesetround.
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    torch.set_num_threads(2)
    for rows, pair in ((1, (BF16, BF16)), (300, (BF16, BF16)), (300, (FP32, FP32))):
        case = make(random_rows(rows, 512, dtype=pair[0]), pair, form="sum used")
        right = case.right()[-2:]
        for name in INSTRUCTION_SETS:
            with _library.using_instruction_set(name):
                rstd = definition.reciprocal_rms(case.x, case.rule, case.residual)
                before = libm.fegetround()
                libm.fesetround(direction)
                try:
                    grads = torch.ops.latentkv.add_rms_norm_bwd(
                        case.dy, case.dsum, case.x, case.residual, case.gain, rstd, case.rule.order
                    )
                    after = libm.fegetround()
                finally:
                    libm.fesetround(before)
            assert after == direction
            for value, expected in zip(grads, right, strict=True):
                assert_same(value, expected, name)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [1, 5, 512])
def test_the_definition_against_autograd(width, form, order):
    # In fp64, where casts are identities, so both orders are one function. Either side makes at
    # most 2 * 512 + 20 roundings in a row (autograd's sums over the features may be sequential,
    # twice; 20 for the rest), each 2^-53 of at most the terms below: 1.2e-13. A wrong formula is
    # off by 1e-2.
    x, residual = (random_rows(3, 7, width, dtype=torch.float64, seed=s) for s in (1, 2))
    gain, rule = random_gain(width, torch.float64), contract(width, order)
    case = Case(x, gain, rule, residual if form != "plain" else None)
    case.dy = random_rows(3, 7, width, dtype=torch.float64, seed=3)
    case.dsum = random_rows(3, 7, width, dtype=torch.float64, seed=4) if form == FORMS[1] else None
    inputs = case.inputs()
    if form == "plain":
        outputs = (definition.rms_norm(*inputs, rule),)
    else:
        outputs = definition.add_rms_norm(*inputs, rule)
    above = [d for d in (case.dy, case.dsum) if d is not None]
    right = torch.autograd.grad(outputs[: len(above)], inputs, above)
    rstd = definition.reciprocal_rms(x, rule, case.residual).unsqueeze(-1)
    a = x if case.residual is None else x + residual
    n, g = (a * rstd).abs(), (case.dy * gain).abs()
    scale = rstd * (g + n * (g * n).mean(-1, keepdim=True))
    if case.dsum is not None:
        scale = scale + case.dsum.abs()
    *of_rows, dgain = case.right()
    for value, expected in zip(of_rows, right, strict=False):
        assert ((value - expected).abs() <= 1e-12 * scale).all()
    terms = (case.dy.abs() * n).reshape(-1, width).sum(0)
    assert ((dgain - right[-1]).abs() <= 1e-12 * terms).all()


def test_the_definition_is_one_function_in_fp64():
    x, dy = (random_rows(5, 512, dtype=torch.float64, seed=s) for s in (1, 2))
    one, other = (
        Case(x, random_gain(512, torch.float64), contract(512, order), dy=dy).right()
        for order in ORDERS
    )
    for value, expected in zip(one, other, strict=True):
        assert_same(value, expected)


def to_bf16(exact):
    """fp64 to bf16, rounded once: torch goes by way of fp32, which can make a tie of what is none.

    Where that happened, the fp32 value is moved one step toward the exact one.
    """
    near = exact.float()
    tie = (near.view(torch.int32) & 0xFFFF) == 0x8000
    low = tie & (near.double().abs() > exact.abs())
    high = tie & (near.double().abs() < exact.abs())
    return (near.view(torch.int32) + high.int() - low.int()).view(FP32).bfloat16()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", ["plain", "sum used"])
def test_close_to_the_exact_gradient(form, order):
    # docs/numerics.md's promise, on a million elements. "Exact" is fp64 through autograd: its own
    # error, 1e-13, can turn one rounding in 10^10. Zero would be suspicious: fp32 has errors.
    case = make(random_rows(2048, 512), order=order, form=form)
    assert case.x.numel() >= 1_000_000
    wide = contract(512, "gain_then_cast")
    x = case.x.double().requires_grad_()
    gain = case.gain.double()
    if form == "plain":
        outputs, above = (definition.rms_norm(x, gain, wide),), (case.dy.double(),)
    else:
        outputs = definition.add_rms_norm(x, case.residual.double(), gain, wide)
        above = (case.dy.double(), case.dsum.double())
    (exact,) = torch.autograd.grad(outputs, x, above)
    share = case.gradients()[0].ne(to_bf16(exact)).double().mean().item()
    assert 0 < share <= 1e-4, share


@pytest.mark.case("F12-01")
def test_rows_turn_but_do_not_grow():
    # x . dx is 0 but for eps: dx = rstd (g - n mean(g n)), and x = n / rstd with mean(n^2) = 1 -
    # eps rstd^2. A gain applied twice in the second term, or left out, shows only if it is not 1.
    x, dy = (random_rows(64, 512, dtype=FP32, seed=s) for s in (1, 2))
    gain, rule = random_gain(512, FP32), contract(512, eps=1e-6)
    dx, _ = Case(x, gain, rule, dy=dy).gradients()
    rstd = definition.reciprocal_rms(x.double(), rule)
    mean = (dy.double() * gain * x.double()).sum(-1) * rstd
    expected = mean * (1 - rstd**2 * x.double().square().mean(-1))
    scale = (x.double() * dx).abs().sum(-1)
    # dx has relative errors of some 2^-23 per term, of c up to 2^-21 more
    assert (((x.double() * dx).sum(-1) - expected).abs() <= 2.0**-19 * scale).all()


@pytest.mark.case("F12-09")
def test_the_sums_gradient_is_added_after_the_norms():
    # In its shares: what comes through y, and what comes through the sum, unchanged.
    x, residual = (random_rows(7, 512, dtype=FP32, seed=s) for s in (1, 2))
    gain, rule = random_gain(512, FP32), contract(512)
    dy, dsum = (random_rows(7, 512, dtype=FP32, seed=s) for s in (3, 4))
    through_y, _, _ = Case(x, gain, rule, residual, dy).gradients()
    both = Case(x, gain, rule, residual, dy, dsum).gradients()
    assert_same(both[0], through_y + dsum)
    assert_same(both[1], both[0])


def test_accumulation_adds_to_grad():
    case = make(random_rows(5, 512))
    inputs = case.inputs()
    for _ in range(2):
        case.outputs(inputs)[0].backward(case.dy)
    for value, expected in zip(inputs, case.right(), strict=True):
        assert_same(value.grad, expected + expected)


def test_autocast_changes_nothing():
    case = make(random_rows(5, 512), (BF16, FP32), form="sum used")
    with torch.autocast("cpu", dtype=torch.float16):
        grads = case.gradients()
    for value, expected in zip(grads, case.right(), strict=True):
        assert_same(value, expected)


@pytest.fixture
def fresh_graphs():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# Compiling uses what torch and Python call deprecated: as in test_compile.py.
@pytest.mark.case("F13-01")
@pytest.mark.case("F13-02")
@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:torch\.")
@pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated")
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiled_forward_and_backward(fresh_graphs, backend):
    # Between other operations, which inductor fuses; doubling is exact in any order.
    gains = [random_gain(512, seed=s).requires_grad_() for s in (1, 2)]
    first, second = (contract(512, order) for order in ORDERS)

    def block(x, residual, gains):
        y, total = latentkv.add_rms_norm(x[:, :512] * 2, residual, gains[0], first)
        return y * 2, latentkv.rms_norm(total, gains[1], second) * 4

    def run(function, rows):
        x = random_rows(rows, 576, seed=3).requires_grad_()
        residual = random_rows(rows, 512, seed=4).requires_grad_()
        before = residual.detach().clone()
        outputs = function(x, residual, gains)
        above = [random_rows(rows, 512, seed=s) for s in (5, 6)]
        grads = torch.autograd.grad(outputs, (x, residual, *gains), above)
        assert_same(residual.detach(), before)
        return *(value.detach() for value in outputs), *grads

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for rows in (7, 257):
        for value, expected in zip(run(compiled, rows), run(block, rows), strict=True):
            assert_same(value, expected, f"{rows} rows")


OPCHECK = {
    "latent": lambda: random_rows(4, 576)[:, :512],
    "permuted": lambda: random_rows(2, 3, 4, 512).permute(2, 0, 1, 3),
    "row": lambda: random_rows(512),
    "no rows": lambda: random_rows(2, 0, 512),
}


@pytest.mark.case("F13-02")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sample", OPCHECK)
def test_opcheck(sample, order):
    ops, x = torch.ops.latentkv, OPCHECK[sample]()
    for gain in (random_gain(512), random_gain(512, FP32)):
        dy = random_rows(*x.shape, dtype=output_dtype(BF16, gain.dtype, order), seed=1)
        rstd = definition.reciprocal_rms(x, contract(512, order))
        check = torch.library.opcheck
        check(ops.rms_norm_fwd.default, (x, gain, 1e-6, order))
        check(ops.add_rms_norm_fwd.default, (x, x, gain, 1e-6, order))
        check(ops.rms_norm_bwd.default, (dy, x, gain, rstd, order))
        for dsum in (None, x):
            check(ops.add_rms_norm_bwd.default, (dy, dsum, x, x, gain, rstd, order))


@pytest.mark.case("F13-01")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_fakes_tell_the_truth(pair, order):
    for form in FORMS:
        case = make(random_rows(3, 5, 576, dtype=pair[0])[..., :512], pair, order, form)
        right = (*operator(case), *forward(case))
        real = dict(vars(case))
        for name in ("x", "gain", "residual", "dy", "dsum"):
            if real[name] is not None:
                setattr(case, name, real[name].to("meta"))
        for told, true in zip((*operator(case), *forward(case)), right, strict=True):
            assert told.is_meta and told.shape == true.shape and told.dtype == true.dtype
            assert told.stride() == true.stride() and true.is_contiguous()


def forward(case):
    """The raw operator that also gives rstd."""
    numbers = (case.gain, case.rule.eps, case.rule.order)
    if case.residual is None:
        return torch.ops.latentkv.rms_norm_fwd(case.x, *numbers)
    return torch.ops.latentkv.add_rms_norm_fwd(case.x, case.residual, *numbers)


@pytest.mark.parametrize("form", FORMS)
def test_the_operators_give_the_definitions_bits(instruction_set, form):
    # The fused forward's rstd as well.
    for pair in PAIRS:
        for order in ORDERS:
            case = make(random_rows(5, 576, dtype=pair[0])[:, :130], pair, order, form)
            rstd = definition.reciprocal_rms(case.x, case.rule, case.residual)
            assert_same(forward(case)[-1], rstd)
            for value, expected in zip(operator(case), case.right()[-2:], strict=True):
                assert_same(value, expected)


def test_the_operators_refuse():
    # Memory stays safe without autograd in front.
    case = make(random_rows(4, 512), form="sum used")
    rstd = definition.reciprocal_rms(case.x, case.rule, case.residual)
    good = {
        "dy": case.dy, "dsum": case.dsum, "x": case.x, "residual": case.residual,
        "gain": case.gain, "rstd": rstd, "order": "cast_then_gain",
    }  # fmt: skip
    wrong = {
        "dy": (case.dy[:3], case.dy.float(), case.dy[:, :511], random_rows(512, 4).t(),
               case.dy.view(2, 2, 512)),
        "dsum": (case.dsum[:3], case.dsum.float(), random_rows(4, 1).expand(4, 512)),
        "residual": (case.residual[:3], case.residual.float()),
        "gain": (case.gain[:511], case.gain.double()),
        "rstd": (rstd[:3], rstd.double(), rstd.bfloat16(), torch.ones(8)[::2], torch.ones(5)),
        "order": ("gain",),
    }  # fmt: skip
    torch.ops.latentkv.add_rms_norm_bwd(**good)
    for name, values in wrong.items():
        for value in values:
            given = {**good, name: value}
            with pytest.raises((ValueError, TypeError, RuntimeError)):
                torch.ops.latentkv.add_rms_norm_bwd(**given)
            if name in ("dsum", "residual"):
                continue
            del given["dsum"], given["residual"]
            with pytest.raises((ValueError, TypeError, RuntimeError)):
                torch.ops.latentkv.rms_norm_bwd(**given)


def test_on_the_definition():
    # LATENTKV_BACKEND=definition: the same functions, the same bits, under autograd too.
    check_python(
        "import test_backward as t\n"
        "from latentkv import _library\n"
        "assert _library.backend() == 'definition'\n"
        "for order in t.ORDERS:\n"
        "    t.test_every_dtype((t.BF16, t.FP32), order)\n"
        "    t.test_the_gradient_of_a_sum('none', order)\n"
        "t.test_any_leading_strides('permuted', 'sum used')",
        LATENTKV_BACKEND="definition",
    )
