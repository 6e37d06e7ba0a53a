"""Where rows go: their own slots and nothing else, whatever the order, number and type of slots."""

import dataclasses
import functools

import pytest
import torch
from helpers import (
    DTYPES,
    assert_same,
    name_of,
    on_each_instruction_set,
    random_gain,
    random_rows,
)

import latentkv
from latentkv import LatentCache, LatentQuant, definition, layouts, models
from latentkv.definition import records

K2, K3, V32 = (models.get(name).kv for name in ("kimi-k2", "kimi-k3", "deepseek-v3.2-exp"))
K2_FP8 = dataclasses.replace(K2, quant=LatentQuant(128, "act_quant"))
GAIN = random_gain(512)
LAYOUTS = ("contiguous", "blocks of 7", "fp8")
GARBAGE = 2**62 + 5  # a position that no table has
table_of = functools.cache(definition.rotary_table)  # building one takes longer than a test


def make(layout, slots=128):
    """A cache of K2's rows that holds 777 (in bf16 776, as bytes 119) everywhere."""
    if layout == "contiguous":
        cache = LatentCache.contiguous(K2, 2, slots // 2)
    elif layout == "fp8":
        cache = LatentCache.fp8(K2_FP8, -(-slots // 64))
    else:
        cache = LatentCache.paged(K2, -(-slots // 7), 7)
    cache.records.fill_(119 if layout == "fp8" else 777)
    return cache


def filled(count, seed=0):
    """Rows and positions, all different."""
    generator = torch.Generator().manual_seed(seed)
    return random_rows(count, 576, seed=seed), torch.randperm(100_000, generator=generator)[:count]


def encoded(cache, down, positions):
    """The rows' records by the definition."""
    rule = cache.contract
    fp8 = cache.records.dtype == torch.uint8
    return records.encode(down, GAIN, rule, positions, table_of(rule.rope), fp8=fp8)


def expected(cache, down, positions, slots):
    """All records after a write, by a plain loop in which the last one wins."""
    after = cache.records.clone().view(-1, cache.record.width)
    fresh = encoded(cache, down.reshape(-1, 576), positions.reshape(-1))
    for row, slot in enumerate(slots.flatten().tolist()):
        if slot >= 0:
            after[slot] = fresh[row]
    return after.view_as(cache.records)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_rows_change_nothing(layout):
    down, positions = filled(6)
    slots = torch.tensor([-1, 5, -(2**31), 9, -(2**63), 0])
    skipped = slots < 0
    down[skipped] = float("nan")
    sane = positions.masked_fill(skipped, 0)
    positions[skipped] = torch.tensor([GARBAGE, -1, -(2**63)])
    wanted = expected(make(layout), down.nan_to_num(), sane, slots)

    def check(name):
        cache = make(layout)
        cache.write(down, GAIN, positions, slots)
        assert_same(cache.records, wanted, name)

    on_each_instruction_set(check)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_but_padding(layout):
    for count in (1, 4, 200):
        cache, untouched = make(layout), make(layout).records
        down = torch.full((count, 576), float("nan"), dtype=torch.bfloat16)
        for padding in (-1, -(2**31), -(2**63)):
            slots = torch.full((count,), padding)
            cache.write(down, GAIN, torch.full((count,), GARBAGE), slots)
            assert_same(cache.records, untouched)
    cache.write(down[:0], GAIN, torch.empty(0, dtype=torch.int64), slots[:0])  # no row at all
    assert_same(cache.records, untouched)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_garbage_positions_are_refused_where_rows_are_kept(layout):
    # The counterpart: what a skipped row may have, a written one may not.
    cache, untouched = make(layout), make(layout).records
    down, positions = filled(3)
    positions[1] = GARBAGE
    with pytest.raises(ValueError, match=rf"positions run from \d+ to {GARBAGE}"):
        cache.write(down, GAIN, positions, torch.tensor([1, 2, -1]))
    assert_same(cache.records, untouched)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_equal_slots_the_last_wins(layout, threads):
    # 3,000 rows on 40 slots, some skipped: with more rows than a thread's share, in every order.
    count, generator = 3000, torch.Generator().manual_seed(7)
    down, positions = filled(count)
    slots = torch.randint(-3, 40, (count,), generator=generator)
    assert len(slots.unique()) == 43
    wanted = expected(make(layout), down, positions, slots)
    for number in (1, 2, 4, 7):
        torch.set_num_threads(number)
        for again in range(5):  # a race shows only now and then
            cache = make(layout)
            cache.write(down, GAIN, positions, slots)
            assert_same(cache.records, wanted, f"{number} threads, time {again}")
    torch.set_num_threads(4)

    def check(name):
        cache = make(layout)
        cache.write(down, GAIN, positions, slots)
        assert_same(cache.records, wanted, name)

    on_each_instruction_set(check)


def test_all_rows_on_one_slot(threads):
    down, positions = filled(1000)
    torch.set_num_threads(4)
    for layout in LAYOUTS:
        slots = torch.full((1000,), 77)
        wanted = expected(make(layout), down[-1:], positions[-1:], slots[-1:])
        for _ in range(5):
            cache = make(layout)
            cache.write(down, GAIN, positions, slots)
            assert_same(cache.records, wanted, layout)


ORDERS = {
    "rising": lambda n, g: torch.arange(n),
    "rising with gaps": lambda n, g: torch.arange(n) * 3 + 1,
    "falling": lambda n, g: torch.arange(n).flip(0),
    "falling with gaps": lambda n, g: torch.arange(n).flip(0) * 2 + 3,
    "random": lambda n, g: torch.randperm(n, generator=g),
    "rising, but for the last": lambda n, g: torch.cat([torch.arange(1, n), torch.tensor([0])]),
    "every second skipped": lambda n, g: torch.where(torch.arange(n) % 2 == 0, -1, torch.arange(n)),
    "blocks in another order": lambda n, g: torch.arange(n).view(-1, 7).flip(0).flatten(),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_order_of_slots(layout, order, threads):
    count = 700
    down, positions = filled(count)
    slots = ORDERS[order](count, torch.Generator().manual_seed(3))
    wanted = expected(make(layout, 2114), down, positions, slots)
    for number in (1, 4):
        torch.set_num_threads(number)

        def check(name, number=number):
            cache = make(layout, 2114)
            cache.write(down, GAIN, positions, slots)
            assert_same(cache.records, wanted, f"{number} threads, {name}")

        on_each_instruction_set(check)


@pytest.mark.parametrize("order", ["rising", "rising with gaps", "falling", "random"])
def test_writes_large_enough_to_stream(order, threads):
    # Above 16 MiB, whole cache lines are written past the caches: 14,700 rows take 16.1 MiB.
    count = 14_700
    assert count * 1152 > 16 << 20
    down = random_rows(count, 576)
    slots = ORDERS[order](count, torch.Generator().manual_seed(3))
    capacity = int(slots.max()) + 8  # a few records behind the last one, too
    latent, key = definition.compress_kv(down, GAIN, K3, None)
    wanted = torch.full((capacity, 576), 777.0).bfloat16()
    wanted[slots] = torch.cat([latent, key], -1)
    for number in (1, 4):
        torch.set_num_threads(number)
        cache = LatentCache.paged(K3, 1, capacity)
        cache.records.fill_(777)
        cache.write(down, GAIN, None, slots)
        assert_same(cache.records[0], wanted, f"{number} threads")


def slots_as(kind, slots):
    if kind == "int32":
        return slots.int()
    if kind == "strided":
        return torch.stack([slots, slots + 1, torch.full_like(slots, GARBAGE)], 1)[:, 0]
    if kind == "strided int32":
        return torch.stack([slots + 1, slots], 1).int()[:, 1]
    if kind == "behind an offset":
        return torch.cat([slots.new_full((3,), GARBAGE), slots])[3:]
    return slots


@pytest.mark.parametrize("kind", ["int32", "strided", "strided int32", "behind an offset"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_slots_and_positions_of_any_type_and_stride(layout, kind):
    down, positions = filled(65)
    slots = torch.randperm(128, generator=torch.Generator().manual_seed(1))[:65]
    slots[10:13] = -1
    wanted = expected(make(layout), down, positions, slots)
    cache = make(layout)
    given = slots_as(kind, slots)
    cache.write(down, GAIN, slots_as(kind, positions), given)
    assert_same(cache.records, wanted)
    latent, key = cache.gather(given)
    right = make(layout)
    right.records.copy_(wanted)
    for back, one in zip((latent, key), right.gather(slots), strict=True):
        assert_same(back, one)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_any_shape_and_stride(layout):
    many, positions = filled(2 * 3 * 5)
    slots = torch.randperm(128, generator=torch.Generator().manual_seed(2))[:30]
    wanted = expected(make(layout), many, positions, slots)
    fused = torch.full((2, 3, 5, 2112), float("nan"), dtype=torch.bfloat16)
    fused[..., 1536:] = many.view(2, 3, 5, 576)
    swapped = many.view(2, 3, 5, 576).transpose(0, 2).contiguous().transpose(0, 2)
    shapes = {
        "flat": (many, positions, slots),
        "fused": (fused[..., 1536:], positions.view(2, 3, 5), slots.view(2, 3, 5)),
        "transposed": (swapped, positions.view(2, 3, 5), slots.view(2, 3, 5)),
        "transposed slots": (
            many.view(2, 3, 5, 576),
            positions.view(2, 3, 5),
            slots.view(2, 3, 5).transpose(0, 1).contiguous().transpose(0, 1),
        ),
    }
    for name, (down, at, where) in shapes.items():
        cache = make(layout)
        cache.write(down, GAIN, at, where)
        assert_same(cache.records, wanted, name)
    cache = make(layout)
    cache.write(many[7], GAIN, positions[7], slots[7])  # one row, without a leading dimension
    assert_same(cache.records, expected(make(layout), many[7:8], positions[7:8], slots[7:8]))
    assert cache.gather(slots[7])[0].shape == (512,) and cache.gather(slots[7])[1].shape == (64,)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_broadcast_and_so_do_rows(layout):
    down, _ = filled(12)
    slots = torch.randperm(128, generator=torch.Generator().manual_seed(2))[:12].view(3, 4)
    for positions in (torch.tensor(7), torch.arange(4), torch.arange(3)[:, None], torch.ones(1, 1)):
        positions = positions.long()
        full = positions.expand(3, 4)
        cache = make(layout)
        cache.write(down.view(3, 4, 576), GAIN, positions, slots)
        assert_same(cache.records, expected(make(layout), down, full, slots))
    one = down[:1].expand(12, 576)  # one row to many slots: a row stride of 0
    cache = make(layout)
    cache.write(one, GAIN, torch.arange(12), slots.flatten())
    assert_same(cache.records, expected(make(layout), one, torch.arange(12), slots))


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
    encode = records.encode(down, gain, rule, positions, table_of(rule.rope), fp8=rule is K2_FP8)
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
@pytest.mark.parametrize("count", [1, 31, 32, 33, 100])  # rows are worked on 32 at a time
def test_one_call_or_many(layout, count, threads):
    # Prefill in one call, decoding row by row, and anything in between.
    down, positions = filled(count, seed=count)
    generator = torch.Generator().manual_seed(count)
    slots = torch.randperm(128, generator=generator)[:count]
    wanted = expected(make(layout), down, positions, slots)
    torch.set_num_threads(4)

    def check(name):
        at_once, one_by_one = make(layout), make(layout)
        at_once.write(down, GAIN, positions, slots)
        assert_same(at_once.records, wanted, f"{name}, at once")
        for i in range(count):
            one_by_one.write(down[i : i + 1], GAIN, positions[i : i + 1], slots[i : i + 1])
        assert_same(one_by_one.records, wanted, f"{name}, one by one")
        for _ in range(3):
            order = torch.randperm(count, generator=generator)
            cache = make(layout)
            cuts = torch.randint(count + 1, (4,), generator=generator).sort().values
            for part in order.tensor_split(cuts):
                cache.write(down[part], GAIN, positions[part], slots[part])
            assert_same(cache.records, wanted, f"{name}, in chunks")

    on_each_instruction_set(check)


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
        operator.records, slots, down, GAIN, positions, table_of(K2.rope),
        1e-6, "cast_then_gain", "half_each_step", "", 0,
    )  # fmt: skip
    assert_same(operator.records, cache.records)
