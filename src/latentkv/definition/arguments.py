"""What a norm accepts. Every backend refuses the rest through these checks, with these words."""

from __future__ import annotations

import torch

from ..contracts import NormContract

OPERATOR_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
DEFINITION_DTYPES = (*OPERATOR_DTYPES, torch.float64)


def check_norm(
    x: torch.Tensor,
    gain: torch.Tensor,
    contract: NormContract,
    residual: torch.Tensor | None = None,
    dtypes: tuple[torch.dtype, ...] = DEFINITION_DTYPES,
) -> None:
    """Refuse what has no defined result: dtypes, shapes, devices.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a shape or device that doesn't fit.
    """
    if not isinstance(contract, NormContract):
        raise TypeError(
            f"contract must be a NormContract, got {type(contract).__name__}: pass "
            "models.get('kimi-k2').norms.kv_latent, or NormContract(width, eps, order)"
        )
    tensors = {"x": x, "gain": gain}
    if residual is not None:
        tensors["residual"] = residual
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        if value.layout != torch.strided:
            raise TypeError(f"{name} must be a strided tensor, got layout {value.layout}")
        if value.dtype not in dtypes:
            raise TypeError(
                f"{name} has dtype {_dtype(value)}; allowed: {', '.join(map(_name, dtypes))}"
                + _float64_hint(value.dtype)
            )
        if value.device != x.device:
            raise ValueError(f"{name} is on {value.device} but x on {x.device}: move one of them")
    if (x.dtype == torch.float64) != (gain.dtype == torch.float64):
        raise TypeError(f"float64 x and gain go together, got {_dtype(x)} and {_dtype(gain)}")
    if x.dim() == 0 or x.shape[-1] != contract.width:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; its last dimension must be the contract's width, "
            f"{contract.width}"
        )
    if gain.dim() != 1 or gain.shape[0] != contract.width:
        raise ValueError(
            f"gain has shape {tuple(gain.shape)}; it must be 1-D with {contract.width} elements"
        )
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        raise ValueError(
            f"residual is {_dtype(residual)} {tuple(residual.shape)}; it must have x's dtype and "
            f"shape, {_dtype(x)} {tuple(x.shape)}"
        )


def output_dtype(x: torch.Tensor, gain: torch.Tensor, order: str) -> torch.dtype:
    """The dtype of ``y``."""
    if order == "cast_then_gain":
        return torch.promote_types(x.dtype, gain.dtype)
    return x.dtype


def check_gradients(
    dy: torch.Tensor,
    x: torch.Tensor,
    gain: torch.Tensor,
    rstd: torch.Tensor,
    contract: NormContract,
    dsum: torch.Tensor | None,
) -> None:
    """Refuse gradients that don't go with the forward's tensors. Raises ValueError."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    wanted = {
        "dy": (dy, x.shape, output_dtype(x, gain, contract.order)),
        "rstd": (rstd, x.shape[:-1], wide),
        "dsum": (dsum, x.shape, x.dtype),
    }
    for name, (value, shape, dtype) in wanted.items():
        if value is None:
            continue
        if value.shape != shape or value.dtype != dtype or value.device != x.device:
            raise ValueError(
                f"{name} is {_dtype(value)} {tuple(value.shape)} on {value.device}; it must be "
                f"{_name(dtype)} {tuple(shape)} on {x.device}"
            )


def check_strides(x: torch.Tensor, gain: torch.Tensor, residual: torch.Tensor | None) -> None:
    """Refuse what a kernel can't walk: features that don't lie side by side in memory.

    Leading dimensions may have any stride, 0 included. Raises ValueError.
    """
    for name, value in (("x", x), ("residual", residual), ("gain", gain)):
        if value is None or value.shape[-1] == 1 or value.numel() == 0:
            continue
        if value.stride(-1) != 1:
            raise ValueError(
                f"{name} has strides {tuple(value.stride())}; the last one must be 1: "
                f"call {name}.contiguous() first"
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(value: torch.Tensor) -> str:
    return _name(value.dtype)


def _float64_hint(dtype: torch.dtype) -> str:
    if dtype != torch.float64:
        return ""
    return " (float64 is for latentkv.definition, which computes in it throughout)"
