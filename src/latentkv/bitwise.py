"""The definition's norm on one row of bf16 values, in Python's own floats. No torch.

It is there to show each step's bits where torch must not be imported, and it is slow. A value is a
Python float, which holds any bf16 or fp32 value exactly. fp64 keeps more than 2 * 24 + 2 bits, so a
sum, product, quotient or root of fp32 values that is rounded to fp64 and then to fp32 is the
nearest fp32 value.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from .contracts import NormContract, fp32


def fp32_bits(value: float) -> int:
    """The 32 bits of an fp32 value, the sign first."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def bf16_bits(value: float) -> int:
    """The 16 bits of a bf16 value: the upper half of its fp32 bits."""
    return fp32_bits(value) >> 16


def bf16(value: float) -> float:
    """An fp32 value rounded to the nearest bf16, ties to even; beyond the range, an infinity."""
    if math.isnan(value):
        return value
    bits = fp32_bits(value)
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])


def fold(values: Sequence[float]) -> float:
    """The pairwise fp32 sum of at least one value: `latentkv.definition.fold` of one row."""
    level = list(values)
    while len(level) > 1:
        paired = len(level) // 2 * 2
        sums = [fp32(level[i] + level[i + 1]) for i in range(0, paired, 2)]
        level = sums + level[paired:]
    return level[0]


@dataclass(frozen=True)
class Walk:
    """Every value between a row and its normalised output, named as docs/numerics.md does.

    Arguments:
        a: the row in fp32.
        q: its squares. ``total`` is their fold, ``mean`` that by the width, ``v`` the mean plus
            eps, ``s`` the root of it, ``rho`` the reciprocal.
        n: the normalised row, in fp32.
        h: ``n`` rounded to bf16; None for ``gain_then_cast``, which has no such step.
        p: the product with the gain, in fp32.
        y: the output, in bf16.
    """

    a: tuple[float, ...]
    q: tuple[float, ...]
    total: float
    mean: float
    v: float
    s: float
    rho: float
    n: tuple[float, ...]
    h: tuple[float, ...] | None
    p: tuple[float, ...]
    y: tuple[float, ...]


def rms_norm(x: Sequence[float], gain: Sequence[float], contract: NormContract) -> Walk:
    """What `latentkv.definition.rms_norm` makes of one bf16 row and a bf16 gain, step by step.

    Arguments:
        x, gain: ``contract.width`` bf16 values each.

    Raises ValueError for another number of values, and for one that bf16 doesn't hold.
    """
    for name, values in (("x", x), ("gain", gain)):
        if len(values) != contract.width:
            raise ValueError(
                f"{name} has {len(values)} values, the contract's width is {contract.width}: "
                "pass one row"
            )
        for i, value in enumerate(values):
            if not math.isnan(value) and bf16(fp32(value)) != value:
                raise ValueError(f"{name}[{i}] = {value!r} is no bf16 value: round it with bf16()")
    a = tuple(x)
    q = tuple(fp32(one * one) for one in a)
    total = fold(q)
    mean = fp32(total / contract.width)
    v = fp32(mean + fp32(contract.eps))
    s = fp32(math.sqrt(v))
    rho = fp32(1 / s)
    n = tuple(fp32(one * rho) for one in a)
    h = tuple(map(bf16, n)) if contract.order == "cast_then_gain" else None
    p = tuple(fp32(one * factor) for one, factor in zip(n if h is None else h, gain, strict=True))
    return Walk(a, q, total, mean, v, s, rho, n, h, p, tuple(map(bf16, p)))
