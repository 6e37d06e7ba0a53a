"""KVCompression: the checkpoint's parameters, and the path's own bits."""

import copy
import dataclasses
import pickle

import pytest
import torch
from helpers import assert_same, random_gain, random_rows
from kv_rows import K2, K3, V32

import latentkv
from latentkv import KVCompression, LatentCache, LatentQuant, _plans, models

CONTRACTS = {"K2": K2, "K3": K3, "V3.2": V32}
HIDDEN, POSITIONS = random_rows(5, 96), torch.tensor([0, 7, 1000, 3, 131_071])
NAMES = {"kv_a_proj_with_mqa.weight": (576, 96), "kv_a_layernorm.weight": (512,)}


def make(rule=K2, dtype=torch.bfloat16):
    module = KVCompression(rule, 96, dtype=dtype)
    with torch.no_grad():
        module.kv_a_proj_with_mqa.weight.copy_(random_rows(576, 96, seed=2) / 8)
        module.kv_a_layernorm.weight.copy_(random_gain(512))
    return module


def by_hand(module, hidden, positions, rule):
    """From the state dict alone, as a checkpoint names it."""
    state = module.state_dict()
    down = torch.nn.functional.linear(hidden, state["kv_a_proj_with_mqa.weight"])
    return latentkv.compress_kv(down, state["kv_a_layernorm.weight"], rule, positions)


def test_parameters_as_in_the_checkpoint():
    module = KVCompression(K2, 96)
    assert {n: tuple(p.shape) for n, p in module.named_parameters()} == NAMES
    assert list(module.state_dict()) == list(NAMES) and not list(module.buffers())
    assert module.kv_a_proj_with_mqa.bias is None
    assert all(p.requires_grad and p.dtype == torch.float32 for p in module.parameters())
    assert module.kv_a_layernorm.weight.eq(1).all()
    model = models.get("kimi-k2")
    full = KVCompression(model.kv, model.hidden_size.value, device="meta", dtype=torch.bfloat16)
    assert full.kv_a_proj_with_mqa.weight.shape == (model.down_width, 7168)
    assert full.kv_a_proj_with_mqa.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("shape", [(5,), (1, 5), (5, 1)])
@pytest.mark.parametrize("rule", CONTRACTS.values(), ids=CONTRACTS)
def test_forward_is_the_path_of_the_projection(rule, shape):
    module, hidden, positions = make(rule), HIDDEN.view(*shape, 96), POSITIONS.view(shape)
    for mode in (torch.enable_grad, torch.inference_mode):
        with mode():
            actual = module(hidden, positions)
        for one, right in zip(actual, by_hand(module, hidden, positions, rule), strict=True):
            assert_same(one.detach(), right)
    assert actual[0].shape == (*shape, 512) and actual[1].shape == (*shape, 64)
    if rule is K3:
        assert_same(module(hidden, None)[1].detach(), actual[1])


@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "fp8"])
@pytest.mark.parametrize("rule", CONTRACTS.values(), ids=CONTRACTS)
def test_write_is_forward_into_slots(rule, fp8):
    if fp8 and rule.quant is None:
        rule = dataclasses.replace(rule, quant=LatentQuant(128, "vllm_fused"))
    module = make(rule)
    cache = LatentCache.fp8(rule, 1) if fp8 else LatentCache.paged(rule, 3, 7)
    slots = torch.tensor([20, 0, -1, 9, 3])
    module.write(cache, HIDDEN, POSITIONS, slots)
    assert not cache.records.requires_grad
    latent, key = (part.detach() for part in module(HIDDEN, POSITIONS))
    kept = slots >= 0
    back = cache.gather(slots)
    for read, right in zip(back, (latent, key), strict=True):
        assert_same(read[kept], right[kept])
        assert not read[~kept].any()
    module.write(cache, HIDDEN, POSITIONS, slots)  # the cache is no part of a graph
    assert all(p.grad is None for p in module.parameters())


def test_gradients_reach_both_weights_and_the_hidden_state():
    module = make(K2, torch.float32)
    hidden = HIDDEN.float().requires_grad_()
    latent, key = module(hidden, POSITIONS)
    (latent.square().sum() + (key * torch.arange(64)).sum()).backward()
    for value in (hidden, *module.parameters()):
        assert value.grad is not None and value.grad.isfinite().all() and value.grad.any()
    # The projection's gradient by hand, from the path's own.
    down = module.kv_a_proj_with_mqa(HIDDEN.float()).detach().requires_grad_()
    gain = module.kv_a_layernorm.weight.detach().clone().requires_grad_()
    latent, key = latentkv.compress_kv(down, gain, K2, POSITIONS)
    (latent.square().sum() + (key * torch.arange(64)).sum()).backward()
    assert_same(module.kv_a_layernorm.weight.grad, gain.grad)
    torch.testing.assert_close(  # a matrix product fixes no order of its sums
        module.kv_a_proj_with_mqa.weight.grad, down.grad.t() @ HIDDEN.float(), rtol=1e-5, atol=1e-4
    )
    # The key alone leaves the norm's gain where it is; the latent alone leaves the key's rows.
    module.zero_grad()
    module(HIDDEN.float(), POSITIONS)[1].sum().backward()
    assert module.kv_a_layernorm.weight.grad is None
    assert not module.kv_a_proj_with_mqa.weight.grad[:512].any()
    assert module.kv_a_proj_with_mqa.weight.grad[512:].any()


