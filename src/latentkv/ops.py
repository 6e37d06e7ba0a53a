"""The public functions and their autograd: each checks what only Python can see."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import is_grad_enabled

from . import _library
from ._autograd import (
    apply,
    eps_of,
    in_forward_mode,
    in_transform,
    refuse_second,
    refuse_tangents,
    unit_stride,
)
from .contracts import NormContract

_rms_norm = torch.ops.latentkv.rms_norm.default
_rms_norm_fwd = torch.ops.latentkv.rms_norm_fwd.default
_rms_norm_bwd = torch.ops.latentkv.rms_norm_bwd.default
_add_rms_norm = torch.ops.latentkv.add_rms_norm.default
_add_rms_norm_fwd = torch.ops.latentkv.add_rms_norm_fwd.default
_add_rms_norm_bwd = torch.ops.latentkv.add_rms_norm_bwd.default


def rms_norm(x: torch.Tensor, gain: torch.Tensor, contract: NormContract) -> torch.Tensor:
    """Normalise the last dimension by its root mean square and apply the gain, to the bit.

    ``y = gain * x / sqrt(mean(x^2) + eps)``, rounded as ``contract.order`` says; the arithmetic is
    docs/numerics.md's, and every backend gives the bits of ``definition.rms_norm``, and in the
    backward those of ``definition.rms_norm_backward``.

    Arguments:
        x: [..., width], bf16, fp16 or fp32, last stride 1, any leading shape and strides.
        gain: [width], bf16, fp16 or fp32, contiguous, on the same device.
        contract: such as ``models.get("kimi-k2").norms.kv_latent``.

    Returns [..., width], new and contiguous: in the promotion of both dtypes for
    ``cast_then_gain``, in ``x``'s dtype for ``gain_then_cast``. Zero rows give zero rows.

    Raises:
        TypeError, ValueError: naming what was given and what is allowed.
        NotImplementedError: a second derivative, or one in forward mode, is asked for.
    """
    try:
        if x.size(-1) != contract.width:
            _library.check_operands(x, gain, contract)
        y: torch.Tensor
        if is_grad_enabled() and (x.requires_grad or gain.requires_grad or in_transform()):
            y, _ = apply(_RMSNorm, x, gain, eps_of(contract), contract.order)
            return y
        if in_forward_mode():
            refuse_tangents(x, gain)
        y = _rms_norm(x, gain, contract.eps, contract.order)
        return y
    except NotImplementedError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError):
        _explain(x, gain, contract)
        raise


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, contract: NormContract
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the residual and normalise the sum before it is rounded, to the bit.

    Arguments: as `rms_norm`; ``residual`` has the shape and dtype of ``x``, and strides of its own.

    Returns ``(y, sum)``, both new and contiguous: the normalised rows, as `rms_norm`, and
    ``x + residual`` in ``x``'s dtype. ``y`` does not see the rounding of ``sum``.

    Raises: as `rms_norm`.
    """
    try:
        if x.size(-1) != contract.width:
            _library.check_operands(x, gain, contract, residual)
        if is_grad_enabled() and (
            x.requires_grad or residual.requires_grad or gain.requires_grad or in_transform()
        ):
            y, total, _ = apply(_AddRMSNorm, x, residual, gain, eps_of(contract), contract.order)
            return y, total
        if in_forward_mode():
            refuse_tangents(x, residual, gain)
        y, total = _add_rms_norm(x, residual, gain, contract.eps, contract.order)
        return y, total
    except NotImplementedError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError):
        if residual is None:
            raise TypeError(
                "residual must be a tensor, got NoneType; without one, call rms_norm"
            ) from None
        _explain(x, gain, contract, residual)
        raise


class _RMSNorm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, gain: torch.Tensor, eps: float, order: str) -> Any:
        return _rms_norm_fwd(x, gain, eps, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, gain, _, ctx.order = inputs
        _, rstd = output
        ctx.mark_non_differentiable(rstd)
        ctx.save_for_backward(x, gain, rstd)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Any, _: Any) -> Any:
        if dy is None:
            return None, None, None, None
        x, gain, rstd = ctx.saved_tensors
        dx, dgain = apply(_RMSNormBackward, unit_stride(dy), x, gain, rstd, ctx.order)
        return dx, dgain, None, None


class _AddRMSNorm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, eps: float, order: str
    ) -> Any:
        return _add_rms_norm_fwd(x, residual, gain, eps, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, residual, gain, _, ctx.order = inputs
        _, _, rstd = output
        ctx.mark_non_differentiable(rstd)
        ctx.save_for_backward(x, residual, gain, rstd)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Any, dsum: Any, _: Any) -> Any:
        if dy is None:  # the sum alone was used: its rounding counts as an identity
            return dsum, dsum, None, None, None
        x, residual, gain, rstd = ctx.saved_tensors
        if dsum is not None:
            dsum = unit_stride(dsum)
        dx, dgain = apply(
            _AddRMSNormBackward, unit_stride(dy), dsum, x, residual, gain, rstd, ctx.order
        )
        return dx, dx, dgain, None, None


class _RMSNormBackward(torch.autograd.Function):
    """First derivatives, as a function without derivatives of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(dy: Any, x: Any, gain: Any, rstd: Any, order: str) -> Any:
        return _rms_norm_bwd(dy, x, gain, rstd, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        refuse_second()


class _AddRMSNormBackward(torch.autograd.Function):
    """As `_RMSNormBackward`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(dy: Any, dsum: Any, x: Any, residual: Any, gain: Any, rstd: Any, order: str) -> Any:
        return _add_rms_norm_bwd(dy, dsum, x, residual, gain, rstd, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        refuse_second()


def _explain(
    x: torch.Tensor,
    gain: torch.Tensor,
    contract: NormContract,
    residual: torch.Tensor | None = None,
) -> None:
    """Say what was wrong with the arguments, in the words that every backend uses.

    Where nothing was, it returns, and the caller passes on the error that it caught: this function
    must not hold it, or a cycle would keep the tensors alive.
    """
    _library.check_operands(x, gain, contract, residual)
