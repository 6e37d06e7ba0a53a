"""Shapes, strides and dtypes that the path's operators promise without computing."""

import pytest
import torch
from helpers import ORDERS, PAIRS, name_of, output_dtype, random_gain, random_rows
from kv_rows import ALL_RULES, KINDS, V32, caches, numerics, path, some_positions, table_of

import latentkv

FP32 = torch.float32
OPS = torch.ops.latentkv


SAMPLES = {
    "slice": lambda: random_rows(4, 2112)[:, 1536:],
    "permuted": lambda: random_rows(2, 3, 4, 576).permute(2, 0, 1, 3),
    "expanded": lambda: random_rows(1, 576).expand(5, 576),
    "row": lambda: random_rows(576),
    "no rows": lambda: random_rows(2, 0, 576),
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_opcheck(sample):
    # The first layout with every kind, the others with one: they matter to shapes and strides.
    check, down = torch.library.opcheck, SAMPLES[sample]()
    kinds = KINDS.values() if sample == "slice" else [KINDS["half, power of two"]]
    for contract, gain in zip(kinds, (random_gain(512), random_gain(512, FP32)) * 2, strict=False):
        table, positions = table_of(contract), some_positions(*down.shape[:-1])
        given = (down, gain, positions, table, *numerics(contract))
        check(OPS.compress_kv.default, given)
        check(OPS.compress_kv_fwd.default, given)
        latent, key, rstd = OPS.compress_kv_fwd(*given)
        above, (order, rope) = (latent + 1, key + 1), numerics(contract)[1:3]
        check(
            OPS.compress_kv_bwd.default, (*above, down, gain, rstd, positions, table, order, rope)
        )


@pytest.mark.parametrize("sample", ["slice", "permuted", "no rows"])
def test_opcheck_of_a_write(sample):
    down, gain, contract = SAMPLES[sample](), random_gain(512), KINDS["half, power of two"]
    positions = some_positions(*down.shape[:-1])
    slots = torch.arange(positions.numel()).view(positions.shape)
    for cache in caches(contract):
        torch.library.opcheck(
            OPS.write_kv.default,
            (cache, slots, down, gain, positions, table_of(contract), *numerics(contract)),
        )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("rotation", ["", "half_each_step"])
def test_fakes_tell_the_truth(sample, rotation, order):
    # empty_like would keep a permuted input's strides: the outputs are contiguous.
    for pair, rule in zip(PAIRS, ALL_RULES * 2, strict=False):
        down, gain = SAMPLES[sample]().to(pair[0]), random_gain(512, pair[1])
        positions = some_positions(*down.shape[:-1])
        contract = path(order=order, rotation=rotation, rule=rule, group=128)
        right = latentkv.compress_kv(down, gain, contract, positions)
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = (mode.from_tensor(value) for value in (down, gain, positions))
            fake_down, fake_gain, fake_positions = fakes
            told = latentkv.compress_kv(fake_down, fake_gain, contract, fake_positions)
        for value, true in zip(told, right, strict=True):
            assert value.shape == true.shape and value.dtype == true.dtype
            assert value.stride() == true.stride() and true.is_contiguous()
        assert right[0].dtype == output_dtype(*pair, order) and right[1].dtype == pair[0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_meta_device(sample, pair, order):
    # Shapes without memory, of gradients as well: what a device without a kernel is asked first.
    down, gain = SAMPLES[sample]().to(pair[0]), random_gain(512, pair[1])
    positions = some_positions(*down.shape[:-1])
    for rotation, rule in (("", ""), ("half_each_step", "act_quant")):
        contract = path(order=order, rotation=rotation, rule=rule, group=128)
        answers = []
        for device in ("cpu", "meta"):
            inputs = [v.detach().to(device).requires_grad_() for v in (down, gain)]
            outputs = latentkv.compress_kv(*inputs, contract, positions.to(device))
            above = [torch.ones_like(value) for value in outputs]
            answers.append((*outputs, *torch.autograd.grad(outputs, inputs, above)))
        for true, told in zip(*answers, strict=True):
            assert told.is_meta and told.shape == true.shape and told.dtype == true.dtype
            assert told.stride() == true.stride()


def test_writes_to_the_meta_device():
    down, gain, positions = random_rows(3, 576), random_gain(512), some_positions(3)
    for cache in caches(V32):
        given = (cache, torch.arange(3), down, gain, V32, positions)
        latentkv.write_kv(*(v.to("meta") if isinstance(v, torch.Tensor) else v for v in given))
