"""RMSNorm, defined: each line below is one rounding.

Computed in fp32 (fp64 input: in fp64 throughout). Nothing is fused, nothing reassociated: the
sum's order is `fold`'s, which SIMD lanes and GPU warps can follow at no cost.
"""

from __future__ import annotations

import torch

from ..contracts import NormContract
from .arguments import check_gradients, check_norm, output_dtype
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
        a = _widen(x)
        return _normalise(a, _reciprocal_rms(a, contract.eps), x.dtype, gain, contract)


@uncompiled
def unrounded_rms_norm(x: torch.Tensor, gain: torch.Tensor, contract: NormContract) -> torch.Tensor:
    """What `rms_norm` rounds last: fp32 (fp64 for fp64), for who quantises it as it is."""
    check_norm(x, gain, contract)
    with gradual_underflow(x):
        a = _widen(x)
        return _scaled(a, _reciprocal_rms(a, contract.eps), x.dtype, gain, contract)


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
        y = _normalise(a, _reciprocal_rms(a, contract.eps), x.dtype, gain, contract)
        return y, a.to(x.dtype).contiguous()


@uncompiled
def reciprocal_rms(
    x: torch.Tensor, contract: NormContract, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """1 / sqrt(mean of squares + eps) of each row: the forward uses it, the backward keeps it.

    Returns [...], contiguous, in fp32 (fp64 for fp64).
    """
    with gradual_underflow(x):
        a = _widen(x) if residual is None else _widen(x) + _widen(residual)
        return _reciprocal_rms(a, contract.eps).contiguous()


@uncompiled
def rms_norm_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    gain: torch.Tensor,
    rstd: torch.Tensor,
    contract: NormContract,
    residual: torch.Tensor | None = None,
    dsum: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `rms_norm`, or with a residual of `add_rms_norm`.

    The forward's casts count as identities; only the results are rounded.

    Arguments:
        dy: the gradient of ``y``, in its shape and dtype.
        rstd: [...], from `reciprocal_rms`.
        dsum: with a residual, the gradient of the sum, or None where there is none.

    Returns the gradient of ``x`` (and of the residual: they are one), in ``x``'s shape and dtype,
    and that of the gain, in its dtype: the fold over all rows, in the order of the leading
    dimensions.

    Raises TypeError or ValueError, naming what was given and what is allowed.
    """
    check_norm(x, gain, contract, residual)
    check_gradients(dy, x, gain, rstd, contract, dsum)
    with gradual_underflow(x):
        a = _widen(x) if residual is None else _widen(x) + _widen(residual)
        n = a * rstd.unsqueeze(-1)
        g = _widen(dy) * _widen(gain)
        dot = fold(g * n)
        c = (dot / torch.full_like(dot, contract.width)).unsqueeze(-1)
        da = rstd.unsqueeze(-1) * (g - n * c)
        if dsum is not None:
            da = da + _widen(dsum)
        t = _widen(n.to(x.dtype)) if contract.order == "cast_then_gain" else n
        shares = (_widen(dy) * t).reshape(-1, contract.width)
        return da.to(x.dtype).contiguous(), fold(shares.T).to(gain.dtype)


def _normalise(
    a: torch.Tensor,
    rstd: torch.Tensor,
    in_dtype: torch.dtype,
    gain: torch.Tensor,
    contract: NormContract,
) -> torch.Tensor:
    y = _scaled(a, rstd, in_dtype, gain, contract)
    return y.to(output_dtype(in_dtype, gain.dtype, contract.order)).contiguous()


def _scaled(
    a: torch.Tensor,
    rstd: torch.Tensor,
    in_dtype: torch.dtype,
    gain: torch.Tensor,
    contract: NormContract,
) -> torch.Tensor:
    n = a * rstd.unsqueeze(-1)
    if contract.order == "cast_then_gain":
        return _widen(n.to(in_dtype)) * _widen(gain)
    return _widen(gain) * n


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
