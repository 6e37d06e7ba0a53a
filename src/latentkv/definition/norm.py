"""RMSNorm, defined: each line below is one rounding.

Computed in fp32 (fp64 input: in fp64 throughout). Nothing is fused, nothing reassociated: the
sum's order is `fold`'s, which SIMD lanes and GPU warps can follow at no cost.
"""

from __future__ import annotations

import torch

from ..contracts import NormContract
from .arguments import check_norm
from .as_written import gradual_underflow, uncompiled


def fold(q: torch.Tensor) -> torch.Tensor:
    """Sum the last dimension pairwise: neighbours first, until one value is left.

    A value without a neighbour is carried up unchanged; the fold of nothing is +0.

    Arguments:
        q: [..., n], fp32 or fp64. Returns [...], the same dtype.
    """
    if q.shape[-1] == 0:
        return q.new_zeros(q.shape[:-1])
    while q.shape[-1] > 1:
        paired = q.shape[-1] // 2 * 2
        sums = q[..., 0:paired:2] + q[..., 1:paired:2]
        q = torch.cat([sums, q[..., paired:]], dim=-1)
    return q[..., 0]


@uncompiled
def rms_norm(x: torch.Tensor, gain: torch.Tensor, contract: NormContract) -> torch.Tensor:
    """Normalise each row of ``x`` by its root mean square and apply the learned gain.

    Arguments:
        x: [..., width], bf16, fp16, fp32 or fp64, any strides.
        gain: [width], bf16, fp16 or fp32; fp64 with fp64 ``x``.
        contract: width, eps and the order of gain and cast.

    Returns [..., width], contiguous: in the promotion of both dtypes for ``cast_then_gain``, in
    ``x``'s dtype for ``gain_then_cast``.

    Raises TypeError or ValueError, naming what was given and what is allowed.
    """
    check_norm(x, gain, contract)
    with gradual_underflow(x):
        return _normalise(_widen(x), x.dtype, gain, contract)


@uncompiled
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, contract: NormContract
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual, then normalise the sum as it is, before it is rounded for storage.

    Arguments: as `rms_norm`; ``residual`` has the shape and dtype of ``x``.

    Returns the normalised rows, as `rms_norm`, and the sum in ``x``'s dtype, both contiguous.
    """
    check_norm(x, gain, contract, residual)
    with gradual_underflow(x):
        a = _widen(x) + _widen(residual)
        return _normalise(a, x.dtype, gain, contract), a.to(x.dtype).contiguous()


def _normalise(
    a: torch.Tensor, in_dtype: torch.dtype, gain: torch.Tensor, contract: NormContract
) -> torch.Tensor:
    rstd = _reciprocal_rms(a, contract.eps)
    n = a * rstd.unsqueeze(-1)
    if contract.order == "cast_then_gain":
        h = n.to(in_dtype)
        y = (_widen(h) * _widen(gain)).to(torch.promote_types(in_dtype, gain.dtype))
    else:
        y = (_widen(gain) * n).to(in_dtype)
    return y.contiguous()


def _reciprocal_rms(a: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean of squares + eps) of each row: [..., width] -> [...]."""
    total = fold(a * a)
    # Tensors, not numbers: on CUDA, division by a number multiplies by its reciprocal.
    mean = total / torch.full_like(total, a.shape[-1])
    v = mean + torch.full_like(total, eps)
    # torch.sqrt in fp32 misses the nearest value on a CPU (0.6 to 20% of inputs, by processor).
    # In fp64 it is off by an ulp at most, while no root of an fp32 value lies that near a midpoint
    # between two fp32 values: rounding it gives the right one.
    s = v.double().sqrt().to(v.dtype)
    return torch.ones_like(s) / s


def _widen(value: torch.Tensor) -> torch.Tensor:
    return value if value.dtype == torch.float64 else value.float()
