"""The inputs of a check: seeded, bf16, made once per width and device."""

from __future__ import annotations

from functools import cache

import torch

# Rows per root mean square. At 1 the rounding order shows; at 0.1 and 0.01 the eps does (1e-5 for
# 1e-6 changes 7% and all of the outputs there); 30 is beyond what a latent has.
_ROWS = {1.0: 1280, 0.1: 384, 0.01: 256, 30.0: 128}


@cache
def sample(width: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of several magnitudes [2048, width], shuffled, and a gain without powers of two."""
    generator = torch.Generator().manual_seed(20260101)
    rows = [rms * torch.randn(n, width, generator=generator) for rms, n in _ROWS.items()]
    x = torch.cat(rows)[torch.randperm(sum(_ROWS.values()), generator=generator)]
    gain = 0.25 + 1.75 * torch.rand(width, generator=generator)
    return x.bfloat16().to(device), _off_powers(gain.bfloat16()).to(device)


@cache
def residual_sample(width: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """x and a residual 30 times as large [256, width]: rounding their sum shows in y."""
    generator = torch.Generator().manual_seed(20260102)
    x = torch.randn(256, width, generator=generator)
    residual = 30 * torch.randn(256, width, generator=generator)
    return x.bfloat16().to(device), residual.bfloat16().to(device)


def special_rows(width: int, device: str) -> dict[str, torch.Tensor]:
    """One row per special case, by what goes wrong where it is not as defined."""
    ones = torch.ones(width)
    rows = {
        "zeros": 0 * ones,
        "negative zeros": -0.0 * ones,
        "an infinity": _with(ones, float("inf")),
        "a NaN": _with(ones, float("nan")),
        "subnormals": _with(ones, 2.0**-130),
        "an overflowing square": _with(ones, 3e38),
        "a row of subnormals": 2.0**-130 * ones,
    }
    return {name: row.bfloat16().unsqueeze(0).to(device) for name, row in rows.items()}


def strided_views(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The rows of x [even, width] as slices of wider ones, by name."""
    rows, width = x.shape
    ahead, behind = 3 * width, width // 8
    buffer = torch.full((rows, ahead + width + behind), 7.0, dtype=x.dtype, device=x.device)
    middle = buffer[:, ahead : ahead + width]
    middle.copy_(x)
    wide = torch.full((3, rows // 2, width + behind), 7.0, dtype=x.dtype, device=x.device)
    first = wide[1:, :, :width]
    first.copy_(x.view(2, rows // 2, width))
    return {
        f"a slice of rows {buffer.shape[1]} wide": middle,
        f"a 3-D slice of rows {wide.shape[2]} wide": first,
    }


def _with(row: torch.Tensor, value: float) -> torch.Tensor:
    row = row.clone()
    row[:: max(2, len(row) // 8)] = value  # the first feature and some others
    return row


def _off_powers(gain: torch.Tensor) -> torch.Tensor:
    """Move bf16 powers of two, which hide the order, to the next value."""
    bits = gain.view(torch.int16)
    return torch.where(bits & 0x7F == 0, bits + 1, bits).view(torch.bfloat16)
