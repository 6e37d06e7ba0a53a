"""Numerics as data: what a component computes, down to each rounding step.

A contract is a frozen value without behaviour. The definition reads it, kernels reproduce what
the definition makes of it, pages print it. docs/numerics.md spells out the arithmetic.
"""

from __future__ import annotations

import math
import operator
import struct
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

Order = Literal["cast_then_gain", "gain_then_cast"]
ORDERS: tuple[str, ...] = get_args(Order)
Interpolated = Literal["power", "inverse"]
RopeRounding = Literal["each_step", "result"]
RopeLayout = Literal["half", "interleaved"]
ScaleRule = Literal["act_quant", "flashmla", "vllm_fused", "vllm_cuda", "sglang"]
RULES: tuple[str, ...] = get_args(ScaleRule)

MAX_WIDTH = 2**24
MAX_POSITIONS = 2**24
SMALLEST_EPS = 2.0**-126  # the smallest normal fp32: below it, flushing hardware would differ


@dataclass(frozen=True)
class NormContract:
    """One RMSNorm: ``y = gain * x / sqrt(mean(x^2) + eps)``, with its roundings pinned.

    Arguments:
        width: features per row, 1 to 2^24; the last dimension of ``x`` and the length of ``gain``.
        eps: added to the mean of squares inside the root, used as ``fp32(eps)``, which must be
            finite and at least 2^-126. There is no default: the three models' configurations
            show why (Kimi K3's says 1e-5, its latent norm applies 1e-6).
        order: ``"cast_then_gain"`` rounds the normalised value to the input's dtype and then
            multiplies by the gain, in the promoted dtype; ``"gain_then_cast"`` multiplies in
            fp32 and rounds once, to the input's dtype.

    Raises:
        TypeError: a width that is not an int, an eps that is not a real number.
        ValueError: a value outside the ranges above.
    """

    width: int
    eps: float
    order: Order

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", _as_int(self.width, "width"))
        if not 1 <= self.width <= MAX_WIDTH:
            raise ValueError(f"width must be between 1 and 2^24 = {MAX_WIDTH}, got {self.width}")
        check_eps(self.eps)
        object.__setattr__(self, "eps", float(self.eps))
        check_order(self.order)


@dataclass(frozen=True)
class RopeContract:
    """One rotary embedding of a shared key, YaRN-scaled, with its roundings pinned.

    Features come as pairs (2i, 2i + 1). Pairs below ``low`` turn at their own frequency
    ``theta^(-2i/width)``, those above ``high`` at that divided by ``factor``, between them a ramp.

    Arguments:
        width: rotated features, even; the number of pairs is half of it.
        theta: the base, above 1.
        factor: by how much YaRN stretches the context, at least 1.
        low, high: the pairs where the ramp begins and ends, low below high.
        interpolated: what the factor is applied to: ``"power"``, 1 / (factor * theta^(2i/width)),
            or ``"inverse"``, (1 / theta^(2i/width)) / factor. They differ by a bit for some
            factors that are no power of two.
        rounding: ``"each_step"`` rounds cos, sin, each product and their sum to the key's dtype;
            ``"result"`` computes in fp32 and rounds once.
        layout: of the result: ``"half"``, all first elements of the pairs and then all second
            ones, or ``"interleaved"``, as they came.
        max_positions: positions run from 0 to this, exclusive; at most 2^24.

    Raises:
        TypeError: a width, low, high or max_positions that is not an int, a theta or factor that
            is not a real number.
        ValueError: a value outside the ranges above.
    """

    width: int
    theta: float
    factor: float
    low: int
    high: int
    interpolated: Interpolated
    rounding: RopeRounding
    layout: RopeLayout
    max_positions: int

    def __post_init__(self) -> None:
        for name in ("width", "low", "high", "max_positions"):
            object.__setattr__(self, name, _as_int(getattr(self, name), name))
        for name in ("theta", "factor"):
            object.__setattr__(self, name, _as_float(getattr(self, name), name))
        if not 2 <= self.width <= MAX_WIDTH or self.width % 2:
            raise ValueError(
                f"width must be even and 2 to 2^24, since features turn in pairs: {self.width}"
            )
        if not 1 < self.theta < math.inf:
            raise ValueError(f"theta must be finite and above 1, got {self.theta}")
        if not 1 <= fp32(self.factor) < math.inf:
            raise ValueError(f"factor must be finite in fp32 and at least 1, got {self.factor}")
        if not 0 <= self.low < self.high <= MAX_WIDTH:
            raise ValueError(
                f"low must be below high, from 0 to 2^24, got {self.low} and {self.high}"
            )
        if not 1 <= self.max_positions <= MAX_POSITIONS:
            raise ValueError(
                "max_positions must be at least 1 and at most 2^24, up to where fp32 holds each "
                f"position: {self.max_positions}"
            )
        for name, choices in (
            ("interpolated", get_args(Interpolated)),
            ("rounding", get_args(RopeRounding)),
            ("layout", get_args(RopeLayout)),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, choices))}, "
                    f"got {getattr(self, name)!r}"
                )


