"""The inputs of a check: seeded, bf16, made once per width and device."""

from __future__ import annotations

from functools import cache

import torch

# Rows per root mean square. At 1 the rounding order shows; at 0.1 and 0.01 the eps does (1e-5 for
# 1e-6 changes 7% and all of the outputs there); the rest is beyond what a latent has.
_ROWS = {1.0: 1152, 0.1: 384, 0.01: 256, 1e-4: 64, 30.0: 64, 1e4: 64, 1e8: 64}
# Batches that kernels treat as special: powers of two and their neighbours, and more than a sample.
BATCHES = (2, 3, 4, 8, 16, 32, 64, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1024, 4097)


@cache
def sample(width: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of several magnitudes [2048, width], shuffled, and a gain that hides nothing."""
    generator = torch.Generator().manual_seed(20260101)
    rows = [rms * torch.randn(n, width, generator=generator) for rms, n in _ROWS.items()]
    x = torch.cat(rows)[torch.randperm(sum(_ROWS.values()), generator=generator)]
    return x.bfloat16().to(device), _gain(width, generator).to(device)


def _gain(width: int, generator: torch.Generator) -> torch.Tensor:
    """Mostly 0.25 to 2 without powers of two, which hide the order; some negative, some far off."""
    gain = 0.25 + 1.75 * torch.rand(width, generator=generator)
    gain = torch.where(torch.rand(width, generator=generator) < 0.25, -gain, gain).bfloat16()
    bits = gain.view(torch.int16)
    gain = torch.where(bits & 0x7F == 0, bits + 1, bits).view(torch.bfloat16)
    if width >= 64:
        gain[[7, 15, 23, 31]] = torch.tensor([0.0, -0.0, 90.5, 0.0013]).bfloat16()
    return gain


@cache
def residual_sample(width: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """x and a residual [512, width]: thirty times as large, where rounding the sum shows in y; and
    both so small that the eps does."""
    generator = torch.Generator().manual_seed(20260102)
    scale = torch.ones(512, 1)
    scale[1::2] = 1e-3
    x = scale * torch.randn(512, width, generator=generator)
    residual = scale * 30 * torch.randn(512, width, generator=generator)
    residual[3::4] /= 30
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


def views(x: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The rows of x [64, width] in other shapes and strides.

    By name: the view, and the whole memory that it lies in.
    """
    rows, width = x.shape
    ahead, behind = 3 * width, width // 8

    def filled(*shape: int) -> torch.Tensor:
        return torch.full(shape, 7.0, dtype=x.dtype, device=x.device)

    middle = filled(rows, ahead + width + behind)
    deep = filled(3, rows // 2, width + behind)
    heads = filled(2, 4, rows // 8, width + behind)
    swapped = filled(rows // 2, 2, width)
    found = {
        f"a slice of rows {middle.shape[-1]} wide": (middle[:, ahead : ahead + width], middle),
        f"a 3-D slice of rows {deep.shape[-1]} wide": (deep[1:, :, :width], deep),
        f"a 4-D slice of rows {heads.shape[-1]} wide": (heads[..., :width], heads),
        "permuted leading dimensions": (swapped.transpose(0, 1), swapped),
    }
    for view, _ in found.values():
        view.copy_(x.view(view.shape))
    return found


def _with(row: torch.Tensor, value: float) -> torch.Tensor:
    row = row.clone()
    row[:: max(2, len(row) // 8)] = value  # the first feature and some others
    return row
