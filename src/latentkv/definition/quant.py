"""The e4m3 round trip of the latent, defined: each line that computes is one rounding.

e4m3 has no infinity: its largest value is 448, its NaN is 0x7F. Between 2^-6 and 448 it has three
bits of mantissa, below that steps of 2^-9.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..contracts import LatentQuant
from .as_written import gradual_underflow, uncompiled

LARGEST = 448.0
_NAN_CODE = 0x7F
_RECIPROCAL_448 = float.fromhex("0x1.24924ap-9")  # fp32(1 / 448)
_SMALLEST_AMAX = float.fromhex("0x1.a36e2ep-14")  # fp32(1e-4)
_SMALLEST_NORMAL = 2.0**-126


@uncompiled
def quantise(latent: torch.Tensor, quant: LatentQuant) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and the scales that they are multiples of.

    Arguments:
        latent: [..., width], bf16, fp16 or fp32; for ``vllm_fused`` before it is rounded, in fp32.

    Returns codes, e4m3 [..., width], and scales, fp32 [..., width / group], both contiguous.
    """
    with gradual_underflow(latent):
        groups = latent.float().unflatten(-1, (-1, quant.group))
        amax = groups.abs().amax(dim=-1, keepdim=True)  # NaN if there is one
        scale = _SCALES[quant.rule](amax)
        if quant.rule == "sglang":
            ratio = groups * (torch.ones_like(scale) / scale)
        else:
            ratio = groups / scale
        codes = ratio.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)
        undefined = ratio.isnan() | ~amax.isfinite()
        codes = torch.where(undefined, _NAN_CODE, codes).flatten(-2)
        scale = torch.where(amax.isfinite(), scale, torch.nan)
        codes = codes.contiguous().view(torch.float8_e4m3fn)
        return codes, scale.squeeze(-1).contiguous()


@uncompiled
def dequantise(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``code * scale``, rounded to fp32 and then to ``dtype``: [..., width], contiguous."""
    with gradual_underflow(codes):
        groups = codes.float().unflatten(-1, (scales.shape[-1], -1))
        values: torch.Tensor = (groups * scales.unsqueeze(-1)).to(dtype)
        return values.flatten(-2).contiguous()


def _act_quant(amax: torch.Tensor) -> torch.Tensor:
    floor = torch.full_like(amax, _SMALLEST_AMAX)
    return _power_of_two(torch.maximum(amax, floor) * torch.full_like(amax, _RECIPROCAL_448))


def _flashmla(amax: torch.Tensor) -> torch.Tensor:
    floor = torch.full_like(amax, _SMALLEST_AMAX)
    return _power_of_two(torch.maximum(_over_448(amax), floor))


def _vllm_cuda(amax: torch.Tensor) -> torch.Tensor:
    return torch.maximum(_over_448(amax), torch.full_like(amax, _SMALLEST_NORMAL))


def _over_448(amax: torch.Tensor) -> torch.Tensor:
    # By a tensor: on CUDA, division by a number multiplies by its reciprocal.
    return amax / torch.full_like(amax, LARGEST)


def _power_of_two(value: torch.Tensor) -> torch.Tensor:
    """The next power of two from a positive normal fp32 on, by its bits."""
    bits = value.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent << 23).view(torch.float32)


_SCALES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "act_quant": _act_quant,
    "flashmla": _flashmla,
    "vllm_fused": _flashmla,
    "vllm_cuda": _vllm_cuda,
    "sglang": _over_448,
}
