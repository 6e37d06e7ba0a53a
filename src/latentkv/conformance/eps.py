"""Which eps an implementation applies, and where: measured, not asked.

A row whose features all equal c has the mean square c^2 in any order of summation, so with a gain
of 1 the output is one rounding of n(c) = c / sqrt(c^2 + eps), or of what another placement makes
of it. Each output confines n to the values that round to it, and so confines eps; over a thousand
values of c the intervals meet in a narrow one, or in none where the placement is another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .implementation import Implementation

# A few fp32 roundings stand between the exact n and the one that was rounded.
_SLACK = 2.0**-21
# With a gain of 1 far above eps: an RMSNorm, and one that multiplies by 1 + gain.
_SCALES = (1.0, 2.0)


@dataclass(frozen=True)
class Eps:
    """``value`` is None where the outputs are no rounded n(c) of any placement."""

    value: float | None
    placement: str  # "inside", "outside", "floor", "none" or "unknown"
    scale: float  # y for a row of equal features far above eps: 1 in any RMSNorm with gain 1


def measure_eps(
    implementation: Implementation, width: int, passed: float, row_by_row: bool = False
) -> Eps:
    """Measure it with bf16 rows of equal features between 2^-40 and 2^4, passing eps.

    ``row_by_row`` makes each row its own call: an implementation that mixes rows has an eps too.
    """
    exponents = torch.arange(-40, 4, dtype=torch.int32).unsqueeze(1) + 127
    mantissas = torch.arange(0, 128, 4, dtype=torch.int32)
    bits = (exponents * 128 + mantissas).flatten()
    c16 = bits.to(torch.int16).view(torch.bfloat16)
    x = c16.unsqueeze(1).repeat(1, width).to(implementation.device)
    gain = torch.ones(width, dtype=torch.bfloat16, device=implementation.device)
    calls = [row.unsqueeze(0) for row in x] if row_by_row else [x]
    outputs = torch.cat([implementation(rows, gain, passed)[:, 0] for rows in calls])
    return _from_outputs(c16, outputs.cpu(), passed)


def _from_outputs(c16: torch.Tensor, outputs: torch.Tensor, passed: float) -> Eps:
    y, c = outputs.double(), c16.double()
    scale = float(y[-1])
    if scale not in _SCALES or not bool((y.isfinite() & (y > 0)).all()):
        return Eps(None, "unknown", scale)
    y = y / scale
    # A wide output may hold values that were rounded to the input's dtype on the way.
    for dtype in dict.fromkeys((outputs.dtype, c16.dtype)):
        ulp = torch.finfo(dtype).eps * 2.0 ** y.log2().floor()
        # What rounds to y: to nearest, down, and through a second rounding on the way.
        for below, above in ((0.5, 0.5), (0, 1), (1.6, 1.6)):
            low, high = y - below * ulp, y + above * ulp
            measured = _intersect(c, low * (1 - _SLACK), high * (1 + _SLACK), passed)
            if measured is not None:
                return Eps(*measured, scale)
    return Eps(None, "unknown", scale)


def _intersect(
    c: torch.Tensor, low: torch.Tensor, high: torch.Tensor, passed: float
) -> tuple[float, str] | None:
    """The eps and its placement that put every n(c) between low and high."""
    free = high >= 1  # no lower bound on eps follows
    bounds = {
        "inside": (c**2 * (1 / high**2 - 1), c**2 * (1 / low**2 - 1)),
        "outside": (c * (1 / high - 1), c * (1 / low - 1)),
        "floor": ((c / high) ** 2, (c / low) ** 2),
    }
    for placement, (least, most) in bounds.items():
        at_least = float(torch.where(free, 0.0, least).max())
        at_most = float(most.min())
        if at_least > at_most:
            continue
        if at_least == 0:
            return 0.0, "none"  # even at c = 2^-40, n is 1
        if at_least <= passed <= at_most:
            return passed, placement
        return _shortest(at_least, at_most), placement
    return None


def _shortest(low: float, high: float) -> float:
    """The number with the fewest decimal digits between two bounds."""
    middle = (low + high) / 2
    for digits in range(1, 17):
        rounded = float(f"{middle:.{digits - 1}e}")
        if low <= rounded <= high:
            return rounded
    return middle
