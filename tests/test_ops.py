"""The public functions as a user meets them: outputs, dtypes, modes around the call."""

import pytest
import torch
from helpers import (
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
from latentkv import definition

SHAPES = ((512,), (1, 512), (3, 512), (2, 3, 512), (0, 512), (2, 0, 512), (1, 1, 1, 512))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_shape_dtype_and_memory_of_outputs(pair, order, shape):
    x, gain, rule = (
        random_rows(*shape, dtype=pair[0]),
        random_gain(512, pair[1]),
        contract(512, order),
    )
    single = latentkv.rms_norm(x, gain, rule)
    both = latentkv.add_rms_norm(x, x, gain, rule)
    assert isinstance(both, tuple) and len(both) == 2
    for y in (single, both[0]):
        assert y.dtype == output_dtype(*pair, order)
    assert both[1].dtype == pair[0]
    for value in (single, *both):
        assert value.shape == x.shape and value.is_contiguous() and value.device == x.device
        assert value.stride() == torch.empty(shape).stride()
        assert not value.requires_grad and value._base is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_autocast_changes_nothing(pair, dtype):
    x, gain = random_rows(3, 512, dtype=pair[0]), random_gain(512, pair[1])
    for order in ORDERS:
        rule = contract(512, order)
        right = latentkv.add_rms_norm(x, x, gain, rule)
        with torch.autocast("cpu", dtype=dtype):
            actual = latentkv.add_rms_norm(x, x, gain, rule)
            assert_same(latentkv.rms_norm(x, gain, rule), definition.rms_norm(x, gain, rule))
        for value, expected in zip(actual, right, strict=True):
            assert_same(value, expected)


def test_inference_mode():
    x, gain, rule = random_rows(3, 512), random_gain(512), contract(512)
    right = latentkv.rms_norm(x, gain, rule)
    with torch.inference_mode():
        y = latentkv.rms_norm(x, gain, rule)
        assert y.is_inference()
        assert_same(y, right)
        inside = random_rows(3, 512)
        assert_same(latentkv.rms_norm(inside, gain, rule), right)
    assert_same(latentkv.rms_norm(inside, gain, rule), right)  # an inference tensor outside


def test_other_defaults_of_torch_change_nothing():
    x, gain, rule = random_rows(3, 512), random_gain(512), contract(512)
    right = latentkv.rms_norm(x, gain, rule)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert_same(latentkv.rms_norm(x, gain, rule), right)
        assert_same(definition.rms_norm(x, gain, rule), right)
    finally:
        torch.set_default_dtype(before)
    with torch.device("meta"):  # where new tensors would go
        assert_same(latentkv.rms_norm(x, gain, rule), right)


def test_only_one_operator_runs():
    # No copy of a strided input, no cast, no second pass: one call for torch to see.
    from torch.utils._python_dispatch import TorchDispatchMode

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls.append(str(function))
            return function(*args, **(kwargs or {}))

    calls: list[str] = []
    x, gain, rule = random_rows(3, 576)[:, :512], random_gain(512), contract(512)
    with Calls():
        latentkv.rms_norm(x, gain, rule)
        latentkv.add_rms_norm(x, x, gain, rule)
    assert calls == ["latentkv.rms_norm.default", "latentkv.add_rms_norm.default"]


def test_meta_tensors_give_shapes():
    x, gain, rule = random_rows(3, 512).to("meta"), random_gain(512).to("meta"), contract(512)
    y = latentkv.rms_norm(x, gain, rule)
    assert y.is_meta and y.shape == (3, 512) and y.dtype == torch.bfloat16


def test_from_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    gain, rule = random_gain(512), contract(512)
    inputs = [random_rows(257, 512, seed=s) for s in range(8)]
    right = [latentkv.rms_norm(x, gain, rule) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for y, expected in zip(
            pool.map(lambda x: latentkv.rms_norm(x, gain, rule), inputs * 4), right * 4, strict=True
        ):
            assert_same(y, expected)
