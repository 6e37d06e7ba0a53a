"""Special values, and every 16-bit one, in each place of the path's rows and gain."""

import math

import pytest
import torch
from helpers import ORDERS, PAIRS, from_bits, name_of, random_rows
from kv_rows import ALL_RULES, ROTATIONS, check, groups_gain, path, some_positions

from latentkv.contracts import RULES

BF16, FP16 = torch.bfloat16, torch.float16


@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_special_values_anywhere(pair, rule):
    # In each place of a vector and of the tail, of the latent and of the key: 35 is a vector of 32
    # and a rest, 34 too. 7 groups of 5: a special value leaves the six others alone.
    width, key_width, special = 35, 34, torch.finfo(pair[0])
    base = random_rows(69, 69, dtype=pair[0], seed=8)
    gain, positions = groups_gain(width, 5, pair[1]), some_positions(69)
    diagonal = torch.eye(69, dtype=torch.bool)
    for order in ORDERS:
        contract = path(width, key_width, order, "half_each_step", rule, 5)
        for value in (math.nan, math.inf, -math.inf, 0.0, -0.0, special.max, special.tiny):
            check(contract, base.masked_fill(diagonal, value), gain, positions, f"{value}")
        for value in (math.nan, math.inf, 0.0, torch.finfo(pair[1]).max, torch.finfo(pair[1]).tiny):
            scale = gain.clone()
            scale[12], scale[34] = value, -value
            check(contract, base[:3], scale, positions[:3], f"{value} in the gain")
        for value in (0.0, -0.0, math.nan, math.inf, special.max, special.tiny, special.tiny / 4):
            rows = torch.full((2, 69), value, dtype=pair[0])
            check(contract, rows, gain, positions[:2], f"{value} throughout")


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=name_of)
def test_all_65536_values_as_key(dtype, rotation):
    # Infinities, NaN, subnormals, overflow; beside their neighbours and beside anything.
    values = from_bits(range(65536), dtype)
    shuffled = values[torch.randperm(65536, generator=torch.Generator().manual_seed(0))]
    contract = path(1, 64, rotation=rotation)
    positions = some_positions(1024)
    for keys in (values, shuffled):
        down = torch.cat([torch.ones(1024, 1, dtype=dtype), keys.view(1024, 64)], -1)
        check(contract, down, torch.ones(1, dtype=dtype), positions)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=name_of)
def test_all_65536_values_as_latent(dtype, rule):
    # Rows of ones with eps too small to count: the gain is the latent, each value of the format.
    # Groups of 2 (one magnitude) and of 512 (from order, and from shuffling, both kinds).
    values = from_bits(range(65536), dtype)
    shuffled = values[torch.randperm(65536, generator=torch.Generator().manual_seed(0))]
    finite = torch.where(shuffled.isfinite(), shuffled, 1)
    ones = torch.ones(1, 65536, dtype=dtype)
    for gain, group in ((values, 2), (values, 512), (shuffled, 2), (finite, 512)):
        for order in ORDERS:
            contract = path(65536, 0, order, "", rule, group, eps=2.0**-126)
            check(contract, ones, gain, what=f"{group} {order}")
