"""What a cache's layouts keep and give back: the compressed row's own bits, byte for byte."""

import dataclasses
import struct
from itertools import combinations

import numpy as np
import pytest
import torch
from helpers import (
    DTYPES,
    assert_same,
    contract,
    name_of,
    on_each_instruction_set,
    random_gain,
    random_rows,
)
from kv_rows import K2, K3, V32, table_of

import latentkv
from latentkv import KVContract, LatentCache, LatentQuant, RopeContract, definition, layouts
from latentkv.contracts import RULES
from latentkv.definition import path, records

MODELS = {"K2": K2, "K3": K3, "V3.2": V32}


SMALL_ROPE = RopeContract(
    width=16,
    theta=10000.0,
    factor=40.0,
    low=1,
    high=4,
    interpolated="inverse",
    rounding="result",
    layout="interleaved",
    max_positions=100,
)


# Widths that are no model's: whole vectors, less than one, and no key at all.
OTHER = {
    "64 and 16": KVContract(contract(64), 16, SMALL_ROPE, LatentQuant(32, "act_quant")),
    "64 and no key": KVContract(contract(64, "gain_then_cast"), 0, None, LatentQuant(64, "sglang")),
    "12 and 2": KVContract(contract(12), 2, None, LatentQuant(4, "vllm_fused")),
    "516 and 6": KVContract(contract(516), 6, None, LatentQuant(12, "vllm_cuda")),
}


# 3 rows of 5 tokens each: neither is a multiple of a block.
BATCH, TOKENS = 3, 5


def defined(down, gain, rule, positions):
    return definition.compress_kv(down, gain, rule, positions, table_of(rule))


def with_rule(base, rule):
    group = 128 if base.quant is None else base.quant.group
    return dataclasses.replace(base, quant=LatentQuant(group, rule))


def inputs(rule, *shape, dtype=torch.bfloat16, seed=0):
    """Rows as a slice of a fused projection, a gain, and a position for each row."""
    down = random_rows(*shape, rule.width + 30, dtype=dtype, seed=seed)[..., 7 : 7 + rule.width]
    generator = torch.Generator().manual_seed(seed + 100)
    highest = 1000 if rule.rope is None else rule.rope.max_positions
    return (
        down,
        random_gain(rule.norm.width, dtype),
        torch.randint(highest, shape, generator=generator),
    )


