"""What the tests of the key-value path share: contracts, rows, positions, the comparison."""

from __future__ import annotations

import functools
import math

import torch
from helpers import assert_same, on_each_instruction_set, random_gain, random_rows

import latentkv
from latentkv import KVContract, LatentQuant, NormContract, RopeContract, definition, models
from latentkv.contracts import RULES

BF16, FP32 = torch.bfloat16, torch.float32
# Layout and rounding; the models' are half_each_step (K2), interleaved_result (V3.2), none (K3).
ROTATIONS = ("", "half_each_step", "half_result", "interleaved_each_step", "interleaved_result")
ALL_RULES = ("", *RULES)
POSITIONS = 60  # a short table: thousands are built here; test_the_models_sizes has long ones
K2, K3, V32 = (models.get(name).kv for name in ("kimi-k2", "kimi-k3", "deepseek-v3.2-exp"))


def path(
    width=512,
    key_width=64,
    order="cast_then_gain",
    rotation="",
    rule="",
    group=None,
    eps=1e-6,
    max_positions=POSITIONS,
):
    """A contract with a short table; the group is the whole latent if none is named."""
    rope = None
    if rotation:
        layout, _, rounding = rotation.partition("_")
        rope = RopeContract(
            key_width, 10000.0, 40.0, 1, 3, "inverse", rounding, layout, max_positions
        )
    quant = LatentQuant(group or width, rule) if rule else None
    return KVContract(NormContract(width, eps, order), key_width, rope, quant)


@functools.cache
def _table(rope):
    # Kept, since building one takes longer than a test, and so usable in every mode.
    with torch.inference_mode(False):
        return definition.rotary_table(rope)


def table_of(contract):
    """The contract's rotary table, or None where nothing is rotated."""
    return _table(contract.rope) if contract.rope else None


def numerics(contract):
    """What the raw operators take in a contract's place."""
    rope, quant = contract.rope, contract.quant
    return (
        contract.norm.eps,
        contract.norm.order,
        f"{rope.layout}_{rope.rounding}" if rope else "",
        quant.rule if quant else "",
        quant.group if quant else 0,
    )


# For graphs and shapes: what they are given differs from kind to kind.
KINDS = {
    "half, power of two": path(rotation="half_each_step", rule="act_quant", group=128),
    "interleaved": path(order="gain_then_cast", rotation="interleaved_result"),
    "not rotated, fused": path(order="gain_then_cast", rule="vllm_fused", group=128),
}


def groups_gain(width, group, dtype=BF16, seed=1):
    """2^-16 to 2^8 by group: the floors under a scale lie between, and fp16 has subnormals."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-16, 9, (width // group, 1), generator=generator).float()
    values = random_gain(width, FP32, seed).view(-1, group) * torch.exp2(exponents)
    return values.flatten().to(dtype)


def some_positions(*shape, dtype=torch.int64, seed=2, below=POSITIONS):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, below, shape, generator=generator, dtype=dtype)


def views():
    """Layouts in which the rows come, and others: name -> view [..., 576]."""
    batch = random_rows(3, 5, 4, 576, seed=23)
    return {
        "row": random_rows(576, seed=24),
        "packed": random_rows(7, 576, seed=25),
        "slice-2112": random_rows(7, 2112, seed=20)[:, 1536:],  # behind the query's 1,536
        "slice-2112-from-3": random_rows(7, 2112, seed=20)[:, 3:579],
        "slice-3d": random_rows(2, 3, 640, seed=21)[..., 32:608],
        "slice-3d-one-row-each": random_rows(40, 3, 640, seed=21)[:, :1, :576],
        "every-second-row": random_rows(80, 576, seed=27)[::2],
        "permuted": batch.permute(2, 0, 1, 3),
        "permuted-slice": batch[:, 1:4].permute(1, 2, 0, 3),
        "expanded": random_rows(1, 576, seed=28).expand(40, 576),
        "expanded-inside": random_rows(4, 1, 576, seed=29).expand(4, 3, 576),
        "expanded-outside": random_rows(3, 576, seed=30).expand(4, 3, 576),
        "overlapping": random_rows(1300, seed=31).as_strided((5, 576), (100, 1)),
        "size-one-dims": random_rows(4, 576, seed=32).as_strided((1, 4, 1, 576), (7, 576, 3, 1)),
        "five-dims": random_rows(2, 2, 2, 2, 640, seed=33)[..., :576].permute(3, 1, 0, 2, 4),
        "no-rows": random_rows(4, 576, seed=34)[:0],
        "no-rows-inside": torch.empty(2, 0, 576, dtype=BF16),
    }


def caches(contract, blocks=5):
    """One in the rows' dtype, and one of bytes where there are codes."""
    dtypes = [(BF16, 576)] + ([(torch.uint8, 656)] if contract.quant else [])
    for dtype, width in dtypes:
        yield torch.full((blocks, 64, width), 7, dtype=dtype)


def check(contract, down, gain, positions=None, what=""):
    """On each instruction set: values, dtypes, and outputs without strides of their own."""
    right = definition.compress_kv(down, gain, contract, positions, table_of(contract))

    def on(name):
        actual = latentkv.compress_kv(down, gain, contract, positions)
        for value, expected, part in zip(actual, right, ("latent", "key"), strict=True):
            assert value.is_contiguous()
            assert_same(value, expected, f"{name} {what} {part}")

    on_each_instruction_set(on)


def written(latent, group, rule):
    """Codes and scales that a cache's record gets for this latent, a row.

    A row of ones with an eps too small to count is the gain itself, whatever that is. A record's
    width is divisible by 4, so the groups are repeated as often as that takes.
    """
    count, groups = latent.numel(), latent.numel() // group
    times = 4 // math.gcd(count, 4)
    width, scale_bytes = times * count, 4 * times * groups
    contract = path(width, 0, rule=rule, group=group, eps=2.0**-126)
    cache = torch.full((1, 1, width + scale_bytes), 0xAA, dtype=torch.uint8)
    ones = torch.ones(1, width, dtype=BF16)
    latentkv.write_kv(cache, torch.tensor([0]), ones, latent.repeat(times), contract, None)
    codes, scales = cache.flatten().split([width, scale_bytes])
    codes, scales = codes.clone().view(torch.float8_e4m3fn), scales.clone().view(FP32)
    return codes[:count], scales[:groups]
