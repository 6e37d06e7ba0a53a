"""Rotation of the shared key, defined: each line that computes is one rounding.

The table is data: built once, on the CPU, and shared by every layer and kernel. Only then do two
devices rotate alike, since their cos, sin and pow do not agree.
"""

from __future__ import annotations

import torch

from ..contracts import RopeContract
from .as_written import gradual_underflow, uncompiled


@uncompiled
def inverse_frequencies(contract: RopeContract) -> torch.Tensor:
    """Radians a position, of each pair: [width / 2], fp32, on the CPU."""
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
def rotary_table(contract: RopeContract) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of every position's angles: [max_positions, width / 2] each, fp32, on the CPU."""
    positions = torch.arange(contract.max_positions, device="cpu").float()
    angle = (positions.unsqueeze(-1) * inverse_frequencies(contract)).double()
    return angle.cos().float(), angle.sin().float()


@uncompiled
def rotate(
    key: torch.Tensor,
    positions: torch.Tensor,
    contract: RopeContract,
    table: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Turn each pair of the key by its position's angle.

    Arguments:
        key: [..., width], bf16, fp16 or fp32, any strides, pairs side by side.
        positions: [...], int32 or int64, from 0 to ``contract.max_positions``, exclusive.
        table: from `rotary_table`, on the key's device.

    Returns [..., width] in the key's dtype, contiguous, in ``contract.layout``.

    Raises TypeError or ValueError, naming what was given and what is allowed.
    """
    _check(key, positions, contract)
    cos, sin = (values[positions.long()] for values in table)
    with gradual_underflow(key):
        x0, x1 = key[..., 0::2].float(), key[..., 1::2].float()
        if contract.rounding == "each_step":
            cos, sin = _rounded(cos, key), _rounded(sin, key)
            lo = _rounded(x0 * cos, key) - _rounded(x1 * sin, key)
            hi = _rounded(x1 * cos, key) + _rounded(x0 * sin, key)
        else:
            lo = x0 * cos - x1 * sin
            hi = x0 * sin + x1 * cos
        lo, hi = lo.to(key.dtype), hi.to(key.dtype)
    if contract.layout == "half":
        return torch.cat([lo, hi], dim=-1)
    return torch.stack([lo, hi], dim=-1).flatten(-2)


def _rounded(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return value.to(like.dtype).float()


def _check(key: torch.Tensor, positions: torch.Tensor, contract: RopeContract) -> None:
    if key.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise TypeError(f"key has dtype {key.dtype}; allowed: bfloat16, float16, float32")
    if key.dim() == 0 or key.shape[-1] != contract.width:
        raise ValueError(
            f"key has shape {tuple(key.shape)}; its last dimension must be the contract's width, "
            f"{contract.width}"
        )
    if positions.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"positions have dtype {positions.dtype}; allowed: int32, int64")
    if positions.shape != key.shape[:-1]:
        raise ValueError(
            f"positions have shape {tuple(positions.shape)}; they must have one for each key, "
            f"{tuple(key.shape[:-1])}"
        )
    if positions.numel() == 0:
        return
    first, last = int(positions.min()), int(positions.max())
    if first < 0 or last >= contract.max_positions:
        raise ValueError(
            f"positions run from {first} to {last}; the contract's run from 0 to "
            f"{contract.max_positions - 1}"
        )
