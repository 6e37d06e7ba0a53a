"""Key-value paths with one step done another way: what the check must tell apart.

Written in PyTorch's own operations, from docs/numerics.md: nothing here is latentkv's.
"""

from __future__ import annotations

import torch


def _norm(down, gain, eps):
    wide = down[:, : len(gain)].float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def kimi_latent(down, gain, eps):
    return gain * _norm(down, gain, eps).to(down.dtype)


def deepseek_latent(down, gain, eps):
    return (gain.float() * _norm(down, gain, eps)).to(down.dtype)


def pairs(down, gain):
    key = down[:, len(gain) :]
    return key[:, 0::2], key[:, 1::2]


def halves(down, gain):
    return down[:, len(gain) :].chunk(2, dim=-1)


def each_step(x0, x1, cos, sin):
    c, s = cos.to(x0.dtype), sin.to(x0.dtype)
    return x0 * c - x1 * s, x1 * c + x0 * s


def once(x0, x1, cos, sin):
    x0, x1, dtype = x0.float(), x1.float(), x0.dtype
    return (x0 * cos - x1 * sin).to(dtype), (x0 * sin + x1 * cos).to(dtype)


def rounded_table(x0, x1, cos, sin):
    return once(x0, x1, cos.to(x0.dtype).float(), sin.to(x0.dtype).float())


def backwards(x0, x1, cos, sin):
    return each_step(x0, x1, cos, -sin)


def half(lo, hi):
    return torch.cat([lo, hi], dim=-1)


def interleaved(lo, hi):
    return torch.stack([lo, hi], dim=-1).flatten(-2)


def path(latent=kimi_latent, take=pairs, turn=each_step, layout=half):
    """A path that is given cos and sin; the defaults are Kimi K2's."""

    def f(down, gain, eps, positions, cos, sin):
        return latent(down, gain, eps), layout(*turn(*take(down, gain), cos, sin))

    return f


def deepseek(latent, **other):
    return path(latent, **{"turn": once, "layout": interleaved, **other})


def unrotated(down, gain, eps, positions):
    return kimi_latent(down, gain, eps), down[:, len(gain) :]


def reordered(down, gain, eps, positions):
    return kimi_latent(down, gain, eps), half(*pairs(down, gain))


