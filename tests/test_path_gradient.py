"""What the path's gradient is: worked out by hand, in fp64, and straight through the codes."""

import pytest
import torch
from helpers import DTYPES, ORDERS, assert_same, name_of, random_gain, random_rows
from kv_gradients import Case
from kv_rows import ALL_RULES, ROTATIONS, path, some_positions
from oracle import rn32, round_float

import latentkv
from latentkv import definition

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64


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
