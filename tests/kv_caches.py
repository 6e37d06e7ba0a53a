"""What the tests of caches share: caches, rows for them, and the records by the definition."""

from __future__ import annotations

import dataclasses

import torch
from helpers import random_gain, random_rows
from kv_rows import K2, table_of

from latentkv import LatentCache, LatentQuant
from latentkv.definition import records

K2_FP8 = dataclasses.replace(K2, quant=LatentQuant(128, "act_quant"))
GAIN = random_gain(512)
# A right call of six rows of K2 into a plain cache of 28: what refusals are variations of.
DOWN = random_rows(6, 576)
POSITIONS, SLOTS = torch.tensor([0, 9, 4, 7, 131_071, 3]), torch.tensor([5, 27, 0, -1, 13, 2])
LAYOUTS = ("contiguous", "blocks of 7", "fp8")
GARBAGE = 2**62 + 5  # a position that no table has


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
    return records.encode(down, GAIN, rule, positions, table_of(rule), fp8=fp8)


def expected(cache, down, positions, slots):
    """All records after a write, by a plain loop in which the last one wins."""
    after = cache.records.clone().view(-1, cache.record.width)
    fresh = encoded(cache, down.reshape(-1, 576), positions.reshape(-1))
    for row, slot in enumerate(slots.flatten().tolist()):
        if slot >= 0:
            after[slot] = fresh[row]
    return after.view_as(cache.records)


def plain(dtype=torch.bfloat16):
    """Memory for 4 blocks of 7 records of K2."""
    return torch.full((4, 7, 576), 777, dtype=dtype)


def fp8():
    """Memory for 2 blocks of 64 records of codes."""
    return torch.full((2, 64, 656), 119, dtype=torch.uint8)


def replaced(values, index, value):
    values = values.clone()
    values[index] = value
    return values


def bytes_of(cache):
    """What a tensor's memory holds, guards and all."""
    if not isinstance(cache, torch.Tensor) or cache.is_meta or cache.layout != torch.strided:
        return b""
    return torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage()).numpy().tobytes()
