"""The norm with one step done another way: what deviating outputs are held against.

Each keyword's default is the contract's way. The deviations are those that have been met in
public, in norms of serving engines and training libraries.
"""

from __future__ import annotations

import torch

from ..definition import fold
from ..definition.as_written import gradual_underflow, uncompiled


@uncompiled
def variant(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    order: str,
    *,
    store: str = "nearest",
    placement: str = "inside",
    rstd: str = "fp32",
    residual: torch.Tensor | None = None,
    summed: str = "unrounded",
) -> torch.Tensor:
    """RMSNorm of bf16 rows, each step as named.

    Arguments:
        store: "nearest" or "truncated", for every rounding to ``x``'s dtype.
        placement: of eps: "inside" the root, "outside" it, or a lower bound ("floor").
        rstd: the reciprocal root in "fp32", or rounded to ``x``'s dtype ("rounded").
        summed: the residual sum is normalised "unrounded" or "rounded".
    """
    with gradual_underflow(x):
        a = x.float()
        if residual is not None:
            a = a + residual.float()
            if summed == "rounded":
                a = a.to(x.dtype).float()
        mean = fold(a * a) / x.shape[-1]
        scale = 1 / _root(mean, eps, placement)
        if rstd == "rounded":
            scale = scale.to(x.dtype).float()
        n = a * scale.unsqueeze(-1)
        cast = _truncate if store == "truncated" else torch.Tensor.to
        if order == "cast_then_gain":
            return cast(cast(n, x.dtype).float() * gain.float(), x.dtype)
        return cast(gain.float() * n, x.dtype)


def _root(mean: torch.Tensor, eps: float, placement: str) -> torch.Tensor:
    if placement == "outside":
        return mean.double().sqrt().float() + eps
    v = mean.clamp_min(eps) if placement == "floor" else mean + eps
    return v.double().sqrt().float()


def _truncate(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    assert dtype == torch.bfloat16
    return (value.view(torch.int32) & -0x10000).view(torch.float32).to(dtype)
