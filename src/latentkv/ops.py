"""The public functions: each checks what only Python can see and calls one operator."""

from __future__ import annotations

import torch
from torch import is_grad_enabled
from torch.autograd import forward_ad

from . import _library
from .contracts import NormContract

_rms_norm = torch.ops.latentkv.rms_norm.default
_add_rms_norm = torch.ops.latentkv.add_rms_norm.default


def rms_norm(x: torch.Tensor, gain: torch.Tensor, contract: NormContract) -> torch.Tensor:
    """Normalise the last dimension by its root mean square and apply the gain, to the bit.

    ``y = gain * x / sqrt(mean(x^2) + eps)``, rounded as ``contract.order`` says; the arithmetic is
    docs/numerics.md's, and every backend gives the bits of ``definition.rms_norm``.

    Arguments:
        x: [..., width], bf16, fp16 or fp32, last stride 1, any leading shape and strides.
        gain: [width], bf16, fp16 or fp32, contiguous, on the same device.
        contract: such as ``models.get("kimi-k2").norms.kv_latent``.

    Returns [..., width], new and contiguous: in the promotion of both dtypes for
    ``cast_then_gain``, in ``x``'s dtype for ``gain_then_cast``. Zero rows give zero rows.

    Raises:
        TypeError, ValueError: naming what was given and what is allowed.
        NotImplementedError: ``x`` or ``gain`` needs a gradient; there is no backward yet.
    """
    try:
        if x.size(-1) != contract.width:
            _library.check_operands(x, gain, contract)
        if is_grad_enabled() or forward_ad._current_level >= 0:
            _refuse_gradients(x, gain)
        y: torch.Tensor = _rms_norm(x, gain, contract.eps, contract.order)
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
        if is_grad_enabled() or forward_ad._current_level >= 0:
            _refuse_gradients(x, residual, gain)
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


def _refuse_gradients(*tensors: torch.Tensor) -> None:
    """Refuse tensors that carry a derivative, backward or forward: it would silently be lost."""
    for tensor in tensors:
        if (is_grad_enabled() and tensor.requires_grad) or (
            forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None
        ):
            raise NotImplementedError(
                "latentkv has no backward yet, and an input needs a gradient: call inside "
                "torch.inference_mode() or torch.no_grad(), or detach the inputs"
            )


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
