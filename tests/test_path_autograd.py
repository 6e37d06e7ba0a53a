"""Gradients of the key-value path: through norm and rotation, straight through the codes."""

import math

import pytest
import torch
from helpers import (
    DTYPES,
    ORDERS,
    PAIRS,
    assert_same,
    check_python,
    name_of,
    on_each_instruction_set,
    output_dtype,
    random_gain,
    random_rows,
)
from oracle import rn32, round_float
from test_path import ALL_RULES, K2, ROTATIONS, V32, path, some_positions, views
from torch.utils.checkpoint import checkpoint

import latentkv
from latentkv import definition

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


class Case:
    """One call's tensors, and the gradients that come from above."""

    def __init__(self, down, contract, gain_dtype=BF16, positions=None):
        width, leading = contract.norm.width, down.shape[:-1]
        self.down, self.contract = down, contract
        self.gain = random_gain(width, gain_dtype)
        self.positions = some_positions(*leading) if positions is None else positions
        dtype = output_dtype(down.dtype, gain_dtype, contract.norm.order)
        self.dlatent = random_rows(*leading, width, dtype=dtype, seed=5)
        self.dkey = random_rows(*leading, contract.key_width, dtype=down.dtype, seed=6)

    def inputs(self):
        return [value.detach().requires_grad_() for value in (self.down, self.gain)]

    def outputs(self, down, gain):
        return latentkv.compress_kv(down, gain, self.contract, self.positions)

    def gradients(self):
        inputs = self.inputs()
        return torch.autograd.grad(self.outputs(*inputs), inputs, (self.dlatent, self.dkey))

    def right(self):
        return definition.compress_kv_backward(
            self.dlatent, self.dkey, self.down, self.gain, self.contract, self.positions
        )

    def check(self, what=""):
        right = self.right()

        def on(name):
            for value, expected, of in zip(self.gradients(), right, ("down", "gain"), strict=True):
                assert_same(value, expected, f"{name} {what} {of}")

        on_each_instruction_set(on)


# 67 rows are two chunks and a rest, and more than one piece of the gain's fold (64); 126 and 34
# have tails in every vector.
@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_same_bits_as_the_definition(pair, order, rotation):
    contract = path(126, 34, order, rotation)
    Case(random_rows(67, 160, dtype=pair[0]), contract, pair[1]).check()