def frequencies(rope, yarn=True, theta=None):
    """As the models compute them in fp32, at a theta of one's choice, with YaRN or without."""
    i = torch.arange(rope.width // 2)
    plain = 1 / (theta or rope.theta) ** (2 * i.float() / rope.width)
    if not yarn:
        return plain
    ramp = ((i - rope.low).float() / (rope.high - rope.low)).clamp(0, 1)
    return plain / rope.factor * ramp + plain * (1 - ramp)


def own_table(rope, inverse, at=lambda positions: positions, turn=each_step, layout=half):
    """A path that makes its own cos and sin, of the positions that ``at`` gives."""

    def f(down, gain, eps, positions):
        angle = at(positions).float().unsqueeze(-1) * inverse
        turned = turn(*pairs(down, gain), angle.cos(), angle.sin())
        return kimi_latent(down, gain, eps), layout(*turned)

    return f


def e4m3(scale_of, norm=deepseek_latent, group=128):
    """A latent sent through e4m3 with the scale that ``scale_of`` makes of a group's amax."""

    def latent(down, gain, eps):
        groups = norm(down, gain, eps).float().unflatten(-1, (-1, group))
        scale = scale_of(groups.abs().amax(dim=-1, keepdim=True))
        codes = (groups / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return (codes.float() * scale).to(down.dtype).flatten(-2)

    return latent


def unrounded(down, gain, eps):
    return gain.float() * _norm(down, gain, eps)


def power_of_two(value):
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp(torch.ones_like(value), exponent - (mantissa == 0.5).int())


def act_quant(amax):
    return power_of_two(amax.clamp_min(1e-4) / 448)


def flashmla(amax):
    return power_of_two((amax / 448).clamp_min(1e-4))


def vllm_cuda(amax):
    return (amax / 448).clamp_min(2.0**-126)


def next_power(amax):
    """A power of two above even where the value is one."""
    _, exponent = torch.frexp(amax.clamp_min(1e-4) / 448)
    return torch.ldexp(torch.ones_like(amax), exponent)


def sglang(down, gain, eps):
    groups = deepseek_latent(down, gain, eps).float().unflatten(-1, (-1, 128))
    scale = groups.abs().amax(dim=-1, keepdim=True) / 448
    codes = (groups * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (codes.float() * scale).to(down.dtype).flatten(-2)


def other_eps(latent, factor=10):
    return lambda down, gain, eps: latent(down, gain, factor * eps)


def writing(place):
    """Kimi K3's path, which writes each record where ``place`` says."""

    def f(down, gain, eps, positions, cache=None, slots=None):
        latent, key = unrotated(down, gain, eps, positions)
        if cache is not None:
            place(cache, slots, torch.cat([latent, key], dim=-1))
        return latent, key

    return f


def _store(cache, slots, records):
    for slot, record in zip(slots.tolist(), records, strict=True):
        cache[slot // cache.shape[1], slot % cache.shape[1]] = record


def skips(cache, slots, records):
    _store(cache, slots[slots >= 0], records[slots >= 0])


def to_slot_0(cache, slots, records):
    _store(cache, slots.clamp_min(0), records)


def to_the_last(cache, slots, records):
    _store(cache, slots, records)  # -1 // size and -1 % size are the last block and place


def before_the_cache(cache, slots, records):
    """As a kernel that multiplies -1 by the record's size."""
    width = records.shape[-1]
    for slot, record in zip(slots.tolist(), records, strict=True):
        begin = cache.storage_offset() + slot * width
        torch.as_strided(cache, (width,), (1,), begin).copy_(record)


def raises_on_minus_1(cache, slots, records):
    if bool((slots < 0).any()):
        raise IndexError("slot -1")
    _store(cache, slots, records)


def raises_always(cache, slots, records):
    raise NotImplementedError("no cache")


def first_wins(cache, slots, records):
    skips(cache, slots.flip(0), records.flip(0))


def adds_up(cache, slots, records):
    seen = set()
    for slot, record in zip(slots.tolist(), records, strict=True):
        if slot >= 0:
            there = cache[slot // cache.shape[1], slot % cache.shape[1]]
            there.copy_(there + record if slot in seen else record)
            seen.add(slot)


def beside(cache, slots, records):
    skips(cache, slots, records)
    cache[0, 0] = 0


def writes_nothing(cache, slots, records):
    pass


LATENT = 512  # the models' width


def latent_only(cache, slots, records):
    skips(cache[..., :LATENT], slots, records[:, :LATENT])


def key_only(cache, slots, records):
    skips(cache[..., LATENT:], slots, records[:, LATENT:])


def key_first(cache, slots, records):
    skips(cache, slots, torch.cat([records[:, LATENT:], records[:, :LATENT]], dim=-1))


def one_further(cache, slots, records):
    skips(cache, torch.where(slots < 0, slots, slots + 1), records)


def column_by_column(cache, slots, records):
    """As if a block's number ran faster than the place in it."""
    for slot, record in zip(slots.tolist(), records, strict=True):
        if slot >= 0:
            cache[slot % len(cache), slot // len(cache)] = record


def without_a_row(cache, slots, records):
    skips(cache, slots[1:], records[1:])


def doubled(cache, slots, records):
    skips(cache, slots, 2 * records)


def stops_at_minus_1(cache, slots, records):
    count = [*slots.tolist(), -1].index(-1)
    _store(cache, slots[:count], records[:count])


def mixed_winners(cache, slots, records):
    """The last row wins from the second block on, the first in the first block."""
    later = slots >= cache.shape[1]
    skips(cache, slots[later], records[later])
    first_wins(cache, slots[~later], records[~later])


def drops_after_equal(cache, slots, records):
    equal = len(slots.unique()) < int((slots >= 0).sum())
    skips(cache, slots[: 7 if equal else None], records[: 7 if equal else None])


def raises_on_equal(cache, slots, records):
    if len(slots[slots >= 0].unique()) < int((slots >= 0).sum()):
        raise ValueError("equal slots")
    skips(cache, slots, records)


def mean_of_the_batch(down, gain, eps, positions):
    wide = down[:, : len(gain)].float()
    mean = wide.square().mean(-1, keepdim=True)
    mixed = 0.99 * mean + 0.01 * mean.roll(1, 0)
    return gain * (wide * torch.rsqrt(mixed + eps)).to(down.dtype), down[:, len(gain) :]


def nan_from_neighbours(down, gain, eps, positions):
    latent, key = unrotated(down, gain, eps, positions)
    return latent, key + 0 * down.float().sum().to(down.dtype)


def packed_strides(down, gain, eps, positions):
    return unrotated(torch.as_strided(down, down.shape, (down.shape[1], 1)), gain, eps, positions)


def counted_calls():
    calls = []

    def f(down, gain, eps, positions):
        calls.append(1)
        latent, key = unrotated(down, gain, eps, positions)
        return latent, key if len(calls) < 17 else -key

    return f
