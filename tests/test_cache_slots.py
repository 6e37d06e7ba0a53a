"""Where rows go: their own slots and nothing else, whatever the order, number and type of slots."""

import pytest
import torch
from helpers import assert_same, on_each_instruction_set, random_rows
from kv_caches import GAIN, GARBAGE, LAYOUTS, expected, filled, make
from kv_rows import K3

from latentkv import LatentCache, definition


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
