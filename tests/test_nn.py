"""LatentRMSNorm: a module that owns its gain, named as in the checkpoints."""

import copy
import pickle

import pytest
import torch
from helpers import ORDERS, assert_same, contract, random_gain, random_rows

import latentkv
from latentkv import LatentRMSNorm, definition


def make(order="cast_then_gain", dtype=torch.bfloat16):
    module = LatentRMSNorm(contract(512, order), dtype=dtype)
    module.load_state_dict({"weight": random_gain(512, dtype)})
    return module


@pytest.mark.parametrize("order", ORDERS)
def test_computes_its_contract(order):
    module, x = make(order), random_rows(2, 3, 576)[..., :512]
    with torch.inference_mode():
        assert_same(module(x), definition.rms_norm(x, random_gain(512), contract(512, order)))
    assert module.contract == contract(512, order)


@pytest.mark.parametrize("order", ORDERS)
def test_trains_its_gain(order):
    module, x = make(order), random_rows(5, 576)[:, :512].requires_grad_()
    assert module.weight.requires_grad  # as a loaded module has it
    y = module(x)
    with torch.no_grad():
        assert_same(y.detach(), module(x))
    dy = random_rows(5, 512, seed=4)
    y.backward(dy)
    rstd = definition.reciprocal_rms(x.detach(), module.contract)
    dx, dgain = definition.rms_norm_backward(
        dy, x.detach(), module.weight.detach(), rstd, module.contract
    )
    assert_same(x.grad, dx)
    assert_same(module.weight.grad, dgain)
    before = module.weight.detach().clone()
    torch.optim.SGD(module.parameters(), lr=0.5).step()
    assert_same(module.weight.detach(), before - 0.5 * dgain)
    assert not module.requires_grad_(False)(x.detach()).requires_grad


@pytest.mark.case("F13-09")
def test_a_subclass_that_skips_the_constructor():
    class Skips(LatentRMSNorm):
        def __init__(self):
            torch.nn.Module.__init__(self)

    with pytest.raises(AttributeError, match="'Skips' object has no attribute 'weight'"):
        Skips()(random_rows(2, 512))

    class SkipsAll(LatentRMSNorm):
        def __init__(self):
            pass

    with pytest.raises(AttributeError):
        SkipsAll()(random_rows(2, 512))


def test_shows_what_it_computes():
    assert repr(make("gain_then_cast")) == ("LatentRMSNorm(512, eps=1e-06, order='gain_then_cast')")


def test_owns_one_parameter():
    module = make()
    assert list(module.state_dict()) == ["weight"] and not list(module.buffers())
    assert [name for name, _ in module.named_parameters()] == ["weight"]
    assert module.weight.shape == (512,)


def test_starts_at_ones():
    module = LatentRMSNorm(contract(512))
    assert module.weight.dtype == torch.get_default_dtype()
    assert_same(module.weight.detach(), torch.ones(512))
    module.weight.data.fill_(3)
    module.reset_parameters()
    assert_same(module.weight.detach(), torch.ones(512))


def test_loads_a_state_dict():
    source, target = make(), LatentRMSNorm(contract(512), dtype=torch.bfloat16)
    assert target.load_state_dict(source.state_dict()).missing_keys == []
    assert_same(target.weight.detach(), source.weight.detach())
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        target.load_state_dict({"weight": torch.ones(576)})
    with pytest.raises(RuntimeError, match="Missing key.*weight"):
        target.load_state_dict({})
    target.load_state_dict({"weight": torch.full((512,), 0.1)})  # rounds to its own dtype
    assert target.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(clone):
    module, x = make("gain_then_cast"), random_rows(3, 512)
    other = clone(module)
    assert repr(other) == repr(module) and other.contract == module.contract
    assert other.weight.data_ptr() != module.weight.data_ptr()
    with torch.inference_mode():
        assert_same(other(x), module(x))
        other.weight.zero_()
        assert module.weight.ne(0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_moves_between_dtypes(dtype):
    module = make().to(dtype)
    assert module.weight.dtype == dtype
    with torch.inference_mode():
        x = random_rows(3, 512)
        assert_same(module(x), definition.rms_norm(x, module.weight, module.contract))
    assert make().half().weight.dtype == torch.float16


def test_fp64_is_refused_by_name():
    module = LatentRMSNorm(contract(512), dtype=torch.float64).requires_grad_(False)
    with pytest.raises(TypeError, match="float64"):
        module(random_rows(2, 512, dtype=torch.float64))
    with pytest.raises(TypeError, match="gain has dtype float64"):
        module(random_rows(2, 512))


def test_is_built_without_memory():
    with torch.device("meta"):
        module = LatentRMSNorm(contract(512), dtype=torch.bfloat16)
    assert module.weight.is_meta
    assert LatentRMSNorm(contract(512), device="meta").weight.is_meta
    with torch.no_grad():
        assert module(torch.empty(3, 512, dtype=torch.bfloat16, device="meta")).shape == (3, 512)
    module = module.to_empty(device="cpu")
    module.reset_parameters()
    module.load_state_dict({"weight": random_gain(512)})
    with torch.inference_mode():
        x = random_rows(3, 512)
        assert_same(module(x), latentkv.rms_norm(x, random_gain(512), contract(512)))
    assigned = LatentRMSNorm(contract(512), device="meta")
    assigned.load_state_dict({"weight": random_gain(512)}, assign=True)
    assert assigned.weight.dtype == torch.bfloat16 and not assigned.weight.is_meta


@pytest.mark.parametrize("value", [512, None, (512, 1e-6), "kimi-k2"])
def test_wants_a_contract(value):
    with pytest.raises(TypeError, match="contract must be a NormContract, got"):
        LatentRMSNorm(value)


def test_refuses_another_width():
    with torch.inference_mode(), pytest.raises(ValueError, match=r"\(2, 576\).*width, 512"):
        make()(random_rows(2, 576))
