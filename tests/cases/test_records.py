"""F19, F20 and F21: slots and padding, byte layouts, scales where they don't belong."""

import copy
import dataclasses
import inspect
import json
import pickle
import struct

import pytest
import torch
from helpers import assert_same, contract, on_each_instruction_set, random_rows
from kv_caches import GAIN
from kv_rows import K2, K3, V32

import latentkv
from latentkv import KVContract, LatentCache, LatentQuant, layouts
from latentkv.contracts import RULES


def every_layout(rule=V32, slots=128):
    """Room for 128 slots in each layout there is."""
    return {
        "contiguous": LatentCache.contiguous(rule, 2, slots // 2),
        "pages of 1": LatentCache.paged(rule, slots, 1),
        "pages of 7": LatentCache.paged(rule, -(-slots // 7), 7),
        "pages of 64": LatentCache.paged(rule, slots // 64, 64),
        "fp8": LatentCache.fp8(rule, slots // 64),
    }


def changed(cache, before):
    """The slots whose bytes are no longer what they were."""
    width = cache.record.width
    now, then = (c.view(-1, width).view(torch.uint8) for c in (cache.records, before))
    return (now != then).any(-1).nonzero().flatten().tolist()


@pytest.mark.case("F19-01")
def test_padding_leaves_block_0_alone():
    down, positions = random_rows(4, 576), torch.tensor([3, 2**40, -7, 9])

    def check(name):
        for layout, cache in every_layout().items():
            cache.records.fill_(777 if cache.records.dtype != torch.uint8 else 119)
            before = cache.records.clone()
            cache.write(down, GAIN, positions, torch.full((4,), -1))
            assert changed(cache, before) == [], (name, layout)
            cache.write(down, GAIN, positions, torch.tensor([5, -1, -1, 9]))
            assert changed(cache, before) == [5, 9], (name, layout)

    on_each_instruction_set(check)


@pytest.mark.case("F19-02")
def test_nan_in_unused_slots_reaches_no_attention():
    # Two sequences of different length in one padded table, whose padding is -1: softmax of masked
    # scores over what gather gives, with the mask as a weight of 0. 0 * NaN would be NaN.
    down, positions = random_rows(5, 576), torch.arange(5)
    tables = torch.tensor([[70, 3, 9, 12, 1], [70, 3, -1, -1, -1]])
    query = random_rows(2, 576, dtype=torch.float32, seed=5)
    for layout, cache in every_layout().items():
        cache.records.fill_(float("nan") if cache.records.dtype != torch.uint8 else 0xFF)
        cache.write(down, GAIN, positions, tables[0])
        latent, key = (part.float() for part in cache.gather(tables))
        scores = (torch.cat([latent, key], -1) @ query.unsqueeze(-1)).squeeze(-1) / 24
        weights = scores.masked_fill(tables < 0, -torch.inf).softmax(-1)
        output = (weights.unsqueeze(-1) * latent).sum(1)
        assert output.isfinite().all() and output.any(), layout
        assert (weights[1, 2:] == 0).all()
        # The counterpart: what the empty slots hold would have spread.
        stale = cache.gather(tables.clamp_min(0))[0].float()
        assert (weights.unsqueeze(-1) * stale).sum(1)[1].isnan().any(), layout


@pytest.mark.case("F19-04")
def test_a_reused_block_shows_no_old_byte():
    # Freed slots aren't cleared: whoever gets them next writes whole records, so nothing of the old
    # ones is left, and gather reads no slot that wasn't asked for. A subclass is no exception.
    class Cache(LatentCache):
        pass

    old, new = random_rows(64, 576, seed=1), random_rows(20, 576, seed=2)
    new[4] = 0  # a row that writes zeros, too
    positions = torch.arange(64)
    for layout, cache in every_layout().items():
        used = Cache(cache.records, cache.record, cache.contract, cache.block_size)
        fresh = copy.deepcopy(cache)
        used.write(old, GAIN, positions, positions)
        assert changed(used, fresh.records) == list(range(64)), layout
        slots = torch.randperm(64)[:20]
        used.write(new, GAIN, positions[:20], slots)
        fresh.write(new, GAIN, positions[:20], slots)
        width = cache.record.width
        for one, right in ((used.records, fresh.records),):
            assert torch.equal(
                one.view(-1, width)[slots].view(torch.uint8),
                right.view(-1, width)[slots].view(torch.uint8),
            ), layout
        for one, right in zip(used.gather(slots), fresh.gather(slots), strict=True):
            assert_same(one, right, layout)


@pytest.mark.case("F19-06")
def test_a_slot_beyond_the_capacity_is_an_error():
    # On the CPU it is refused, not skipped, and nothing is written: -1 and -2^31 are padding.
    down, positions = random_rows(4, 576), torch.arange(4)
    for layout, cache in every_layout().items():
        before = cache.records.clone()
        for beyond in (cache.capacity, 2**40 + 17):
            for at in range(4):
                slots = torch.tensor([5, -1, cache.capacity - 1, -(2**31)])
                slots[at] = beyond
                with pytest.raises(ValueError, match=f"slot {beyond} is out of range"):
                    cache.write(down, GAIN, positions, slots)
                assert changed(cache, before) == [], layout
        cache.write(down, GAIN, positions, torch.tensor([5, -1, cache.capacity - 1, -(2**31)]))
        assert changed(cache, before) == [5, cache.capacity - 1], layout


@pytest.mark.case("F19-07")
@pytest.mark.parametrize("rule", RULES)
def test_a_nan_row_is_nan_in_its_own_slot_only(rule):
    # K3's fp8 cache, with each scale rule; and its plain one.
    ruled = dataclasses.replace(K3, quant=LatentQuant(128, rule))
    down, slots = random_rows(9, 576), torch.tensor([3, 77, 4, 5, 2, 127, 0, 64, 63])
    down[6] = float("nan")

    def check(name):
        for layout, cache in every_layout(ruled).items():
            cache.write(down, GAIN, None, slots)
            latent, key = cache.gather(slots)
            for part in (latent, key):
                assert part.isnan().all(-1).nonzero().flatten().tolist() == [6], (name, layout)
                assert part.isnan().any(-1).nonzero().flatten().tolist() == [6], (name, layout)

    on_each_instruction_set(check)


@pytest.mark.case("F20-01")
@pytest.mark.case("F20-06")
@pytest.mark.case("F20-11")
def test_one_table_of_sizes_for_allocator_writer_and_reader():
    # Bytes a token, bytes a page of 64. The nvfp4 record (352 or 432 bytes) isn't described here,
    # let alone written: no format of this package has it.
    sizes = {
        "bf16": (layouts.plain(K3), 1152, 73_728),  # not 2304: no second half for values
        "flat fp8": (layouts.fp8_per_tensor(K3), 576, 36_864),
        "fp8_ds_mla": (layouts.fp8_ds_mla(V32), 512 + 4 * 4 + 128, 41_984),
    }
    assert sizes["fp8_ds_mla"][1] == 656
    for name, (record, token, page) in sizes.items():
        assert layouts.bytes_per_token(record) == record.bytes == token, name
        assert layouts.bytes_per_layer(record, 64, 64) == page, name
        assert record.fields[-1].end == token, name
    for cache, token in ((LatentCache.paged(K3, 2), 1152), (LatentCache.fp8(V32, 2), 656)):
        allocated = cache.records.untyped_storage().nbytes()
        assert allocated == cache.bytes == 128 * token
        # The writer's stride: rows of one value each, two slots apart, change their own bytes.
        rule, slots = cache.contract, torch.arange(0, 128, 2)
        cache.records.view(torch.uint8).fill_(0xEE)
        cache.write(random_rows(64, 576), GAIN, torch.arange(64), slots)
        raw = cache.records.view(torch.uint8).flatten()
        for slot in range(128):
            touched = bool((raw[slot * token : (slot + 1) * token] != 0xEE).any())
            assert touched == (slot % 2 == 0)
        # The reader's: the same bytes, by hand, are the values that it gives.
        latent, key = cache.gather(slots)
        keys = raw.view(128, token)[slots, token - 128 :].contiguous().view(torch.bfloat16)
        assert_same(keys, key)
        if rule is K3:
            assert_same(
                raw.view(128, token)[slots, :1024].contiguous().view(torch.bfloat16), latent
            )


@pytest.mark.case("F20-02")
def test_each_byte_range_holds_its_own_values():
    # Rows of ones are themselves after the norm; the gain 0 to 511 then numbers the latent, and the
    # key goes on from 512. A group's largest value gives its scale, so a boundary one feature off
    # would show: 127 / 448 up to 0.5, 255 and 383 to 1, 511 to 2.
    down = torch.ones(1, 576)
    down[:, 512:] = torch.arange(512.0, 576.0)
    down, gain = down.bfloat16(), torch.arange(512.0).bfloat16()

    def check(name):
        plain = LatentCache.paged(K3, 2, 64)
        plain.write(down, gain, None, torch.tensor([65]))
        raw = plain.records.view(torch.uint8)[1, 1].numpy().tobytes()
        assert struct.unpack("<576H", raw) == struct.unpack(
            "<576H", torch.arange(576.0).bfloat16().view(torch.uint8).numpy().tobytes()
        ), name

        fp8 = LatentCache.fp8(dataclasses.replace(K3, quant=LatentQuant(128, "act_quant")), 2)
        fp8.write(down, gain, None, torch.tensor([65]))
        raw = fp8.records[1, 1].numpy().tobytes()
        # 511 is 512 in bf16, and 512 / 448 goes up to 2 as 511 / 448 does.
        assert struct.unpack_from("<4f", raw, 512) == (0.5, 1.0, 1.0, 2.0), name
        assert raw[528:] == down[0, 512:].view(torch.uint8).numpy().tobytes(), name
        scale = torch.tensor([0.5, 1.0, 1.0, 2.0]).repeat_interleave(128)
        codes = (gain.float() / scale).to(torch.float8_e4m3fn).view(torch.uint8)
        assert raw[:512] == codes.numpy().tobytes(), name

    on_each_instruction_set(check)


@pytest.mark.case("F20-04")
def test_a_collapsed_cache_is_refused_by_name():
    right, collapsed = torch.zeros(4, 64, 576).bfloat16(), torch.zeros(4 * 64, 1, 576).bfloat16()
    record = layouts.plain(K2)
    assert LatentCache(right, record, K2, 64).capacity == 256
    with pytest.raises(
        ValueError,
        match=r"records have shape \(256, 1, 576\); bfloat16 in blocks of 64 is \[blocks, 64, 5",
    ):
        LatentCache(collapsed, record, K2, 64)
    with pytest.raises(ValueError, match=r"records have shape \(4, 64, 576\)"):
        LatentCache(right, record, K2, 1)
    assert LatentCache(collapsed, record, K2, 1).capacity == 256


@pytest.mark.case("F20-07")
def test_one_token_in_every_layout():
    down, positions = random_rows(30, 576), torch.arange(30) * 5000
    slots = torch.randperm(128, generator=torch.Generator().manual_seed(0))[:30]
    right = latentkv.compress_kv(down, GAIN, V32, positions)
    for layout, cache in every_layout().items():
        width, count = cache.record.width, cache.records.numel()
        # Inside a larger memory, NaN (as bytes: 0xFF) on both sides.
        sentinel = 0xFF if cache.records.dtype == torch.uint8 else float("nan")
        memory = torch.full((count + 4 * width,), sentinel, dtype=cache.records.dtype)
        view = memory[2 * width :][:count].view(cache.records.shape)
        guarded = LatentCache(view, cache.record, V32, cache.block_size)
        guarded.write(down, GAIN, positions, slots)
        for part, wanted in zip(guarded.gather(slots), right, strict=True):
            assert_same(part, wanted, layout)
        clean = torch.full_like(memory, sentinel).view(-1, width)
        clean[slots + 2] = view.view(-1, width)[slots]
        assert torch.equal(clean.view(torch.uint8), memory.view(-1, width).view(torch.uint8)), (
            layout
        )
    # In another layout than it is: refused, by the record, the block size or the key's width.
    bf16, codes = layouts.plain(V32), layouts.fp8_ds_mla(V32)
    narrow = KVContract(contract(512, "gain_then_cast"), 16, None, V32.quant)
    for records, record, rule, block_size in (
        (torch.zeros(2, 64, 656, dtype=torch.uint8), bf16, V32, 64),
        (torch.zeros(2, 64, 576).bfloat16(), codes, V32, 64),
        (torch.zeros(2, 64, 576).bfloat16(), bf16, V32, 32),
        (torch.zeros(2, 64, 576).bfloat16(), bf16, narrow, 64),
        (torch.zeros(2, 64, 576).bfloat16(), layouts.plain(narrow), narrow, 64),
    ):
        with pytest.raises((TypeError, ValueError), match="record"):
            LatentCache(records, record, rule, block_size)


@pytest.mark.case("F20-09")
def test_packed_blocks_are_whole_records_apart():
    down, positions = random_rows(4, 576), torch.arange(4)
    for record in (layouts.plain(V32), layouts.fp8_ds_mla(V32)):
        element, width = getattr(torch, record.element), record.width
        span = 64 * width
        for apart in (0, 1, 3):  # records between blocks
            stride = span + apart * width
            memory = torch.zeros(3 * stride, dtype=element)
            cache = LatentCache(
                memory.as_strided((3, 64, width), (stride, width, 1)), record, V32, 64
            )
            ends = torch.tensor([0, 63, 128, 191])  # of the first and the last block
            cache.write(down, GAIN, positions, ends)
            rows = memory.view(-1, width)
            at = [0, 63, 2 * (64 + apart), 2 * (64 + apart) + 63]
            assert rows.any(-1).nonzero().flatten().tolist() == at
            right = latentkv.compress_kv(down, GAIN, V32, positions)
            for part, wanted in zip(cache.gather(ends), right, strict=True):
                assert_same(part, wanted)
        for stray in (1, 16, width // 2, width - 1):
            memory = torch.zeros(3 * (span + width), dtype=element)
            view = memory.as_strided((3, 64, width), (span + stray, width, 1))
            with pytest.raises(ValueError, match=f"must begin at whole records of {width}"):
                LatentCache(view, record, V32, 64)


@pytest.mark.case("F20-12")
def test_a_description_keeps_all_its_fields():
    for record in (layouts.plain(K2), layouts.fp8_ds_mla(V32), layouts.fp8_per_tensor(K3)):
        wanted = record.as_json()
        for other in (
            layouts.from_json(record.as_json()),
            layouts.from_json(json.loads(json.dumps(record.as_json()))),
            pickle.loads(pickle.dumps(record)),
            copy.deepcopy(record),
            dataclasses.replace(record, name=record.name),
        ):
            assert other.as_json() == wanted
    cache = LatentCache.fp8(V32, 2)
    other = copy.deepcopy(cache)  # a cache's own record and contract go with it
    assert other.record.as_json() == cache.record.as_json() and other.contract == cache.contract
    for name, value in vars(cache).items():
        if name != "records":
            assert getattr(other, name) == value


@pytest.mark.case("F21-04")
def test_a_plain_cache_is_not_scaled():
    # No function takes a scale for a cache: those of an fp8 record lie in it. A plain cache of a
    # contract with a rule holds what the codes stand for, and reading doesn't multiply again: rows
    # whose groups have scales of 0.5, 1 and 2^-5 come back as compress_kv gave them.
    for function in (LatentCache.write, LatentCache.gather, latentkv.write_kv):
        assert not any("scale" in name for name in inspect.signature(function).parameters)
    down, positions = random_rows(6, 576), torch.arange(6)
    gain = torch.cat([torch.full((128,), s) for s in (100.0, 200.0, 4.0, 0.01)]).bfloat16()
    slots = torch.tensor([5, 0, 3, 9, 1, 2])
    fp8, plain = LatentCache.fp8(V32, 1), LatentCache.paged(V32, 1)
    for cache in (fp8, plain):
        cache.write(down, gain, positions, slots)
    scales = fp8.records[0, slots, 512:528].contiguous().view(torch.float32)
    assert len(scales.unique()) > 3 and (scales != 1).any()
    latent, key = latentkv.compress_kv(down, gain, V32, positions)
    for cache in (fp8, plain):
        assert_same(cache.gather(slots)[0], latent)
        assert_same(cache.gather(slots)[1], key)
    assert_same(plain.records[0, slots, :512], latent)
