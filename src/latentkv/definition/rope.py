"""Rotation of the shared key, defined: each line that computes is one rounding.

The table is data: built once, on the CPU, and shared by every layer and kernel. Only then do two
devices rotate alike, since their cos, sin and pow do not agree.
"""

from __future__ import annotations

import math

import torch

from ..contracts import RopeContract
from .arguments import check_key, check_positions
from .as_written import gradual_underflow, uncompiled


@uncompiled
def inverse_frequencies(contract: RopeContract) -> torch.Tensor:
    """Radians a position, of each pair: [width / 2], fp32, on the CPU."""
    with gradual_underflow(torch.empty(contract.width, device="cpu")):
        return _inverse_frequencies(contract)


@uncompiled
def rotary_table(contract: RopeContract) -> torch.Tensor:
    """Every position's row, cos of all pairs and then sin: [max_positions, width], fp32, CPU.

    Any libm gives these bits: for the models' tables no fp64 cos or sin comes within 5 ulps of the
    middle between two fp32 values. A directed rounding mode would not, and is refused.
    """
    return build_table(contract)


def build_table(contract: RopeContract) -> torch.Tensor:
    """`rotary_table`, for who sees to it that no compiler traces it."""
    tiny = math.ldexp(1.0, -60)  # a constant would be folded when this file is compiled
    if 1 + tiny != 1 or 1 - tiny != 1:
        raise RuntimeError(
            "the floating-point unit doesn't round to nearest, and the rotary table is built once "
            "for the whole process: restore the mode for the first call"
        )
    shape = (contract.max_positions, contract.width)
    table = torch.empty(shape, dtype=torch.float32, device="cpu")
    with gradual_underflow(table):
        positions = torch.arange(contract.max_positions, device="cpu").float()
        angle = (positions.unsqueeze(-1) * _inverse_frequencies(contract)).double()
        cos, sin = table.chunk(2, dim=-1)
        cos.copy_(angle.cos())
        sin.copy_(angle.sin_())
    return table


def _inverse_frequencies(contract: RopeContract) -> torch.Tensor:
    pairs = contract.width // 2
    i = torch.arange(pairs, device="cpu")
    # In fp64 and rounded once: torch's pow in fp32 is a bit off for one pair with AVX.
    powers = [contract.theta ** (k / pairs) for k in range(pairs)]
    power = torch.tensor(powers, dtype=torch.float64, device="cpu").float()
    one = torch.ones_like(power)
    factor = torch.full_like(power, contract.factor)
    extra = one / power
    inter = one / (factor * power) if contract.interpolated == "power" else extra / factor
    steps = torch.full_like(power, contract.high - contract.low)
    ramp = ((i - contract.low).float() / steps).clamp(0, 1)
    keep = one - ramp
    return inter * (one - keep) + extra * keep


@uncompiled
def rotate(
    key: torch.Tensor, positions: torch.Tensor, contract: RopeContract, table: torch.Tensor
) -> torch.Tensor:
    """Turn each pair of the key by its position's angle.

    Arguments:
        key: [..., width], bf16, fp16, fp32 or fp64, any strides, pairs side by side.
        positions: int32 or int64, broadcast to [...], from 0 to ``contract.max_positions``,
            exclusive.
        table: from `rotary_table`, on the key's device.

    Returns [..., width] in the key's dtype, contiguous, in ``contract.layout``.

    Raises TypeError or ValueError, naming what was given and what is allowed.
    """
    check_key(key, contract.width)
    with gradual_underflow(key):
        cos, sin = _of_positions(positions, key, contract, table)
        x0, x1 = _widen(key[..., 0::2]), _widen(key[..., 1::2])
        if contract.rounding == "each_step":
            lo = _rounded(x0 * cos, key) - _rounded(x1 * sin, key)
            hi = _rounded(x1 * cos, key) + _rounded(x0 * sin, key)
        else:
            lo = x0 * cos - x1 * sin
            hi = x0 * sin + x1 * cos
        # Joined before the last rounding: under autocast to the other 16-bit dtype, torch.cat
        # and torch.stack refuse rounded ones.
        if contract.layout == "half":
            return torch.cat([lo, hi], dim=-1).to(key.dtype)
        return torch.stack([lo, hi], dim=-1).flatten(-2).to(key.dtype)


@uncompiled
def rotate_backward(
    dkey: torch.Tensor, positions: torch.Tensor, contract: RopeContract, table: torch.Tensor
) -> torch.Tensor:
    """The gradient of `rotate`: each pair turned back, in fp32 and rounded once.

    The forward's roundings count as identities, but for those of cos and sin, which are data.

    Arguments: as `rotate`; ``dkey`` is the gradient of its result, in the key's dtype and in
    ``contract.layout``. Returns that of the key, [..., width], its pairs side by side.
    """
    check_key(dkey, contract.width)
    with gradual_underflow(dkey):
        cos, sin = _of_positions(positions, dkey, contract, table)
        lo, hi = map(_widen, _pairs(dkey, contract.layout == "half"))
        turned = dkey.new_empty(dkey.shape)
        turned[..., 0::2] = lo * cos + hi * sin
        turned[..., 1::2] = hi * cos - lo * sin
    return turned


def _pairs(key: torch.Tensor, half: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the pairs' first elements and of their second ones."""
    if half:
        lo, hi = key.chunk(2, dim=-1)
        return lo, hi
    return key[..., 0::2], key[..., 1::2]


def _of_positions(
    positions: torch.Tensor, key: torch.Tensor, contract: RopeContract, table: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [..., width / 2] as the key's dtype has them, widened again."""
    check_positions(positions, key, contract.max_positions)
    rows = table[positions.expand(key.shape[:-1]).long()]
    if contract.rounding == "each_step":
        rows = rows.to(key.dtype)
    cos, sin = _widen(rows if key.dtype != torch.float64 else rows.double()).chunk(2, dim=-1)
    return cos, sin


def _rounded(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return _widen(value.to(like.dtype))


def _widen(value: torch.Tensor) -> torch.Tensor:
    return value if value.dtype == torch.float64 else value.float()