@pytest.mark.parametrize("value", [None, 512, "kimi-k2", K2.norm, K2.rope])
def test_wants_a_contract(value):
    with pytest.raises(TypeError, match="contract must be a KVContract, got"):
        KVCompression(value, 96)


def test_bad_input_is_the_paths_error():
    module = make()
    with pytest.raises(TypeError, match="positions are missing: this contract rotates"):
        module(HIDDEN, None)
    with pytest.raises(ValueError, match="positions run from 1 to 131072"):
        module(HIDDEN, POSITIONS + 1)
    cache = LatentCache.paged(K3, 3, 7)
    with pytest.raises(
        ValueError, match="made for another contract than this module's: its rope is None"
    ):
        module.write(cache, HIDDEN, POSITIONS, torch.arange(5))
    own = LatentCache.paged(K2, 3, 7)
    with pytest.raises(ValueError, match="slot 21 is out of range"):
        module.write(own, HIDDEN, POSITIONS, torch.tensor([0, 1, 2, 3, 21]))
    assert not cache.records.any() and not own.records.any()


def test_an_equal_contract_is_the_same_contract():
    # Made anew from its parts: what counts is what it says.
    other = dataclasses.replace(K2, rope=dataclasses.replace(K2.rope))
    assert other is not K2 and other == K2
    cache, right = LatentCache.paged(other, 3, 7), LatentCache.paged(K2, 3, 7)
    for each in (cache, right):
        make().write(each, HIDDEN, POSITIONS, torch.arange(5))
    assert right.records.any()
    assert_same(cache.records, right.records)


def test_loads_a_state_dict():
    source, target = make(), KVCompression(K2, 96, dtype=torch.bfloat16)
    missing = target.load_state_dict(source.state_dict())
    assert missing.missing_keys == missing.unexpected_keys == []
    for one, right in zip(target(HIDDEN, POSITIONS), source(HIDDEN, POSITIONS), strict=True):
        assert_same(one.detach(), right.detach())
    with pytest.raises(RuntimeError, match="size mismatch for kv_a_layernorm.weight"):
        target.load_state_dict({**source.state_dict(), "kv_a_layernorm.weight": torch.ones(576)})


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(clone):
    module = make(V32)
    module(HIDDEN, POSITIONS)  # a table is in use
    other = clone(module)
    assert other.contract == module.contract and list(other.state_dict()) == list(NAMES)
    right = [part.detach() for part in module(HIDDEN, POSITIONS)]
    with torch.no_grad():
        module.kv_a_layernorm.weight.zero_()
    for one, before in zip(other(HIDDEN, POSITIONS), right, strict=True):
        assert_same(one.detach(), before)


def test_is_built_without_memory():
    with torch.device("meta"):
        module = KVCompression(K2, 96, dtype=torch.bfloat16)
    assert all(p.is_meta for p in module.parameters())
    with torch.no_grad():
        latent, key = module(HIDDEN.to("meta"), POSITIONS.to("meta"))
    assert (latent.shape, key.shape, latent.device.type) == ((5, 512), (5, 64), "meta")
    module = module.to_empty(device="cpu")
    module.load_state_dict(make().state_dict())
    for one, right in zip(module(HIDDEN, POSITIONS), make()(HIDDEN, POSITIONS), strict=True):
        assert_same(one.detach(), right.detach())


def test_the_rotary_table_is_shared_and_not_a_parameter():
    # One tensor for all modules of equal contracts, each made anew from its parts, as layers are.
    rope = dataclasses.replace(K2.rope, max_positions=2000)
    modules = [make(dataclasses.replace(K2, rope=dataclasses.replace(rope))) for _ in range(3)]
    for module in modules:
        module(HIDDEN, POSITIONS % 2000)
        cache = LatentCache.paged(module.contract, 1, 7)
        module.write(cache, HIDDEN, POSITIONS % 2000, torch.arange(5))
        assert sum(p.numel() for p in module.state_dict().values()) == 576 * 96 + 512
    device = torch.device("cpu")
    in_use = [_plans.plan_of(module.contract).tables[device] for module in modules]
    assert len({id(module.contract) for module in modules}) == 3
    assert {table.data_ptr() for table in in_use} == {_plans.shared_table(rope, device).data_ptr()}
    assert in_use[0].shape == (2000, 64)


@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:torch\.")  # torch's own, compiling
@pytest.mark.parametrize("rule", CONTRACTS.values(), ids=CONTRACTS)
def test_compiled_bits(rule):
    torch.compiler.reset()
    module = make(rule)
    cache, compiled_cache = LatentCache.paged(rule, 3, 7), LatentCache.paged(rule, 3, 7)
    slots = torch.tensor([20, 0, -1, 9, 3])

    # aot_eager: the projection keeps its own kernel, so that all bits are comparable.
    with torch.no_grad():
        right = module(HIDDEN, POSITIONS)
        actual = torch.compile(module, fullgraph=True, backend="aot_eager")(HIDDEN, POSITIONS)
        for one, eager in zip(actual, right, strict=True):
            assert_same(one, eager)

        def write(hidden, slots):
            module.write(compiled_cache, hidden, POSITIONS, slots)

        module.write(cache, HIDDEN, POSITIONS, slots)
        torch.compile(write, fullgraph=True, backend="aot_eager")(HIDDEN, slots)
        assert cache.records.any()
        assert_same(compiled_cache.records, cache.records)
    torch.compiler.reset()
