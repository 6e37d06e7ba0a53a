"""Two independent references, in integers, fractions and Python floats only.

`chain` follows the arithmetic of docs/numerics.md rounding by rounding, to the bit. `exact` knows
no roundings but the contract's own: it is what the arithmetic is close to.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import torch

# Significant bits and the exponent of the smallest normal.
FORMATS = {torch.bfloat16: (8, -126), torch.float16: (11, -14), torch.float32: (24, -126)}
LARGEST = {torch.bfloat16: 127, torch.float16: 15, torch.float32: 127}


def round_fraction(value: Fraction, dtype: torch.dtype) -> Fraction:
    """To the nearest number of the format, ties to even. Within its range."""
    if value == 0:
        return value
    precision, smallest = FORMATS[dtype]
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, smallest) - precision + 1)
    return round(value / unit) * unit  # Fraction.__round__ takes ties to even


def round_float(value: float, dtype: torch.dtype) -> float:
    """The same with infinities, NaN and the sign of zero, and overflow to infinity."""
    if value == 0 or math.isinf(value) or math.isnan(value):
        return value
    rounded = round_fraction(Fraction(value), dtype)
    if abs(rounded) >= 2 ** (LARGEST[dtype] + 1):
        return math.copysign(math.inf, value)
    return math.copysign(float(rounded), value)  # what rounds to zero keeps its sign


def rn32(value: float) -> float:
    """RN32 of a Python float that holds an fp32 operation's result.

    Sums, products, square roots: 53 bits are more than 2 * 24 + 2, so rounding twice is rounding
    once. Quotients are taken as fractions.
    """
    return round_float(value, torch.float32)


def divide32(a: float, b: float) -> float:
    if math.isinf(a) or math.isnan(a) or math.isinf(b) or math.isnan(b) or a == 0:
        return a / b
    return math.copysign(float(round_fraction(Fraction(a) / Fraction(b), torch.float32)), a * b)


def sqrt32(value: float) -> float:
    """By integer square root: no library's rounding is trusted."""
    if value == 0 or math.isinf(value) or math.isnan(value):
        return value
    fraction = Fraction(value)
    shift = 400  # even, and more than 2 * (149 + 26): every fp32 becomes an integer
    integer = fraction * 2**shift
    assert integer.denominator == 1
    root = math.isqrt(integer.numerator)
    # A sticky half below the last of at least 125 bits: exact roots stay, others never tie.
    sticky = Fraction(0 if root * root == integer.numerator else 1, 2)
    return float(round_fraction((root + sticky) / 2 ** (shift // 2), torch.float32))


def fold(values: list[float]) -> float:
    """The sum of docs/numerics.md from the top: the largest power of two, then the rest."""
    if not values:
        return 0.0
    if len(values) == 1:
        return values[0]
    head = 1 << ((len(values) - 1).bit_length() - 1)
    return rn32(fold(values[:head]) + fold(values[head:]))


def chain(
    x: list[float],
    gain: list[float],
    eps: float,
    order: str,
    in_dtype: torch.dtype,
    gain_dtype: torch.dtype,
    residual: list[float] | None = None,
) -> tuple[list[float], list[float]]:
    """One row, every rounding: (y, sum)."""
    a = x if residual is None else [rn32(u + v) for u, v in zip(x, residual, strict=True)]
    total = fold([rn32(v * v) for v in a])
    v = rn32(divide32(total, float(len(a))) + rn32(eps))
    rstd = divide32(1.0, sqrt32(v))
    n = [rn32(value * rstd) for value in a]
    if order == "cast_then_gain":
        out = torch.promote_types(in_dtype, gain_dtype)
        h = [round_float(value, in_dtype) for value in n]
        y = [round_float(rn32(u * g), out) for u, g in zip(h, gain, strict=True)]
    else:
        y = [round_float(rn32(g * u), in_dtype) for u, g in zip(n, gain, strict=True)]
    return y, [round_float(value, in_dtype) for value in a]


def exact(
    x: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    order: str,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """y of the exact real numbers, rounded only where the contract rounds: [rows, width].

    fp64 proposes, and where its error could reach a tie the comparison is made in fractions.
    """
    dtype = x.dtype
    rows = x.double().numpy()
    if residual is not None:
        rows = rows + residual.double().numpy()
    # A sum of bf16 or fp16 is a multiple of 2^-133 (the smallest subnormal): an integer here.
    mean_squares = []
    for integers in _integers(x, residual):
        square = Fraction(sum(v * v for v in integers), 2**266)
        mean_squares.append(square / len(integers) + Fraction(rn32(eps)))
    root = np.sqrt(np.array([float(v) for v in mean_squares]))[:, None]
    g = gain.double().numpy()[None, :]
    n = rows / root
    if order == "cast_then_gain":
        h = _round(n, rows, np.ones_like(g), mean_squares, dtype)
        product = torch.from_numpy(h * g)  # 11 + 24 bits at most: exact, so the cast rounds once
        return product.to(torch.promote_types(dtype, gain.dtype))
    return torch.from_numpy(_round(n * g, rows, g, mean_squares, dtype)).to(dtype)


def _integers(x: torch.Tensor, residual: torch.Tensor | None) -> list[list[int]]:
    """The rows, or the rows of the exact sum, times 2^133."""
    rows = [[int(v * 2.0**133) for v in row] for row in x.double().tolist()]
    if residual is None:
        return rows
    others = [[int(v * 2.0**133) for v in row] for row in residual.double().tolist()]
    return [[u + v for u, v in zip(a, b, strict=True)] for a, b in zip(rows, others, strict=True)]


def _round(
    near: np.ndarray, rows: np.ndarray, gain: np.ndarray, v: list[Fraction], dtype: torch.dtype
) -> np.ndarray:
    """RN of rows * gain / sqrt(v), which ``near`` holds to a relative 2^-50."""
    precision, smallest = FORMATS[dtype]
    _, exponent = np.frexp(near)
    unit = np.exp2(np.maximum(exponent - 1, smallest) - precision + 1.0)
    scaled = np.abs(near / unit)  # exact: unit is a power of two
    rounded = np.rint(scaled)
    # At most four fp64 roundings made `near` (v, its root, the quotient, the product): 2^-51.
    doubtful = np.abs(scaled - np.floor(scaled) - 0.5) <= scaled * 2.0**-50
    for r, i in zip(*np.nonzero(doubtful), strict=True):
        tie = Fraction(math.floor(scaled[r, i])) + Fraction(1, 2)
        true = (Fraction(rows[r, i]) * Fraction(gain[0, i])) ** 2
        bound = (tie * Fraction(unit[r, i])) ** 2 * v[r]
        below = math.floor(tie)
        even = below + below % 2
        rounded[r, i] = even if true == bound else below + (true > bound)
    return np.copysign(rounded * unit, near)


def fp32_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])