@dataclass(frozen=True)
class LatentQuant:
    """An e4m3 round trip of the latent, in groups that share a scale.

    Arguments:
        group: features that share a scale; it divides the latent's width.
        rule: how a group's largest magnitude gives the scale, and what is divided by it. The five
            are those of software in use, under its names; docs/numerics.md writes them out.

            ============== ============================== ================ ==================
            rule           scale                          rounded up to    what it divides
            ============== ============================== ================ ==================
            ``act_quant``  max(amax, 1e-4) * fp32(1/448)  a power of two   the rounded latent
            ``flashmla``   max(amax / 448, 1e-4)          a power of two   the rounded latent
            ``vllm_fused`` max(amax / 448, 1e-4)          a power of two   the latent in fp32
            ``vllm_cuda``  max(amax / 448, 2^-126)        as it is         the rounded latent
            ``sglang``     amax / 448                     as it is         the same, by 1 / scale
            ============== ============================== ================ ==================

            A group that holds an infinity or a NaN becomes NaN throughout with each of them. A
            group of zeros gives zeros, except with ``sglang``: 0 times 1 / 0 is NaN.

    Raises:
        TypeError: a group that is not an int.
        ValueError: a group below 1, an unknown rule.
    """

    group: int
    rule: ScaleRule

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", _as_int(self.group, "group"))
        if self.group < 1:
            raise ValueError(f"group must be at least 1, got {self.group}")
        if self.rule not in RULES:
            raise ValueError(
                f"rule must be one of {', '.join(map(repr, RULES))}, got {self.rule!r}"
            )


@dataclass(frozen=True)
class KVContract:
    """From the down-projection's output to what is cached: latent and shared key.

    A row has ``norm.width`` latent features and then ``key_width`` of the key that all heads share.

    Arguments:
        norm: of the latent.
        key_width: features of the shared key (``qk_rope_head_dim`` in a config), even, 0 for none.
        rope: the key's rotation, or None where it is passed on as it is.
        quant: the latent's round trip through e4m3, or None where it is kept as it is.

    Raises:
        TypeError: a part of another type.
        ValueError: parts that don't fit each other.
    """

    norm: NormContract
    key_width: int
    rope: RopeContract | None
    quant: LatentQuant | None

    def __post_init__(self) -> None:
        for name, kind, value in (
            ("norm", NormContract, self.norm),
            ("rope", RopeContract | None, self.rope),
            ("quant", LatentQuant | None, self.quant),
        ):
            if not isinstance(value, kind):
                wanted = getattr(kind, "__name__", str(kind).replace("latentkv.contracts.", ""))
                raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
        object.__setattr__(self, "key_width", _as_int(self.key_width, "key_width"))
        if self.key_width < 0 or self.key_width % 2 or self.key_width > MAX_WIDTH:
            raise ValueError(
                "key_width (qk_rope_head_dim) must be even and from 0 to 2^24, since features "
                f"turn in pairs: {self.key_width}"
            )
        if self.rope is not None and self.rope.width != self.key_width:
            raise ValueError(
                f"rope.width is {self.rope.width} and key_width {self.key_width}: they must be "
                "equal, since the whole key is rotated"
            )
        if self.quant is not None and self.norm.width % self.quant.group:
            raise ValueError(
                f"quant.group {self.quant.group} must divide the latent's width, {self.norm.width}"
            )

    @property
    def width(self) -> int:
        """Features of the down-projection's output: latent, then key."""
        return self.norm.width + self.key_width


def _as_int(value: Any, name: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {value!r}") from None


def _as_float(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (float, Real)):
        raise TypeError(f"{name} must be a real number, got {value!r} ({type(value).__name__})")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def check_eps(eps: Any) -> None:
    """Refuse an eps that fp32 cannot hold as a finite, normal, positive number."""
    if isinstance(eps, bool) or not isinstance(eps, (float, Real)):
        raise TypeError(f"eps must be a real number, got {eps!r} ({type(eps).__name__})")
    if not SMALLEST_EPS <= fp32(eps) < math.inf:
        raise ValueError(
            f"fp32(eps) must be finite and at least 2^-126 (1.18e-38), got eps = {eps!r}: "
            "pass the eps of the model's norm, such as models.get('kimi-k2').norms.kv_latent.eps"
        )


def check_order(order: str) -> None:
    """Refuse an order that is not one of the two."""
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(map(repr, ORDERS))}, got {order!r}")


def fp32(value: float | Real) -> float:
    """``value`` rounded to the nearest fp32, ties to even; beyond the range, an infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])
    except OverflowError:
        return -math.inf if value < 0 else math.inf