@pytest.mark.parametrize("model", [K2, V32], ids=["kimi-k2", "deepseek-v3.2-exp"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_the_models_sizes(dtype, model):
    Case(random_rows(33, 576, dtype=dtype), model, dtype).check()


@pytest.mark.parametrize("layout", views())
def test_any_leading_strides(layout):
    down = views()[layout]
    for rotation in ("half_each_step", "interleaved_result"):
        case = Case(down, path(rotation=rotation))
        if (
            layout == "overlapping"
        ):  # a gradient has no one place there: the operator's is asked for
            _, _, rstd = forward(case)
            for value, expected in zip(backward(case, rstd), case.right(), strict=True):
                assert_same(value, expected)
            continue
        case.check(rotation)


def numerics(contract):
    rope, quant = contract.rope, contract.quant
    return (
        contract.norm.eps,
        contract.norm.order,
        f"{rope.layout}_{rope.rounding}" if rope else "",
        quant.rule if quant else "",
        quant.group if quant else 0,
    )


def forward(case):
    """The raw operator that also gives rstd."""
    table = definition.rotary_table(case.contract.rope) if case.contract.rope else None
    return torch.ops.latentkv.compress_kv_fwd(
        case.down, case.gain, case.positions, table, *numerics(case.contract)
    )


def backward(case, rstd):
    table = definition.rotary_table(case.contract.rope) if case.contract.rope else None
    _, order, rope, _, _ = numerics(case.contract)
    return torch.ops.latentkv.compress_kv_bwd(
        case.dlatent, case.dkey, case.down, case.gain, rstd, case.positions, table, order, rope
    )


@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_the_raw_operators(instruction_set, pair, rule):
    # The forward's rstd is the norm's, whether the latent is quantised from bf16 or before.
    for order in ORDERS:
        contract = path(126, 34, order, "half_each_step", rule, 63)
        case = Case(random_rows(67, 160, dtype=pair[0]), contract, pair[1])
        latent, key, rstd = forward(case)
        right = definition.compress_kv(case.down, case.gain, contract, case.positions)
        assert_same(latent, right[0])
        assert_same(key, right[1])
        assert_same(rstd, definition.reciprocal_rms(case.down[:, :126], contract.norm))
        for value, expected in zip(backward(case, rstd), case.right(), strict=True):
            assert value.is_contiguous()
            assert_same(value, expected)


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_the_forward_is_the_same_with_and_without_a_gradient(instruction_set, pair):
    for order in ORDERS:
        for rotation, rule in zip((*ROTATIONS, ""), ALL_RULES, strict=True):
            case = Case(
                random_rows(7, 160, dtype=pair[0]),
                path(126, 34, order, rotation, rule, 63),
                pair[1],
            )
            with_graph = case.outputs(*case.inputs())
            for value, expected in zip(with_graph, case.outputs(case.down, case.gain), strict=True):
                assert value.requires_grad and not expected.requires_grad
                assert_same(value.detach(), expected)


@pytest.mark.parametrize("rule", ALL_RULES[1:])
@pytest.mark.parametrize("order", ORDERS)
def test_straight_through_the_codes(instruction_set, order, rule):
    # The same gradients from above give the same below, with codes between and without.
    down, with_codes, without = random_rows(67, 576), [], []
    for of_rule, grads in ((rule, with_codes), ("", without)):
        case = Case(down, path(order=order, rotation="half_each_step", rule=of_rule, group=128))
        grads += case.gradients()
    for value, expected in zip(with_codes, without, strict=True):
        assert value.any()
        assert_same(value, expected)


@pytest.mark.parametrize("rotation", ROTATIONS[1:])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_a_pair_is_turned_back_rounding_by_rounding(dtype, rotation):
    # dx0 = lo c + hi s and dx1 = hi c - lo s: two products, one sum, one cast, in Python's floats.
    contract = path(2, 8, rotation=rotation)
    case = Case(random_rows(9, 10, dtype=dtype), contract, dtype)
    table = definition.rotary_table(contract.rope)
    if "each_step" in rotation:
        table = table.to(dtype).float()
    ddown, _ = case.gradients()
    for row, position in enumerate(case.positions.tolist()):
        cos, sin = table[position].chunk(2)
        for pair in range(4):
            places = (pair, pair + 4) if "half" in rotation else (2 * pair, 2 * pair + 1)
            lo, hi = (case.dkey[row, place].item() for place in places)
            c, s = cos[pair].item(), sin[pair].item()
            # products of two fp32 are exact in fp64, and so are rn32's roundings of them
            dx0 = rn32(rn32(lo * c) + rn32(hi * s))
            dx1 = rn32(rn32(hi * c) - rn32(lo * s))
            right = [round_float(value, dtype) for value in (dx0, dx1)]
            at = 2 + 2 * pair
            assert_same(ddown[row, at : at + 2], torch.tensor(right, dtype=FP64).to(dtype))


@pytest.mark.parametrize("rotation", ROTATIONS[1:])
def test_the_rotations_gradient_is_its_adjoint(rotation):
    # In fp64 nothing is rounded in between: autograd's two products and one sum are the very bits.
    contract = path(2, 64, rotation=rotation).rope
    table, positions = definition.rotary_table(contract), some_positions(9)
    key = random_rows(9, 64, dtype=FP64).requires_grad_()
    dkey = random_rows(9, 64, dtype=FP64, seed=1)
    turned = definition.rotate(key, positions, contract, table)
    (right,) = torch.autograd.grad(turned, key, dkey)
    assert_same(definition.rotate_backward(dkey, positions, contract, table), right)
    # and <dkey, turn key> = <turn back dkey, key>: 64 products of two roundings each, 2^-53 apart
    one, other = dkey * turned.detach(), right * key.detach()
    bound = 2.0**-45 * (one.abs().sum(-1) + other.abs().sum(-1))
    assert ((one.sum(-1) - other.sum(-1)).abs() <= bound).all()


def test_a_key_that_is_not_rotated_passes_its_gradient_on(instruction_set):
    case = Case(random_rows(9, 576), path())
    ddown, _ = case.gradients()
    assert_same(ddown[:, 512:], case.dkey)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rule", ["", "act_quant"])
def test_the_latents_gradient_is_the_norms(instruction_set, order, rule):
    # As if the norm had been called by itself; the gain's too.
    case = Case(random_rows(67, 576), path(order=order, rule=rule, group=128))
    x = case.down[:, :512].detach().requires_grad_()
    gain = case.gain.detach().requires_grad_()
    norm = latentkv.rms_norm(x, gain, case.contract.norm)
    right = torch.autograd.grad(norm, (x, gain), case.dlatent)
    ddown, dgain = case.gradients()
    assert_same(ddown[:, :512], right[0])
    assert_same(dgain, right[1])


def test_a_gain_gradient_known_by_heart(instruction_set):
    # 64 rows of ones, gradients 1 to 64: 64 * 65 / 2. One row missing or twice shows.
    case = Case(torch.ones(64, 576, dtype=BF16), path(rotation="half_each_step"), FP32)
    case.gain = torch.full((512,), 0.75)
    case.dlatent = torch.arange(1.0, 65.0).unsqueeze(-1).expand(64, 512)
    assert (case.gradients()[1] == 2080).all()


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_a_result_that_is_not_used(instruction_set, rotation):
    case = Case(random_rows(67, 576), path(rotation=rotation))
    down, gain = case.inputs()
    latent, key = case.outputs(down, gain)
    of_down, of_gain = torch.autograd.grad(latent, (down, gain), case.dlatent, retain_graph=True)
    above = case.dlatent, case.dkey
    case.dkey = torch.zeros_like(above[1])
    for value, expected in zip((of_down, of_gain), case.right(), strict=True):
        assert_same(value, expected)
    assert of_down[:, :512].any() and not of_down[:, 512:].any()
    of_down, of_gain = torch.autograd.grad(key, (down, gain), above[1])
    case.dlatent, case.dkey = torch.zeros_like(above[0]), above[1]
    for value, expected in zip((of_down, of_gain), case.right(), strict=True):
        assert_same(value, expected)
    assert not of_down[:, :512].any() and not of_gain.any() and of_down[:, 512:].any()


@pytest.mark.parametrize("wanted", ["down", "gain"])
def test_one_input_alone(instruction_set, wanted):
    case = Case(random_rows(9, 576), path(rotation="half_each_step", rule="act_quant", group=128))
    inputs = dict(zip(("down", "gain"), case.inputs(), strict=True))
    for name, value in inputs.items():
        value.requires_grad_(name == wanted)
    torch.autograd.backward(case.outputs(**inputs), (case.dlatent, case.dkey))
    assert [name for name in inputs if inputs[name].grad is not None] == [wanted]
    right = dict(zip(inputs, case.right(), strict=True))
    assert_same(inputs[wanted].grad, right[wanted])


@pytest.mark.parametrize("rotation", ["", "half_each_step", "interleaved_result"])
def test_gradients_with_any_strides(instruction_set, rotation):
    # As sum().backward() expands them, transposed, sliced, from one row: nothing a kernel assumes.
    case = Case(random_rows(4, 5, 576), path(rotation=rotation))
    latent, key = case.dlatent, case.dkey
    arrangements = {
        "one value": (latent[0, 0, :1].expand(4, 5, 512), key[0, 0, :1].expand(4, 5, 64)),
        "one row": (latent[0, 0].expand(4, 5, 512), key[0, 0].expand(4, 5, 64)),
        "transposed": (latent.mT.contiguous().mT, key.mT.contiguous().mT),
        "rows transposed": (
            latent.transpose(0, 1).contiguous().transpose(0, 1),
            key.transpose(0, 1).contiguous().transpose(0, 1),
        ),
        "every second": (
            latent.repeat_interleave(2, -1)[..., ::2],
            key.repeat_interleave(2, -1)[..., ::2],
        ),
        "slices": (
            torch.cat([key, latent], -1)[..., 64:],
            torch.cat([latent, key, latent], -1)[..., 512:576],
        ),
    }
    for name, (case.dlatent, case.dkey) in arrangements.items():
        assert not case.dkey.is_contiguous()
        actual = case.gradients()
        case.dlatent, case.dkey = case.dlatent.contiguous(), case.dkey.contiguous()
        for value, expected in zip(actual, case.right(), strict=True):
            assert_same(value, expected, name)


def test_backward_of_a_sum(instruction_set):
    case = Case(random_rows(9, 576), path(rotation="half_each_step"))
    inputs = case.inputs()
    sum(value.float().sum() for value in case.outputs(*inputs)).backward()
    case.dlatent, case.dkey = torch.ones_like(case.dlatent), torch.ones_like(case.dkey)
    for value, expected in zip(inputs, case.right(), strict=True):
        assert_same(value.grad, expected)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_special_values(dtype, order):
    # NaN, infinities, zeros, the largest and a subnormal number, in rows and in gradients.
    info = torch.finfo(dtype)
    kinds = torch.tensor([math.nan, math.inf, -math.inf, info.max, 0.0, -0.0, 1.5, info.tiny / 4])
    kinds, generator = kinds.to(dtype), torch.Generator().manual_seed(0)
    for first in (0, 3, 4):  # all of them; all that is finite; none that overflows

        def pick(*shape, first=first):
            return kinds[torch.randint(first, 8, shape, generator=generator)]

        for rotation in ROTATIONS:
            case = Case(pick(33, 160), path(126, 34, order, rotation), dtype)
            case.check(f"{first} rows {rotation}")
            case.dlatent, case.dkey = pick(33, 126).to(case.dlatent.dtype), pick(33, 34)
            case.check(f"{first} rows and gradients {rotation}")


@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_no_rows(instruction_set, pair):
    for shape in ((0, 576), (3, 0, 576)):
        for rotation in ROTATIONS:
            case = Case(random_rows(*shape, dtype=pair[0]), path(rotation=rotation), pair[1])
            ddown, dgain = case.gradients()
            assert ddown.shape == shape and ddown.dtype == pair[0]
            assert_same(dgain, torch.zeros(512, dtype=pair[1]))  # +0


def test_no_key(instruction_set):
    case = Case(random_rows(9, 512), path(512, 0, rule="act_quant", group=128))
    for value, expected in zip(case.gradients(), case.right(), strict=True):
        assert_same(value, expected)


@pytest.mark.parametrize("rotation", ["half_each_step", "interleaved_result"])
def test_any_number_of_threads(threads, rotation):
    case = Case(random_rows(1021, 576), path(rotation=rotation))
    right = case.right()
    for count in (1, 2, 4, 7):
        torch.set_num_threads(count)
        for value, expected in zip(case.gradients(), right, strict=True):
            assert_same(value, expected, f"{count} threads")


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=name_of)
@pytest.mark.parametrize("inside", ["forward", "backward", "both"])
def test_autocast_changes_nothing(dtype, inside):
    case = Case(random_rows(9, 576, dtype=dtype), path(rotation="half_each_step"), FP32)
    inputs = case.inputs()
    with torch.autocast("cpu", dtype=FP16, enabled=inside != "backward"):
        outputs = case.outputs(*inputs)
    with torch.autocast("cpu", dtype=FP16, enabled=inside != "forward"):
        grads = torch.autograd.grad(outputs, inputs, (case.dlatent, case.dkey))
    for value, expected in zip(grads, case.right(), strict=True):
        assert_same(value, expected)


def test_flushing_has_no_effect():
    # In a process of its own: the mode of worker threads can't be taken back.
    check_python(
        "import torch\n"
        "import test_path_autograd as t\n"
        "torch.set_num_threads(1)\n"
        "steps = torch.arange(-288.0, 288.0).repeat(140, 1)\n"
        "cases = []\n"
        "for order in t.ORDERS:\n"
        "    for rotation, eps in zip(t.ROTATIONS[1:], (2.0**-126, 1.0) * 2):\n"
        "        contract = t.path(order=order, rotation=rotation, eps=eps)\n"
        "        case = t.Case(steps * 2.0**-149, contract)\n"
        "        case.gain = torch.full((512,), 1.5)\n"
        "        case.dlatent = steps[:, :512] * 2.0**-148\n"
        "        case.dkey = steps[:, 512:] * 2.0**-149\n"
        "        cases.append(case)\n"
        "right = [case.right() for case in cases]\n"
        "assert all(r[0][:, 512:].count_nonzero() > 8_900 for r in right)\n"
        "assert all(r[0].abs().max() < 2.0**-126 for r in right[1::2])\n"
        "torch.set_num_threads(2)\n"
        "assert torch.set_flush_denormal(True)\n"
        "torch.ones(1_000_000) * 2\n"  # workers start with the mode, and keep it
        "def check(name):\n"
        "    for case, expected in zip(cases, right):\n"
        "        # the operators: autograd's own thread has a mode of its own\n"
        "        rstd = t.definition.reciprocal_rms(case.down[:, :512], case.contract.norm)\n"
        "        for a, b in zip(t.backward(case, rstd), expected): t.assert_same(a, b, name)\n"
        "        for a, b in zip(case.gradients(), expected): t.assert_same(a, b, name)\n"
        "        for a, b in zip(case.right(), expected): t.assert_same(a, b, 'definition')\n"
        "t.on_each_instruction_set(check)\n"
        "assert bool(torch.ones((), dtype=torch.int32).view(torch.float32) * 1 == 0)\n"
    )


def test_what_is_kept_for_the_backward(instruction_set):
    # Nothing but the inputs and the shared table, which live anyway, and one fp32 for each row.
    case = Case(
        random_rows(3, 5, 640)[..., :576], path(rotation="half_each_step", rule="act_quant")
    )
    kept, inputs = [], case.inputs()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        case.outputs(*inputs)
    *operands, table, rstd = kept
    for value, given in zip(operands, (*inputs, case.positions), strict=True):
        assert value.data_ptr() == given.data_ptr() and value.stride() == given.stride()
    assert_same(table, definition.rotary_table(case.contract.rope))
    assert rstd.shape == (3, 5) and rstd.untyped_storage().nbytes() == 4 * 15


def test_what_was_saved_must_not_change():
    case = Case(random_rows(3, 576), path(rotation="half_each_step"))
    inputs = case.inputs()
    outputs = case.outputs(*inputs)
    case.positions += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(outputs, inputs, (case.dlatent, case.dkey))


def test_gradients_share_no_memory_and_graphs_may_be_kept(instruction_set):
    case = Case(random_rows(9, 576), path())
    inputs = case.inputs()
    outputs, above = case.outputs(*inputs), (case.dlatent, case.dkey)
    copies = [value.clone() for value in above]
    first, second = (
        torch.autograd.grad(outputs, inputs, above, retain_graph=True) for _ in range(2)
    )
    for value, again, expected in zip(first, second, case.right(), strict=True):
        assert_same(value, expected)
        assert_same(again, expected)
    for value, copy in zip(above, copies, strict=True):
        assert_same(value, copy)
    owners = {v.untyped_storage().data_ptr() for v in (*first, *second, *above, *inputs)}
    assert len(owners) == 8


def test_activation_checkpointing(instruction_set):
    case = Case(random_rows(9, 576), path(rotation="half_each_step", rule="act_quant", group=128))

    def block(down, gain):
        latent, key = case.outputs(down * 2, gain)
        return torch.sigmoid(latent).sum() + key.sum()

    inputs = case.inputs()
    kept = torch.autograd.grad(block(*inputs), inputs)
    again = torch.autograd.grad(checkpoint(block, *inputs, use_reentrant=False), inputs)
    for value, expected in zip(again, kept, strict=True):
        assert_same(value, expected)


@pytest.mark.parametrize("rule", ["", "act_quant"])
def test_a_second_derivative_is_refused(rule):
    # Even of the key, which is linear: its gradient would not be wrong, but the latent's would.
    case = Case(random_rows(3, 576), path(rotation="half_each_step", rule=rule, group=128))
    inputs = case.inputs()
    for output in case.outputs(*inputs):
        (first, *_) = torch.autograd.grad(output.float().sum(), inputs, create_graph=True)
        with pytest.raises(NotImplementedError, match="first derivatives only"):
            first.sum().backward(retain_graph=True)


@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:torch\.")
def test_forward_mode_is_refused():
    case = Case(random_rows(3, 576), path(rotation="half_each_step"))
    for requires_grad in (False, True):
        down, gain = (v.detach().requires_grad_(requires_grad) for v in (case.down, case.gain))
        for dual_gain in (False, True):
            with torch.autograd.forward_ad.dual_level():
                make = torch.autograd.forward_ad.make_dual
                given = (down, make(gain, gain.detach())) if dual_gain else (
                    make(down, down.detach()), gain
                )  # fmt: skip
                with pytest.raises((NotImplementedError, RuntimeError), match="forward|jvp"):
                    case.outputs(*given)
    with pytest.raises((NotImplementedError, RuntimeError), match="forward|jvp"):
        torch.func.jvp(lambda down: case.outputs(down, case.gain)[0], (case.down,), (case.down,))
    # a level without tangents is no reason to refuse
    with torch.autograd.forward_ad.dual_level():
        assert_same(case.outputs(case.down, case.gain)[0], case.outputs(case.down, case.gain)[0])


@pytest.mark.parametrize("rule", ["", "vllm_fused"])
def test_transforms(instruction_set, rule):
    # torch.func's grad and vjp, and vmap over rows and over what each row's gradient is.
    case = Case(random_rows(7, 576), path(rotation="half_each_step", rule=rule, group=128))

    def total(down, gain, dlatent, dkey, positions):
        latent, key = latentkv.compress_kv(down, gain, case.contract, positions)
        return (latent.float() * dlatent.float()).sum() + (key.float() * dkey.float()).sum()

    above = (case.dlatent, case.dkey, case.positions)
    both = torch.func.grad(total, argnums=(0, 1))(case.down, case.gain, *above)
    for value, expected in zip(both, case.right(), strict=True):
        assert_same(value, expected)
    _, pull = torch.func.vjp(case.outputs, case.down, case.gain)
    for value, expected in zip(pull((case.dlatent, case.dkey)), case.right(), strict=True):
        assert_same(value, expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet")
def test_vmap():
    case = Case(
        random_rows(4, 7, 576), path(rotation="half_each_step", rule="act_quant", group=128)
    )
    right = case.outputs(case.down, case.gain)

    def alone(down, positions):
        return latentkv.compress_kv(down, case.gain, case.contract, positions)

    for value, expected in zip(
        torch.func.vmap(alone)(case.down, case.positions), right, strict=True
    ):
        assert_same(value, expected)

    def total(down, positions, dlatent, dkey):
        latent, key = alone(down, positions)
        return (latent.float() * dlatent.float()).sum() + (key.float() * dkey.float()).sum()

    above = (case.positions, case.dlatent, case.dkey)
    each = torch.func.vmap(torch.func.grad(total))(case.down, *above)
    assert_same(each, case.right()[0])


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("order", ORDERS)
def test_gradients_of_the_definition(order, rotation):
    # Analytic against finite differences: what fp64 is taken for.
    contract = path(5, 6, order, rotation, eps=1e-3)
    down = random_rows(3, 11, dtype=FP64).requires_grad_()
    gain = random_gain(5, FP64).requires_grad_()
    positions = some_positions(3)
    assert torch.autograd.gradcheck(
        lambda *a: definition.compress_kv(*a, contract, positions), (down, gain)
    )
    # and compress_kv_backward in fp64 is that gradient: autograd's own, but for the order of sums
    dlatent, dkey = (random_rows(3, width, dtype=FP64, seed=width) for width in (5, 6))
    outputs = definition.compress_kv(down, gain, contract, positions)
    right = torch.autograd.grad(outputs, (down, gain), (dlatent, dkey))
    actual = definition.compress_kv_backward(
        dlatent, dkey, down.detach(), gain.detach(), contract, positions
    )
    for value, expected, terms in zip(actual, right, (down, dlatent), strict=True):
        # some 20 roundings of 2^-53, of numbers as large as the largest in sight
        scale = max(value.abs().max().item(), terms.abs().max().item(), 1.0)
        assert (value - expected).abs().max() <= 2.0**-46 * scale
    assert_same(actual[0][:, 5:], right[0][:, 5:])  # the rotation's two products and a sum


def test_the_definition_when_it_is_asked_for():
    check_python(
        "import test_path_autograd as t\n"
        "for rotation in t.ROTATIONS[:2]:\n"
        "    t.test_same_bits_as_the_definition((t.BF16, t.FP32), 'cast_then_gain', rotation)\n"
        "for layout in ('row', 'permuted'): t.test_any_leading_strides(layout)\n"
        "t.test_the_raw_operators('none', (t.BF16, t.BF16), 'vllm_fused')\n"
        "t.test_gradients_with_any_strides('none', 'half_each_step')\n"
        "t.test_forward_mode_is_refused()",
        LATENTKV_BACKEND="definition",
    )
