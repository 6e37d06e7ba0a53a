"""e4m3 codes and docs/numerics.md's five scale rules, in fractions: nothing here is latentkv's."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from oracle import divide32, rn32, round_fraction

FP32 = torch.float32
E4M3 = torch.float8_e4m3fn
# Rules that round the scale up to a power of two; the two others keep the quotient.
POWERS = ("act_quant", "flashmla", "vllm_fused")
FLOOR = rn32(1e-4)
RECIPROCAL = float(round_fraction(Fraction(1, 448), FP32))


def decoded(code):
    """A code's value by the format's own words: 4 bits of exponent, 3 of mantissa, no infinity."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    magnitude = Fraction(mantissa, 8) + (exponent > 0)
    return float(magnitude * Fraction(2) ** (max(exponent, 1) - 7)) * (-1 if code >> 7 else 1)


MAGNITUDES = [Fraction(decoded(code)) for code in range(0x7F)]


def encoded(value):
    """The code of a Python float: nearest, ties to the even code, 448 for all beyond, or NaN."""
    if math.isnan(value):
        return 0x7F
    sign = 0x80 if math.copysign(1, value) < 0 else 0
    if abs(value) >= 448:
        return sign | 0x7E
    magnitude = Fraction(abs(value))
    low, high = 0, 0x7E
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if MAGNITUDES[middle] <= magnitude else (low, middle)
    below, above = magnitude - MAGNITUDES[low], MAGNITUDES[high] - magnitude
    return sign | (low if below < above or (below == above and low % 2 == 0) else high)


def power_from(value):
    """The smallest power of two that is not below a positive number."""
    power = Fraction(2) ** (value.numerator.bit_length() - value.denominator.bit_length())
    return power if power >= value else power * 2


def scale_by_the_rule(amax, rule):
    """docs/numerics.md's five rules, in fractions and one rounding at a time."""
    if rule == "act_quant":
        return float(power_from(Fraction(rn32(max(amax, FLOOR) * RECIPROCAL))))
    quotient = float(round_fraction(Fraction(amax) / 448, FP32))
    if rule == "sglang":
        return quotient
    if rule == "vllm_cuda":
        return max(quotient, 2.0**-126)
    return float(power_from(Fraction(max(quotient, FLOOR))))


def group_by_the_rule(values, rule):
    """Codes and scale of one group of floats."""
    if any(math.isnan(v) or math.isinf(v) for v in values):
        return [0x7F] * len(values), math.nan
    scale = scale_by_the_rule(max(map(abs, values)), rule)
    if rule != "sglang":
        return [encoded(divide32(v, scale)) for v in values], scale
    inverse = math.inf
    if scale:
        exact = round_fraction(1 / Fraction(scale), FP32)
        inverse = float(exact) if exact < 2**128 else math.inf
    return [encoded(rn32(v * inverse)) for v in values], scale


def bytes_of(codes):
    return codes.view(torch.uint8)
