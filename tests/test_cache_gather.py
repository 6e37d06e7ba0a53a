"""What is read back: each slot's row, zeros for padding, and slots that are refused."""

import pytest
import torch
from helpers import assert_same
from kv_caches import GAIN, K2_FP8, LAYOUTS, filled, make
from kv_rows import K2

from latentkv import LatentCache


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unused_slots_are_never_looked_at(layout):
    down, positions = filled(20)
    cache = make(layout)
    if layout == "fp8":
        cache.records.fill_(0x7F)  # NaN codes; four of them are a huge scale, two a NaN-free key
        cache.records[..., 512:528] = torch.tensor([0, 0, 192, 127] * 4, dtype=torch.uint8)  # NaN
        cache.records[..., 528:] = 0xFF  # bf16 NaN
    else:
        cache.records.fill_(float("nan"))
    slots = torch.randperm(126, generator=torch.Generator().manual_seed(5))[:20] + 1  # not slot 0
    cache.write(down, GAIN, positions, slots)
    asked = torch.cat([slots, torch.tensor([-1, -7, -(2**63)])])
    latent, key = cache.gather(asked)
    assert latent.isfinite().all() and key.isfinite().all()
    for part in (latent[20:], key[20:]):
        assert_same(part, torch.zeros_like(part))  # +0: a mask that multiplies gives NaN
    unused = torch.ones(cache.capacity, dtype=torch.bool)
    unused[slots] = False
    latent, key = cache.gather(unused.nonzero().flatten())
    assert latent.isnan().all() and key.isnan().all()  # the write left them as they were


def test_gather_shapes():
    cache = make("fp8")
    down, positions = filled(8)
    cache.write(down, GAIN, positions, torch.arange(8))
    right = cache.gather(torch.arange(8))
    for shape in ((8,), (2, 4), (2, 1, 4), (8, 1)):
        for slots in (torch.arange(8).view(shape), torch.arange(8, dtype=torch.int32).view(shape)):
            latent, key = cache.gather(slots)
            assert_same(latent, right[0].view(*shape, 512))
            assert_same(key, right[1].view(*shape, 64))
    repeated = cache.gather(torch.tensor([3, 3, -1, 3]))[0]
    assert_same(repeated[[0, 1, 3]], right[0][[3, 3, 3]])
    for empty in ((0,), (2, 0)):
        latent, key = cache.gather(torch.empty(empty, dtype=torch.int64))
        assert latent.shape == (*empty, 512) and key.shape == (*empty, 64)


def test_gather_refuses_what_is_not_there():
    for layout in LAYOUTS:
        cache = make(layout)
        for slot in (cache.capacity, 2**31, 2**40 + 17, 2**63 - 1):
            with pytest.raises(ValueError, match=f"slot {slot} is out of range: the cache has"):
                cache.gather(torch.tensor([0, slot, -1]))
        assert cache.gather(torch.tensor([cache.capacity - 1]))[0].shape == (1, 512)


def test_a_cache_without_records():
    for cache in (LatentCache.paged(K2, 0, 7), LatentCache.fp8(K2_FP8, 0)):
        down, positions = filled(2)
        assert cache.capacity == cache.bytes == 0
        cache.write(down, GAIN, positions, torch.tensor([-1, -5]))
        with pytest.raises(ValueError, match="slot 0 is out of range: the cache has 0 records"):
            cache.write(down, GAIN, positions, torch.tensor([-1, 0]))
        with pytest.raises(ValueError, match="slot 0 is out of range: the cache has 0 records"):
            cache.gather(torch.tensor([0]))
        latent, key = cache.gather(torch.tensor([-1]))
        assert latent.shape == (1, 512) and not latent.any() and not key.any()


LAST = 2**40 + 17


GATHERED = {
    "float": (torch.tensor([1.0]), TypeError, "slots have dtype float32; allowed: int32, int64"),
    "int8": (torch.tensor([1], dtype=torch.int8), TypeError, "slots have dtype int8; allowed"),
    "bool": (torch.tensor([True]), TypeError, "slots have dtype bool; allowed"),
    "a list": ([1], TypeError, "slots must be a tensor, got list"),
    "an int": (1, TypeError, "slots must be a tensor, got int"),
    "None": (None, TypeError, "slots must be a tensor, got NoneType"),
    "the capacity": (torch.tensor([0, 28]), ValueError, "slot 28 is out of range: .* 28 records"),
    "far": (torch.tensor([LAST]), ValueError, f"slot {LAST} is out of range"),
    "elsewhere": (torch.tensor([1], device="meta"), ValueError, "slots are on meta"),
    "sparse": (torch.tensor([1]).to_sparse(), TypeError, "slots must be a strided tensor"),
}


@pytest.mark.parametrize("case", GATHERED)
def test_refused_to_gather(case):
    slots, error, words = GATHERED[case]
    with pytest.raises(error, match=words):
        LatentCache.paged(K2, 4, 7).gather(slots)
