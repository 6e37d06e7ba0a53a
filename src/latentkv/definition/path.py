"""The key-value path, defined: from the down-projection's output to what is used and cached."""

from __future__ import annotations

import torch

from ..contracts import KVContract
from .arguments import check_down, output_dtype
from .as_written import uncompiled
from .norm import reciprocal_rms, rms_norm, rms_norm_backward, unrounded_rms_norm
from .quant import dequantise, quantise
from .rope import rotary_table, rotate, rotate_backward


@uncompiled
def compress_kv(
    down: torch.Tensor,
    gain: torch.Tensor,
    contract: KVContract,
    positions: torch.Tensor | None,
    table: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise the latent and send it through its quantisation, rotate the shared key.

    Arguments:
        down: [..., width + key_width], bf16, fp16, fp32, or without quantisation fp64; any strides.
        gain: [width], bf16, fp16 or fp32; fp64 with fp64 ``down``.
        contract: such as ``models.get("kimi-k2").kv``.
        positions: int32 or int64, broadcast to [...]; None, or not looked at, without rotation.
        table: `rotary_table`'s, on the device of ``down``; built where it is missing.

    Returns the latent, [..., width], in the dtype that the norm gives, and the key,
    [..., key_width], in that of ``down``; both contiguous.

    Raises TypeError or ValueError, naming what was given and what is allowed.
    """
    check_down(down, gain, contract, positions)
    return _latent(down, gain, contract), key_of(down, contract, positions, table)


@uncompiled
def codes_of(
    down: torch.Tensor, gain: torch.Tensor, contract: KVContract
) -> tuple[torch.Tensor, torch.Tensor]:
    """The latent as an fp8 cache keeps it: e4m3 codes [..., width], fp32 scales [..., groups]."""
    assert contract.quant is not None
    x = down[..., : contract.norm.width]
    norm = unrounded_rms_norm if contract.quant.rule == "vllm_fused" else rms_norm
    return quantise(norm(x, gain, contract.norm), contract.quant)


@uncompiled
def key_of(
    down: torch.Tensor,
    contract: KVContract,
    positions: torch.Tensor | None,
    table: torch.Tensor | None = None,
) -> torch.Tensor:
    """The shared key, rotated where the contract says so: [..., key_width], contiguous."""
    key = down[..., contract.norm.width :]
    if contract.rope is None:
        return key.clone(memory_format=torch.contiguous_format)
    assert positions is not None  # check_down refused it
    if table is None:
        table = rotary_table(contract.rope).to(down.device)
    return rotate(key, positions, contract.rope, table)


@uncompiled
def compress_kv_backward(
    dlatent: torch.Tensor | None,
    dkey: torch.Tensor | None,
    down: torch.Tensor,
    gain: torch.Tensor,
    contract: KVContract,
    positions: torch.Tensor | None,
    table: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `compress_kv`: of ``down``, in its shape and dtype, and of the gain.

    They pass straight through the quantisation, as if it were the identity.

    Arguments: as `compress_kv`; ``dlatent`` and ``dkey`` are the gradients of its results, in
    their shapes and dtypes, None for one that nobody used.
    """
    check_down(down, gain, contract, positions)
    x = down[..., : contract.norm.width]
    if dlatent is None:
        dx, dgain = x.new_zeros(x.shape), torch.zeros_like(gain)
    else:
        rstd = reciprocal_rms(x, contract.norm)
        dx, dgain = rms_norm_backward(dlatent, x, gain, rstd, contract.norm)
    if dkey is None:
        dkey = down.new_zeros((*down.shape[:-1], contract.key_width))
    elif contract.rope is not None:
        assert positions is not None
        if table is None:
            table = rotary_table(contract.rope).to(down.device)
        dkey = rotate_backward(dkey, positions, contract.rope, table)
    return joined(dx, dkey), dgain


def joined(latent: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Side by side, [..., width + key_width]: torch.cat, which under autocast to the other 16-bit
    dtype raises."""
    both = latent.new_empty((*latent.shape[:-1], latent.shape[-1] + key.shape[-1]))
    both[..., : latent.shape[-1]] = latent
    both[..., latent.shape[-1] :] = key
    return both


def _latent(down: torch.Tensor, gain: torch.Tensor, contract: KVContract) -> torch.Tensor:
    if contract.quant is None:
        return rms_norm(down[..., : contract.norm.width], gain, contract.norm)
    dtype = output_dtype(down.dtype, gain.dtype, contract.norm.order)
    return dequantise(*codes_of(down, gain, contract), dtype)
