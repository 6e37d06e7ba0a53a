"""Slots past 2^31 elements or bytes, where 32-bit offsets wrap: untouched memory isn't mapped."""

import dataclasses

import pytest
import torch
from helpers import assert_same, lazily_mapped, on_each_instruction_set, random_gain, random_rows

from latentkv import LatentCache, LatentQuant, compress_kv, layouts, models

K3 = models.get("kimi-k3").kv  # nothing is rotated: positions have tests of their own
FP8 = dataclasses.replace(K3, quant=LatentQuant(128, "act_quant"))
GAIN = random_gain(512)
INT32, UINT32 = 2**31, 2**32


def check(cache, slots):
    """Rows written to these slots come back, and slots where a wrapped offset leads stay empty."""
    slots = torch.tensor(slots)
    down = random_rows(len(slots), 576)
    latent, key = compress_kv(down, GAIN, cache.contract, None)
    empty = torch.tensor([0, 1, 2, 5])

    def on(name):
        cache.write(down, GAIN, None, slots)
        for index in (slots, slots.int()):
            back = cache.gather(index)
            assert_same(back[0], latent, name)
            assert_same(back[1], key, name)
        for part in cache.gather(empty):
            assert not part.view(torch.int16).any(), name
        for i, slot in enumerate(slots.tolist()):  # the last rows alone, too
            cache.write(down[i], GAIN, None, slots[i])
            assert_same(cache.gather(torch.tensor(slot))[0], latent[i], name)

    on_each_instruction_set(on)


def plain(capacity, block_size=1):
    memory = lazily_mapped(capacity * 576).view(-1, block_size, 576)
    return LatentCache(memory, layouts.plain(K3), K3, block_size)


def fp8(blocks):
    memory = lazily_mapped(blocks * 64 * 656, torch.uint8).view(blocks, 64, 656)
    return LatentCache(memory, layouts.fp8_ds_mla(FP8), FP8, 64)


@pytest.mark.case("F07-07")
def test_slots_past_32_bits_of_elements():
    last_safe, first_bad, unsigned = 3_728_270, 3_728_271, 7_456_541
    assert last_safe * 576 < INT32 <= first_bad * 576
    assert first_bad * 576 - UINT32 == -2_147_483_200
    assert (unsigned - 1) * 576 < UINT32 <= unsigned * 576
    check(plain(unsigned + 2), [last_safe, unsigned, first_bad, unsigned + 1, last_safe - 1])


def test_slots_past_32_bits_of_fp8_bytes():
    first_bad = 3_273_604
    assert (first_bad - 1) * 656 < INT32 <= first_bad * 656
    unsigned = -(-UINT32 // 656)
    check(fp8(unsigned // 64 + 1), [first_bad - 1, first_bad, unsigned - 1, unsigned])


@pytest.mark.case("F07-09")
def test_a_cache_larger_than_2_gb():
    # 3,728,300 rows: in elements past 2^31 as well; the first slots past 2 GB in bytes among them.
    bytes_past = -(-INT32 // 1152)
    cache = plain(3_728_300)
    assert cache.bytes > INT32 and cache.records.numel() > INT32
    check(cache, [3_728_299, bytes_past, bytes_past - 1])


@pytest.mark.case("F07-11")
def test_token_4_194_304_of_an_fp8_cache():
    token = 4_194_304
    assert token * 512 == INT32
    check(fp8(token // 64 + 1), [token - 1, token, token + 1])


@pytest.mark.case("F07-12")
def test_a_page_past_32_bits():
    page = 58_255
    assert (page - 1) * 64 * 576 < INT32 <= page * 64 * 576
    check(plain((page + 1) * 64, 64), [page * 64 - 1, page * 64, page * 64 + 63])


def test_blocks_far_apart():
    # A few blocks in a large pool: their stride alone passes 32 bits.
    stride = -(-(INT32 + 576) // 576) * 576
    view = lazily_mapped(2 * stride + 7 * 576).as_strided((3, 7, 576), (stride, 576, 1))
    check(LatentCache(view, layouts.plain(K3), K3, 7), [7, 20, 14, 13])


def test_records_far_apart():
    stride = -(-(INT32 + 576) // 576) * 576
    view = lazily_mapped(2 * stride + 576).as_strided((1, 3, 576), (576, stride, 1))
    cache = LatentCache(view, layouts.plain(K3), K3, 3)
    down, slots = random_rows(2, 576), torch.tensor([2, 1])
    cache.write(down, GAIN, None, slots)
    assert_same(cache.gather(slots)[0], compress_kv(down, GAIN, K3, None)[0])
    assert not cache.gather(torch.tensor([0]))[0].any()
