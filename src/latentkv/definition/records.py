"""Cached records, defined: what a write leaves in memory and what a read gives back.

A cache is [blocks, block_size, record], in the rows' dtype (latent, then key) or in uint8 (the fp8
record of layouts.py). Slot s is record ``s % block_size`` of block ``s // block_size``.
"""

from __future__ import annotations

import torch

from ..contracts import KVContract
from .as_written import uncompiled
from .path import codes_of, compress_kv, joined, key_of
from .quant import dequantise


@uncompiled
def write(
    cache: torch.Tensor,
    slots: torch.Tensor,
    down: torch.Tensor,
    gain: torch.Tensor,
    contract: KVContract,
    positions: torch.Tensor | None,
    table: torch.Tensor | None = None,
) -> None:
    """Compress each row into its slot: a negative one skips it, of equal ones the last wins."""
    kept = slots >= 0
    rows, where = down[kept], slots[kept].long()
    if not where.numel():
        return
    if contract.rope is not None and positions is not None:
        positions = positions.expand(down.shape[:-1])[kept]
    fresh = encode(rows, gain, contract, positions, table, fp8=cache.dtype == torch.uint8)
    distinct, place = where.unique(return_inverse=True)
    order = torch.arange(where.numel(), device=where.device)
    last = torch.zeros_like(distinct).scatter_reduce_(0, place, order, "amax", include_self=False)
    block_size = cache.shape[1]
    cache[distinct // block_size, distinct % block_size] = fresh[last]


@uncompiled
def encode(
    down: torch.Tensor,
    gain: torch.Tensor,
    contract: KVContract,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    *,
    fp8: bool,
) -> torch.Tensor:
    """The records of rows [n, width]: [n, record], in the rows' dtype or in uint8."""
    if not fp8:
        return joined(*compress_kv(down, gain, contract, positions, table))
    codes, scales = codes_of(down, gain, contract)
    key = key_of(down, contract, positions, table)
    return torch.cat([part.view(torch.uint8) for part in (codes, scales, key)], dim=-1)


@uncompiled
def read(
    cache: torch.Tensor, slots: torch.Tensor, width: int, key_width: int, group: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents [..., width] and keys [..., key_width] of these slots; a negative one gives zeros.

    No other slot is looked at. ``group`` is that of an fp8 cache, whose latents come in bf16.
    """
    block_size = cache.shape[1]
    kept = slots >= 0
    at = slots[kept].long()
    found = cache.new_zeros((*slots.shape, cache.shape[2]))
    found[kept] = cache[at // block_size, at % block_size]
    if group is None:
        return found[..., :width].contiguous(), found[..., width:].contiguous()
    ends = [width, width + 4 * (width // group)]
    codes, scales, key = found.tensor_split(ends, dim=-1)
    values = dequantise(
        codes.contiguous().view(torch.float8_e4m3fn),
        scales.contiguous().view(torch.float32),
        torch.bfloat16,
    )
    return values, key.contiguous().view(torch.bfloat16)
