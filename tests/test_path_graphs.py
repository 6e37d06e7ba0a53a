"""What autograd keeps of the path, its transforms, and the derivatives that are refused."""

import pytest
import torch
from helpers import ORDERS, PAIRS, assert_same, name_of, random_rows
from kv_gradients import Case
from kv_rows import ALL_RULES, ROTATIONS, path
from torch.utils.checkpoint import checkpoint

import latentkv
from latentkv import definition


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
        (first, *_) = torch.autograd.grad(
            output.float().sum(), inputs, create_graph=True, allow_unused=True
        )
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
