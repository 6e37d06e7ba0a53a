"""What a write changes of the memory around it, and memory that a cache can't be."""

import numpy as np
import pytest
import torch
from helpers import DTYPES, assert_same, name_of, on_each_instruction_set, random_gain, random_rows
from kv_caches import (
    DOWN,
    GAIN,
    K2_FP8,
    LAYOUTS,
    POSITIONS,
    SLOTS,
    bytes_of,
    expected,
    filled,
    make,
    plain,
)
from kv_rows import K2, table_of

import latentkv
from latentkv import LatentCache, layouts
from latentkv.definition import records

# name -> a pool's elements, and the strides and offset of 4 blocks of 64 records of w in it: what
# lies between records, blocks and layers belongs to others.
POOLS = {
    "a layer of [layer, blocks, size]": lambda w: (3 * 256 * w, (64 * w, w), 256 * w),
    "a layer of [blocks, layer, size]": lambda w: (3 * 256 * w, (3 * 64 * w, w), 64 * w),
    "a layer of [blocks, size, layer]": lambda w: (3 * 256 * w, (3 * 64 * w, 3 * w), 2 * w),
    "every second block": lambda w: (9 * 64 * w, (2 * 64 * w, w), 64 * w),
    "a record between blocks": lambda w: (4 * 65 * w, (65 * w, w), w),
    "behind an offset": lambda w: (256 * w + 21, (64 * w, w), 8),
    "at an odd address": lambda w: (256 * w + 21, (64 * w, w), 3),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    "kind", ["float8_e4m3fn", *map(name_of, DTYPES)], ids=["fp8", *map(name_of, DTYPES)]
)
def test_guard_records_in_a_larger_pool(kind, pool, threads):
    rule = K2_FP8 if kind == "float8_e4m3fn" else K2
    record = layouts.fp8_ds_mla(rule) if rule is K2_FP8 else layouts.plain(rule, kind)
    element = getattr(torch, record.element)
    rows = torch.bfloat16 if rule is K2_FP8 else element
    guard = 119 if rule is K2_FP8 else 777
    elements, strides, offset = POOLS[pool](record.width)

    def fresh():
        buffer = torch.full((elements,), guard, dtype=element)
        view = buffer.as_strided((4, 64, record.width), (*strides, 1), offset)
        return buffer, LatentCache(view, record, rule, 64)

    down, positions = random_rows(77, 576, dtype=rows), torch.arange(77) * 3
    gain = random_gain(512, rows)
    slots = torch.randperm(254, generator=torch.Generator().manual_seed(4))[:77] + 1
    slots[5], slots[6], slots[40] = 0, 255, -1  # the ends, and one skipped
    encode = records.encode(down, gain, rule, positions, table_of(rule), fp8=rule is K2_FP8)
    right, cache = fresh()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cache.records[slot // 64, slot % 64] = encode[row]
    torch.set_num_threads(4)

    def check(name):
        buffer, cache = fresh()
        cache.write(down, gain, positions, slots)
        assert_same(buffer, right, name)
        buffer, cache = fresh()
        for row in range(77):
            cache.write(down[row], gain, positions[row], slots[row])
        assert_same(buffer, right, f"{name}, one by one")
        kept = slots >= 0
        latent, key = cache.gather(slots[kept])
        if rule is K2:
            assert_same(torch.cat([latent, key], -1), encode[kept], name)

    on_each_instruction_set(check)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_row_stays_in_its_slot(layout, value):
    down, positions = filled(70)
    clean, dirty = make(layout), make(layout)
    slots = torch.randperm(128, generator=torch.Generator().manual_seed(6))[:70]
    clean.write(down, GAIN, positions, slots)
    down[33] = value
    dirty.write(down, GAIN, positions, slots)
    others = slots[torch.arange(70) != 33]
    for one, other in zip(clean.gather(others), dirty.gather(others), strict=True):
        assert_same(other, one)
    assert dirty.gather(slots[33])[0].isnan().all()
    clean.records.view(-1, clean.record.width)[slots[33]] = 0
    dirty.records.view(-1, clean.record.width)[slots[33]] = 0
    assert torch.equal(clean.records, dirty.records)


def test_a_write_leaves_no_trace_in_a_graph():
    # Rows and gains that require gradients, as a module's parameters do.
    for cache in map(make, LAYOUTS):
        down, positions = filled(4)
        slots = torch.tensor([5, 4, -1, 3])
        wanted = expected(cache, down, positions, slots)
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
            with mode():
                rows, gain = down.clone().requires_grad_(), GAIN.clone().requires_grad_()
                cache.write(rows, gain, positions, slots)
            assert not cache.records.requires_grad and cache.records.grad_fn is None
            assert_same(cache.records, wanted)
            cache.write(rows.detach(), GAIN, positions, slots)  # and the next one is taken


def test_a_cache_of_inference_mode():
    down, positions = filled(4)
    with torch.inference_mode():
        cache = make("blocks of 7")
        cache.write(down, GAIN, positions, torch.arange(4))
        wanted = expected(make("blocks of 7"), down, positions, torch.arange(4))
        assert_same(cache.records, wanted)
    latent, _ = cache.gather(torch.arange(4))
    assert_same(latent, wanted.view(-1, 576)[:4, :512])


def test_reads_and_writes_by_other_names_agree():
    down, positions = filled(9)
    slots = torch.tensor([3, 1, 4, -1, 5, 9, 2, 6, 3])
    cache, raw = make("blocks of 7"), make("blocks of 7")
    cache.write(down, GAIN, positions, slots)
    latentkv.write_kv(raw.records, slots, down, GAIN, K2, positions)
    assert_same(raw.records, cache.records)
    operator = make("blocks of 7")
    torch.ops.latentkv.write_kv(
        operator.records, slots, down, GAIN, positions, table_of(K2),
        1e-6, "cast_then_gain", "half_each_step", "", 0,
    )  # fmt: skip
    assert_same(operator.records, cache.records)


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("operand", ["down", "gain", "slots", "positions"])
def test_a_cache_that_shares_memory(operand, where):
    # What is read would be changed by what is written. At either end of the cache.
    memory = torch.zeros(28 * 576 + 8, dtype=torch.bfloat16)
    cache = memory[: 28 * 576].view(4, 7, 576)
    # For the last: from whole eight bytes within the last record on, past its end.
    start = 0 if where == "first" else 28 * 576 - 4
    at = {name: value.clone() for name, value in (("slots", SLOTS), ("positions", POSITIONS))}
    if operand == "down":
        memory = torch.zeros(40 * 576, dtype=torch.bfloat16)
        cache = memory[: 28 * 576].view(4, 7, 576)
        shared = memory[: 6 * 576] if where == "first" else memory[27 * 576 : 33 * 576]
        given = {"down": shared.view(6, 576).copy_(DOWN), "gain": GAIN, **at}
    elif operand == "gain":
        memory = torch.zeros(30 * 576, dtype=torch.bfloat16)
        cache = memory[: 28 * 576].view(4, 7, 576)
        shared = memory[start : start + 512].copy_(GAIN)
        given = {"down": DOWN, "gain": shared, **at}
    else:
        memory = torch.zeros(30 * 576, dtype=torch.bfloat16)
        cache = memory[: 28 * 576].view(4, 7, 576)
        shared = memory[start : start + 24].view(torch.int64).copy_(at[operand])
        given = {"down": DOWN, "gain": GAIN, **at, operand: shared}
    before = bytes_of(cache)
    with pytest.raises(ValueError, match=f"cache and {operand} share memory"):
        latentkv.write_kv(
            cache, given["slots"], given["down"], given["gain"], K2, given["positions"]
        )
    assert bytes_of(cache) == before
    # Side by side is not shared.
    beside = torch.zeros(29 * 576, dtype=torch.bfloat16)
    near = beside[28 * 576 :][:512].copy_(GAIN)
    latentkv.write_kv(beside[: 28 * 576].view(4, 7, 576), SLOTS, DOWN, near, K2, POSITIONS)
    assert beside[: 28 * 576].any() and torch.equal(near, GAIN)


def test_a_tensor_of_inference_mode_outside_it():
    with torch.inference_mode():
        cache = plain()
    before = bytes_of(cache)
    with pytest.raises(ValueError, match="cache is not writable here: it was made in inference mo"):
        latentkv.write_kv(cache, SLOTS, DOWN, GAIN, K2, POSITIONS)
    assert bytes_of(cache) == before
    with pytest.raises(ValueError, match="not writable here: it was made in inference mode"):
        LatentCache(cache, layouts.plain(K2), K2, 7)
    with torch.inference_mode():
        LatentCache(cache, layouts.plain(K2), K2, 7).write(DOWN, GAIN, POSITIONS, SLOTS)
    assert bytes_of(cache) != before


# As numpy warns: torch gives a tensor that must not be written.
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_read_only_memory(tmp_path):
    path = tmp_path / "cache.bin"
    np.full((4, 7, 576), 777, np.float32).tofile(path)
    mapped = torch.from_numpy(np.memmap(path, np.float32, "r", shape=(4, 7, 576)))
    record = layouts.plain(K2, "float32")
    with pytest.raises(
        ValueError, match="records are not writable: their memory is mapped read-on"
    ):
        LatentCache(mapped, record, K2, 7)
    with pytest.raises(ValueError, match="records are not writable"):
        LatentCache(mapped[2:], record, K2, 7)
    # A copy of it, and a file that may be written, are taken.
    LatentCache(mapped.clone(), record, K2, 7)
    writable = torch.from_numpy(np.memmap(path, np.float32, "r+", shape=(4, 7, 576)))
    cache = LatentCache(writable, record, K2, 7)
    cache.write(DOWN.float(), GAIN.float(), POSITIONS, SLOTS)
    latent, _ = latentkv.compress_kv(DOWN.float(), GAIN.float(), K2, POSITIONS)
    assert_same(cache.gather(SLOTS[:1])[0], latent[:1])


def test_one_block_has_no_stride_between_blocks():
    # Whatever the stride of a dimension of size 1, on every backend and in both functions.
    down, wanted = DOWN[:2], plain()[:1]
    slots, positions = torch.tensor([6, 0]), torch.tensor([3, 1])
    latentkv.write_kv(wanted, slots, down, GAIN, K2, positions)
    for stride in (4033, 0, 1):
        memory = torch.full((7 * 576,), 777).bfloat16().as_strided((1, 7, 576), (stride, 576, 1))
        LatentCache(memory, layouts.plain(K2), K2, 7).write(down, GAIN, positions, slots)
        assert_same(memory, wanted)