def scattered(count, capacity, seed=0):
    """Distinct slots in no order, the first and the last one among them."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(capacity - 2, generator=generator)[: count - 2] + 1
    slots = torch.cat([order, torch.tensor([capacity - 1, 0])])
    return slots[torch.randperm(count, generator=generator)]


def caches_of(rule, dtype):
    """Each layout of rows of this dtype, with room for all tokens."""
    made = {
        "contiguous": LatentCache.contiguous(rule, BATCH, TOKENS, dtype=dtype),
        **{
            f"blocks of {size}": LatentCache.paged(rule, -(-40 // size), size, dtype=dtype)
            for size in (1, 7, 64)
        },
    }
    if rule.quant is not None and dtype == torch.bfloat16:
        made["fp8"] = LatentCache.fp8(rule, 2)
    return made


def check_every_layout(rule, dtype):
    down, gain, positions = inputs(rule, BATCH, TOKENS, dtype=dtype)
    latent, key = defined(down, gain, rule, positions)

    def check(name):
        fused = latentkv.compress_kv(down, gain, rule, positions)
        assert_same(fused[0], latent, name)
        assert_same(fused[1], key, name)
        for layout, cache in caches_of(rule, dtype).items():
            slots = scattered(BATCH * TOKENS, cache.capacity).view(BATCH, TOKENS)
            if layout == "contiguous":
                slots = torch.arange(BATCH * TOKENS).view(BATCH, TOKENS)
            cache.write(down, gain, positions, slots)
            back = cache.gather(slots)
            assert_same(back[0], latent, f"{name}, {layout}: latent")
            assert_same(back[1], key, f"{name}, {layout}: key")
            assert back[0].is_contiguous() and back[1].is_contiguous()
            if layout != "fp8":  # the records themselves, without gather
                rows = cache.records.reshape(-1, rule.width)[slots]
                assert_same(rows, torch.cat([latent, key], -1), f"{name}, {layout}: records")

    on_each_instruction_set(check)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_gives_back_the_compressed_rows(model, dtype):
    check_every_layout(MODELS[model], dtype)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", MODELS)
def test_every_scale_rule_gives_back_its_own_round_trip(model, rule):
    # K2 and K3 take a rule by dataclasses.replace: with it, their plain caches go through it too.
    check_every_layout(with_rule(MODELS[model], rule), torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("widths", OTHER)
def test_other_widths(widths, dtype):
    check_every_layout(OTHER[widths], dtype)


def test_the_rules_differ_in_what_they_store():
    # So that the tests above can tell one from another.
    down, gain, positions = inputs(V32, 64)
    kept = {}
    for rule in RULES:
        cache = LatentCache.fp8(with_rule(V32, rule), 1)
        cache.write(down, gain, positions, torch.arange(64))
        kept[rule] = cache.records
    for one, other in combinations(RULES, 2):
        if (one, other) != ("act_quant", "flashmla"):  # see the next test
            assert not torch.equal(kept[one], kept[other]), (one, other)


def test_act_quant_and_flashmla_part_at_the_floor():
    # A latent of 2^-12: amax / 448 is below 1e-4, which flashmla takes as its floor: 2^-13. The
    # floor of act_quant is of amax itself, and 2^-12 is above that: 2^-12 / 448 goes up to 2^-20.
    down, gain = torch.ones(1, 576).bfloat16(), torch.full((512,), 2.0**-12).bfloat16()
    scales = {}
    for rule in ("act_quant", "flashmla"):
        cache = LatentCache.fp8(with_rule(K3, rule), 1)
        cache.write(down, gain, None, torch.tensor([3]))
        scales[rule] = struct.unpack_from("<4f", cache.records[0, 3].numpy().tobytes(), 512)
    assert scales == {"act_quant": (2.0**-20,) * 4, "flashmla": (2.0**-13,) * 4}


def record_of(rule, down, gain, position):
    """One fp8 record, put together from the byte map and nothing else."""
    width, groups = rule.norm.width, rule.norm.width // rule.quant.group
    codes, scales = path.codes_of(down[None], gain, rule)
    key = path.key_of(down[None], rule, position[None], table_of(rule))
    made = bytearray(width + 4 * groups + 2 * rule.key_width)
    for i, code in enumerate(codes[0].view(torch.uint8).tolist()):
        made[i] = code
    struct.pack_into(f"<{groups}f", made, width, *scales[0].tolist())
    words = [word & 0xFFFF for word in key[0].view(torch.int16).tolist()]
    struct.pack_into(f"<{rule.key_width}H", made, width + 4 * groups, *words)
    return bytes(made)


@pytest.mark.parametrize("rule", RULES)
def test_record_bytes_follow_the_map(rule):
    ruled = with_rule(V32, rule)
    down, gain, positions = inputs(ruled, 9)
    slots = scattered(9, 128)
    wanted = [record_of(ruled, d, gain, p) for d, p in zip(down, positions, strict=True)]
    assert len(set(wanted)) == 9 and len(wanted[0]) == 656
    # What the map says, field by field: numbers from FlashMLA's README, not from layouts.py.
    for record in wanted:
        scales = np.frombuffer(record[512:528], "<f4")
        assert np.isfinite(scales).all() and (scales > 0).all()

    def check(name):
        cache = LatentCache.fp8(ruled, 2)
        cache.write(down, gain, positions, slots)
        for slot, record in zip(slots.tolist(), wanted, strict=True):
            kept = cache.records[slot // 64, slot % 64].numpy().tobytes()
            assert kept[:512] == record[:512], f"{name}: codes of slot {slot}"
            assert kept[512:528] == record[512:528], f"{name}: scales of slot {slot}"
            assert kept[528:] == record[528:], f"{name}: key of slot {slot}"
        by_definition = torch.zeros(2, 64, 656, dtype=torch.uint8)
        records.write(by_definition, slots, down, gain, ruled, positions, table_of(ruled))
        assert torch.equal(cache.records, by_definition), name

    on_each_instruction_set(check)


@pytest.mark.parametrize("widths", OTHER)
def test_record_bytes_of_other_widths(widths):
    ruled = OTHER[widths]
    down, gain, positions = inputs(ruled, 9)
    slots = scattered(9, 128)
    wanted = [record_of(ruled, d, gain, p) for d, p in zip(down, positions, strict=True)]

    def check(name):
        cache = LatentCache.fp8(ruled, 2)
        cache.write(down, gain, positions, slots)
        for slot, record in zip(slots.tolist(), wanted, strict=True):
            assert cache.records[slot // 64, slot % 64].numpy().tobytes() == record, (name, slot)
        used = torch.zeros(128, dtype=torch.bool)
        used[slots] = True
        assert not cache.records.view(128, -1)[~used].any()

    on_each_instruction_set(check)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("model", MODELS)
def test_plain_records_are_what_the_definition_writes(model, dtype):
    rule = MODELS[model]
    down, gain, positions = inputs(rule, BATCH, TOKENS, dtype=dtype)
    slots = scattered(BATCH * TOKENS, 35).view(BATCH, TOKENS)
    slots[1, 2] = -1
    slots[2, 4] = slots[0, 0]
    wanted = torch.full((5, 7, 576), 3.0, dtype=dtype)
    records.write(wanted, slots, down, gain, rule, positions, table_of(rule))

    def check(name):
        kept = torch.full((5, 7, 576), 3.0, dtype=dtype)
        latentkv.write_kv(kept, slots, down, gain, rule, positions)
        assert_same(kept, wanted, name)

    on_each_instruction_set(check)


@pytest.mark.parametrize("rule", RULES)
def test_groups_without_a_finite_scale(rule):
    # An infinity, a NaN, zeros and values beyond fp16, each in a group of a row of its own.
    down = random_rows(5, 576)
    down[0, 130], down[1, 511] = float("inf"), float("nan")
    down[2, :512], down[3, 256:384], down[4, :512] = 0, 0, 2.0**100
    ruled = with_rule(K3, rule)
    gain, slots = random_gain(512), scattered(5, 64)
    latent, key = defined(down, gain, ruled, None)
    zeros_are_undefined = rule == "sglang"
    assert latent[2].isnan().all() == zeros_are_undefined
    assert latent[3, 256:384].isnan().all() == zeros_are_undefined

    def check(name):
        cache = LatentCache.fp8(ruled, 1)
        cache.write(down, gain, None, slots)
        back = cache.gather(slots)
        assert_same(back[0], latent, name)
        assert_same(back[1], key, name)
        codes = cache.records[0, slots, :512]
        assert_same(codes == 0x7F, latent.isnan(), name)  # one NaN, the positive one

    on_each_instruction_set(check)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_keys_pass_unrotated_bit_for_bit(dtype):
    # NaN payloads, infinities, subnormals and -0 too: nothing looks at a key of K3.
    patterns = torch.arange(64, dtype=torch.int32) * 0x0404_1041 - 2**31
    key = patterns.view(torch.float32) if dtype.itemsize == 4 else patterns.short().view(dtype)
    down = random_rows(3, 576, dtype=dtype)
    down[:, 512:] = key
    cache = LatentCache.paged(K3, 1, 7, dtype=dtype)
    integers = {2: torch.int16, 4: torch.int32}[dtype.itemsize]

    def check(name):
        cache.records.zero_()
        cache.write(down, random_gain(512, dtype), None, torch.tensor([6, 0, 3]))
        kept = cache.records[0, [6, 0, 3], 512:]
        assert torch.equal(kept.contiguous().view(integers), down[:, 512:].clone().view(integers))

    on_each_instruction_set(check)


@pytest.mark.parametrize("model", MODELS)
def test_a_gain_of_another_dtype(model):
    # gain_then_cast keeps the rows' dtype whatever the gain's; cast_then_gain promotes, and a
    # cache in the rows' dtype can't hold that, but codes can.
    rule = MODELS[model]
    down, _, positions = inputs(rule, 6)
    slots = scattered(6, 64)
    for gain_dtype in (torch.float16, torch.float32):
        gain = random_gain(512, gain_dtype)
        ruled = rule if rule.quant else with_rule(rule, "vllm_fused")
        cache, by_definition = LatentCache.fp8(ruled, 1), torch.zeros(1, 64, 656, dtype=torch.uint8)
        cache.write(down, gain, positions, slots)
        records.write(by_definition, slots, down, gain, ruled, positions, table_of(ruled))
        assert torch.equal(cache.records, by_definition)
        if rule.norm.order == "gain_then_cast":
            plain = LatentCache.paged(rule, 1, 64)
            plain.write(down, gain, positions, slots)
            assert_same(plain.gather(slots)[0], defined(down, gain, rule, positions)[0])


def test_subnormals_survive_the_callers_mode():
    # Latents around 2^-126 in bf16; and vllm_cuda's amax / 448 below its floor of 2^-126.
    down = random_rows(4, 576)
    down[:, 512:] *= 2.0**-124
    for make, gain in (
        (lambda: LatentCache.paged(K2, 1), random_gain(512) * 2.0**-126),
        (lambda: LatentCache.fp8(with_rule(K2, "vllm_cuda"), 1), random_gain(512) * 2.0**-120),
    ):
        kept = []
        for flush in (False, True):
            cache = make()
            torch.set_flush_denormal(flush)
            try:
                cache.write(down, gain, torch.arange(4), torch.arange(4))
                kept.append((cache.records.clone(), *cache.gather(torch.arange(4))))
            finally:
                torch.set_flush_denormal(False)
        assert ((kept[0][1] != 0) & (kept[0][1].abs() < 2.0**-126)).any()
        for plain, flushed in zip(*kept, strict=True):
            assert_same(flushed, plain)


def test_sizes_and_names():
    contiguous, paged = LatentCache.contiguous(K2, 2, 10), LatentCache.paged(K3, 3, 7)
    fp8 = LatentCache.fp8(V32, 2)
    assert contiguous.records.shape == (2, 10, 576) and contiguous.block_size == 10
    assert paged.records.shape == (3, 7, 576) and fp8.records.shape == (2, 64, 656)
    assert (contiguous.capacity, paged.capacity, fp8.capacity) == (20, 21, 128)
    assert (contiguous.bytes, paged.bytes, fp8.bytes) == (20 * 1152, 21 * 1152, 128 * 656)
    for cache in (contiguous, paged, fp8):
        assert cache.bytes == cache.records.nbytes and not cache.records.any()
    assert repr(paged) == "LatentCache(bfloat16, 3 blocks of 7)"
    assert repr(fp8) == "LatentCache(fp8_ds_mla, 2 blocks of 64)"
    for dtype in DTYPES:
        assert LatentCache.paged(K2, 1, dtype=dtype).records.dtype == dtype
        assert LatentCache.paged(K2, 1, dtype=dtype).block_size == 64
    assert LatentCache.paged(K2, 2, 8, device="meta").records.is_meta


def test_a_tensor_of_the_callers_own():
    pool = torch.zeros(2, 3, 4, 7, 576, dtype=torch.bfloat16)  # kv pair, layers, blocks, size
    cache = LatentCache(pool[1, 2], layouts.plain(K2), K2, 7)
    down, gain, positions = inputs(K2, 6)
    slots = scattered(6, 28)
    cache.write(down, gain, positions, slots)
    assert cache.records.data_ptr() == pool[1, 2].data_ptr()
    assert pool[1, 2].any() and not pool[0].any() and not pool[1, :2].any()
    assert_same(cache.gather(slots)[0], defined(down, gain, K2, positions)[0])


@pytest.mark.parametrize("layout", ["plain", "fp8"])
def test_a_read_only_looks(layout):
    down, gain, positions = inputs(V32, 6)
    cache = LatentCache.fp8(V32, 1) if layout == "fp8" else LatentCache.paged(V32, 1)
    cache.write(down, gain, positions, torch.arange(6))
    before = cache.records.clone()
    latent, key = cache.gather(torch.arange(6))
    latent.fill_(3), key.fill_(3)  # results are memory of their own
    assert torch.equal(cache.records, before)
