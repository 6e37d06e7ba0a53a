"""The key-value path's gradients equal the definition's, whatever comes from above."""

import math

import pytest
import torch
from helpers import DTYPES, ORDERS, PAIRS, assert_same, name_of, random_rows
from kv_gradients import Case, backward, forward
from kv_rows import ALL_RULES, K2, ROTATIONS, V32, path, views

from latentkv import definition

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


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


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_a_result_that_is_not_used(instruction_set, rotation):
    case = Case(random_rows(67, 576), path(rotation=rotation))
    down, gain = case.inputs()
    latent, key = case.outputs(down, gain)
    of_down, of_gain = torch.autograd.grad(latent, (down, gain), case.dlatent, retain_graph=True)
    above = case.dlatent, case.dkey
    case.dkey = None
    for value, expected in zip((of_down, of_gain), case.right(), strict=True):
        assert_same(value, expected)
    assert of_down[:, :512].any() and not of_down[:, 512:].any()
    of_down, of_gain = torch.autograd.grad(key, (down, gain), above[1], allow_unused=True)
    case.dlatent, case.dkey = None, above[1]
    assert_same(of_down, case.right()[0])
    assert of_gain is None
    assert not of_down[:, :512].any() and of_down[:, 512:].any()


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
