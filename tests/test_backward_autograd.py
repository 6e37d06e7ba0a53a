"""Gradients in PyTorch's graphs, at special values, and against fp64 and exact arithmetic."""

import ctypes
import ctypes.util
import math

import pytest
import torch
from gradients import BF16, FORMS, FP32, Case, make
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
    random_gain,
    random_rows,
)
from torch.utils.checkpoint import checkpoint

import latentkv
from latentkv import _library, definition


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
        "import gradients as t\n"
        "from helpers import ORDERS, contract, on_each_instruction_set\n"
        "torch.set_num_threads(1)\n"
        "steps = torch.arange(-256.0, 256.0).repeat(300, 1)\n"
        "cases = [t.Case(steps * 2.0**-149, torch.full((512,), 1.5), contract(512, order, eps),\n"
        "                residual, steps.flip(0, 1) * 2.0**-141, dsum)\n"
        "         for order in ORDERS for eps in (2.0**-126, 1.0)\n"
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
        "on_each_instruction_set(check)\n"
        "assert bool(torch.ones((), dtype=torch.int32).view(torch.float32) * 1 == 0)\n"
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
