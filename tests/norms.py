"""Norms with one step done another way: what the check must tell apart."""

from __future__ import annotations

import torch


def _rstd(wide, eps):
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def _truncate(value):
    return (value.view(torch.int32) & -0x10000).view(torch.float32).bfloat16()


def a(x, gain, eps):
    wide = x.float()
    return gain * (wide * _rstd(wide, eps)).to(x.dtype)


def b(x, gain, eps, residual=None):
    wide = x.float() if residual is None else x.float() + residual.float()
    y = (gain.float() * (wide * _rstd(wide, eps))).to(x.dtype)
    return y if residual is None else (y, wide.to(x.dtype))


def hard_coded(x, gain, eps):
    return a(x, gain, 1e-5)


def tiny_eps(x, gain, eps):
    return a(x, gain, 2.5e-8)


def large_eps(x, gain, eps):
    return b(x, gain, 1e-2)


def outside(x, gain, eps):
    wide = x.float()
    rms = wide.square().mean(-1, keepdim=True).sqrt()
    return (gain.float() * (wide / (rms + eps))).to(x.dtype)


def hard_coded_outside(x, gain, eps):
    return outside(x, gain, 1e-3)


def floor(x, gain, eps):
    wide = x.float()
    return gain * (wide * _rstd(wide, 0).clamp_max(eps**-0.5)).to(x.dtype)


def no_eps(x, gain, eps):
    return a(x, gain, 0.0)


def eps_in_sum(x, gain, eps):
    wide = x.float()
    mean = (wide.square().sum(-1, keepdim=True) + eps) / x.shape[-1]
    return gain * (wide * torch.rsqrt(mean)).to(x.dtype)


def scaled_by_the_maximum(x, gain, eps):
    wide = x.float()
    wide = wide / wide.abs().amax(-1, keepdim=True).clamp_min(1e-30)
    return gain * (wide * _rstd(wide, eps)).to(x.dtype)


def truncating_twice(x, gain, eps):
    wide = x.float()
    return _truncate(_truncate(wide * _rstd(wide, eps)).float() * gain.float())


def truncating_once(x, gain, eps):
    wide = x.float()
    return _truncate(wide * _rstd(wide, eps) * gain.float())


def rounded_rstd(x, gain, eps):
    wide = x.float()
    return gain * (wide * _rstd(wide, eps).bfloat16().float()).to(x.dtype)


def all_bf16(x, gain, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * gain


def fp32_gain(x, gain, eps):
    return gain.float() * a(x, torch.ones_like(gain), eps)


def one_plus_gain(x, gain, eps):
    return b(x, 1 + gain.float(), eps)


def layer_norm(x, gain, eps):
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), gain, None, eps)


def l2_norm(x, gain, eps):
    return torch.nn.functional.normalize(x.float(), dim=-1).to(x.dtype) * gain


def by_the_variance(x, gain, eps):
    return (x.float() * x.float().square().mean(-1, keepdim=True) * gain.float()).to(x.dtype)


def fp32_output(x, gain, eps):
    return b(x.float(), gain, eps)


def rounded_sum(x, gain, eps, residual=None):
    if residual is None:
        return b(x, gain, eps)
    total = x + residual
    return b(total, gain, eps), total


def doubled_sum(x, gain, eps, residual=None):
    result = b(x, gain, eps, residual)
    return result if residual is None else (result[0], result[1] * 2)


def other_above_256_rows(x, gain, eps):
    return a(x, gain, eps * 1.5) if x[..., 0].numel() >= 256 else a(x, gain, eps)


def neighbours(x, gain, eps):
    wide = x.float()
    mean = wide.square().mean(-1, keepdim=True)
    mixed = 0.99 * mean + 0.01 * mean.roll(1, 0)
    return gain * (wide * torch.rsqrt(mixed + eps)).to(x.dtype)


def nan_from_neighbours(x, gain, eps):
    return a(x, gain, eps) + 0 * x.float().sum().to(x.dtype)


def packed_strides(x, gain, eps):
    packed = torch.empty(x.shape).stride()
    return a(torch.as_strided(x, x.shape, packed), gain, eps)


def refuses_strides(x, gain, eps):
    if not x.is_contiguous():
        raise ValueError("contiguous only")
    return a(x, gain, eps)


def zero_row_nan(x, gain, eps):
    y = a(x, gain, eps)
    return torch.where((x == 0).all(-1, keepdim=True), float("nan"), y)


def flushing(x, gain, eps):
    y = a(x, gain, eps)
    return torch.where(y.abs() < torch.finfo(y.dtype).tiny, torch.zeros_like(y), y)


def saturating(x, gain, eps):
    return a(x.clamp(-1e18, 1e18), gain, eps)


def negative_gain(x, gain, eps):
    return torch.where(gain < 0, torch.zeros_like(gain), a(x, gain, eps))


def zero_gain(x, gain, eps):
    return torch.where(gain == 0, torch.ones_like(gain), a(x, gain, eps))


def large_inputs(x, gain, eps):
    y = a(x, gain, eps)
    return torch.where(x.abs() > 1e4, y * 2, y)


def at_512_rows(x, gain, eps):
    return b(x, gain, eps) if len(x) == 512 else a(x, gain, eps)


def beyond_3000_rows(x, gain, eps):
    y = a(x, gain, eps)
    if x.dim() > 1 and len(x) > 3000:
        y[3000] = 0
    return y


def one_dimension(x, gain, eps):
    return a(x, gain, eps) * (x.dim() > 1)


def four_dimensions(x, gain, eps):
    return a(x, gain, eps) * (x.dim() < 4)


def permuted(x, gain, eps):
    return a(x, gain, eps) * (x.dim() < 3 or x.stride(0) >= x.stride(1))


def no_rows(x, gain, eps):
    return a(x, gain, eps).float() if x.numel() == 0 else a(x, gain, eps)


def counted_calls():
    calls = []

    def norm(x, gain, eps):
        calls.append(1)
        return a(x, gain, eps) if len(calls) < 30 else b(x, gain, eps)

    return norm


def residual_form(change):
    def norm(x, gain, eps, residual=None):
        result = b(x, gain, eps, residual)
        return result if residual is None else change(x, residual, gain, *result)

    return norm


def _last_zero(x, residual, gain, y, total):
    y[..., -1] = 0
    return y, total


def _last_row_nan(x, residual, gain, y, total):
    y[-1] = float("nan")
    return y, total


def _fp64(x, residual, gain, y, total):
    return y.double(), total


def _by_rows(x, residual, gain, y, total):
    return (y, total) if len(x) > 300 else (y * 0.5, total)


def _other_eps(x, residual, gain, y, total):
    return b(x, gain, 1e-3, residual)


def _raising(x, residual, gain, y, total):
    raise RuntimeError("no residual kernel")


def same_buffer():
    memory = {}

    def norm(x, gain, eps):
        buffer = memory.setdefault(x.shape, torch.empty(x.shape, dtype=x.dtype))
        return buffer.copy_(a(x, gain, eps))

    return norm
