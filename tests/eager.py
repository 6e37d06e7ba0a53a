"""The models' own arithmetic in eager PyTorch, as the public facts describe it.

Written from the description (widen, mean of squares, reciprocal root, then gain and cast in the
model's order), not copied: what latentkv is close to, and what it is not bound by.
"""

import torch


def kimi(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """Kimi K2 and K3: round to the input's dtype, then multiply by the gain."""
    wide = x.to(torch.float32)
    mean_square = (wide * wide).mean(dim=-1, keepdim=True)
    normalised = wide * torch.rsqrt(mean_square + eps)
    return gain * normalised.to(x.dtype)


def deepseek(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """DeepSeek-V3.2-Exp: multiply by an fp32 gain, then round once."""
    wide = x.to(torch.float32)
    mean_square = (wide * wide).mean(dim=-1, keepdim=True)
    return (gain.to(torch.float32) * (wide * torch.rsqrt(mean_square + eps))).to(x.dtype)


def deepseek_add(
    x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Its residual form: the fp32 sum is normalised, and stored rounded."""
    wide = x.to(torch.float32) + residual.to(torch.float32)
    mean_square = (wide * wide).mean(dim=-1, keepdim=True)
    y = gain.to(torch.float32) * (wide * torch.rsqrt(mean_square + eps))
    return y.to(x.dtype), wide.to(x.dtype)


BY_ORDER = {"cast_then_gain": kimi, "gain_then_cast": deepseek}
