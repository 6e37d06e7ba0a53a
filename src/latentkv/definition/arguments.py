"""What a norm accepts. Every backend refuses the rest through these checks, with these words."""

from __future__ import annotations

import torch

from ..contracts import KVContract, NormContract

OPERATOR_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
DEFINITION_DTYPES = (*OPERATOR_DTYPES, torch.float64)
INDEX_DTYPES = (torch.int32, torch.int64)


def check_norm(
    x: torch.Tensor,
    gain: torch.Tensor,
    contract: NormContract,
    residual: torch.Tensor | None = None,
    dtypes: tuple[torch.dtype, ...] = DEFINITION_DTYPES,
    *,
    name: str = "x",
) -> None:
    """Refuse what has no defined result: dtypes, shapes, devices. ``name`` is what x is called.

    Raises:
        TypeError: an argument of the wrong type or dtype.
        ValueError: a shape or device that doesn't fit.
    """
    if not isinstance(contract, NormContract):
        raise TypeError(
            f"contract must be a NormContract, got {type(contract).__name__}: pass "
            "models.get('kimi-k2').norms.kv_latent, or NormContract(width, eps, order)"
        )
    tensors = {name: x, "gain": gain}
    if residual is not None:
        tensors["residual"] = residual
    for label, value in tensors.items():
        check_strided(label, value)
        if value.dtype not in dtypes:
            raise TypeError(
                f"{label} has dtype {_dtype(value)}; allowed: {', '.join(map(named, dtypes))}"
                + _float64_hint(value.dtype)
            )
        if value.device != x.device:
            raise ValueError(
                f"{label} is on {value.device} but {name} on {x.device}: move one of them"
            )
    if (x.dtype == torch.float64) != (gain.dtype == torch.float64):
        raise TypeError(f"float64 {name} and gain go together, got {_dtype(x)} and {_dtype(gain)}")
    if x.dim() == 0 or x.shape[-1] != contract.width:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; its last dimension must be the contract's width, "
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


def output_dtype(x: torch.dtype, gain: torch.dtype, order: str) -> torch.dtype:
    """The dtype of ``y``."""
    return torch.promote_types(x, gain) if order == "cast_then_gain" else x


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
        "dy": (dy, x.shape, output_dtype(x.dtype, gain.dtype, contract.order)),
        "rstd": (rstd, x.shape[:-1], wide),
        "dsum": (dsum, x.shape, x.dtype),
    }
    for name, (value, shape, dtype) in wanted.items():
        if value is None:
            continue
        if value.shape != shape or value.dtype != dtype or value.device != x.device:
            raise ValueError(
                f"{name} is {_dtype(value)} {tuple(value.shape)} on {value.device}; it must be "
                f"{named(dtype)} {tuple(shape)} on {x.device}"
            )


def check_strides(
    x: torch.Tensor, gain: torch.Tensor, residual: torch.Tensor | None, *, name: str = "x"
) -> None:
    """Refuse what a kernel can't walk: features that don't lie side by side in memory.

    Leading dimensions may have any stride, 0 included. Raises ValueError.
    """
    for label, value in ((name, x), ("residual", residual), ("gain", gain)):
        if value is None or value.shape[-1] == 1 or value.numel() == 0:
            continue
        if value.stride(-1) != 1:
            raise ValueError(
                f"{label} has strides {tuple(value.stride())}; the last one must be 1: "
                f"call {label}.contiguous() first"
            )


def check_key(key: torch.Tensor, width: int) -> None:
    """Refuse a key that can't be rotated. Raises TypeError or ValueError."""
    if key.dtype not in DEFINITION_DTYPES:
        allowed = ", ".join(map(named, DEFINITION_DTYPES))
        raise TypeError(f"key has dtype {_dtype(key)}; allowed: {allowed}")
    if key.dim() == 0 or key.shape[-1] != width:
        raise ValueError(
            f"key has shape {tuple(key.shape)}; its last dimension must be the contract's width, "
            f"{width}"
        )


def check_positions(
    positions: torch.Tensor | None, rows: torch.Tensor, max_positions: int, *, values: bool = True
) -> None:
    """Refuse positions that no row of the table answers to. Raises TypeError or ValueError.

    Arguments:
        rows: [..., width], each of which has a position.
        values: whether to look at the numbers, too.
    """
    if positions is None:
        raise TypeError(
            "positions are missing: this contract rotates the shared key, so pass each row's "
            "position, int32 or int64"
        )
    check_strided("positions", positions)
    if positions.dtype not in INDEX_DTYPES:
        raise TypeError(f"positions have dtype {_dtype(positions)}; allowed: int32, int64")
    if positions.device != rows.device:
        raise ValueError(
            f"positions are on {positions.device} but the rows on {rows.device}: move one of them"
        )
    given, wanted = tuple(positions.shape), tuple(rows.shape[:-1])
    padded = (1,) * (len(wanted) - len(given)) + given
    if len(padded) != len(wanted) or any(
        g not in (1, w) for g, w in zip(padded, wanted, strict=True)
    ):
        raise ValueError(
            f"positions have shape {given}; they must have one for each row, {wanted}, or "
            "broadcast to that"
        )
    if not values or positions.numel() == 0 or 0 in wanted:
        return
    first, last = int(positions.min()), int(positions.max())
    if first < 0 or last >= max_positions:
        raise ValueError(
            f"positions run from {first} to {last}; the contract's run from 0 to "
            f"{max_positions - 1}"
        )


def check_down(
    down: torch.Tensor,
    gain: torch.Tensor,
    contract: KVContract,
    positions: torch.Tensor | None,
    dtypes: tuple[torch.dtype, ...] = DEFINITION_DTYPES,
    *,
    values: bool = True,
) -> None:
    """Refuse what has no compressed form. Raises TypeError or ValueError."""
    if not isinstance(contract, KVContract):
        raise TypeError(
            f"contract must be a KVContract, got {type(contract).__name__}: pass "
            "models.get('kimi-k2').kv"
        )
    check_strided("down", down)
    if down.dim() == 0 or down.shape[-1] != contract.width:
        raise ValueError(
            f"down has shape {tuple(down.shape)}; its last dimension must be {contract.width}: "
            f"the latent's {contract.norm.width} features, then the key's {contract.key_width}"
        )
    check_norm(down[..., : contract.norm.width], gain, contract.norm, None, dtypes, name="down")
    if contract.quant is not None and down.dtype == torch.float64:
        raise TypeError("down is float64, which is not quantised; pass a contract without quant")
    if contract.rope is not None:
        check_positions(positions, down, contract.rope.max_positions, values=values)


def check_strided(name: str, value: object) -> None:
    """Refuse what is no tensor, or has no strides. Raises TypeError."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be a strided tensor, got layout {value.layout}")


def named(dtype: torch.dtype) -> str:
    """As errors write it: bfloat16."""
    return str(dtype).removeprefix("torch.")


def _dtype(value: torch.Tensor) -> str:
    return named(value.dtype)


def _float64_hint(dtype: torch.dtype) -> str:
    if dtype != torch.float64:
        return ""
    return " (float64 is for latentkv.definition, which computes in it throughout)"
