"""The rounding chain of an RMSNorm: each step a card, a row's bits walking through it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import get_args

from ... import bitwise
from ...bitwise import Walk, bf16, bf16_bits, fp32_bits
from ...contracts import NormContract, Order
from ...describe_formulas import scientific
from .svg import WIDTH, Drawing

_LCG = (1664525, 1013904223)  # a 32-bit linear congruential generator: any machine, the same row
_ROWS = 64  # tried, until the orders differ in one
_EDGE = 2
_INNER = 10  # from a card's edge to its text
_LONGEST = 20  # characters of a name or a number that a card has room for
_LANE = (WIDTH - 2 * _EDGE - 8) / 2
_BITS, _ADVANCE = 82, 7.2  # where a shared card has its bits, and the width of one
_SPACE = 4  # between two groups of bits
_FORMATS = {32: (1, 8, 7, 16), 16: (1, 8, 7)}  # sign, exponent, mantissa; bf16 ends after 7 of it
_FILLS = ("fill-a", "fill-b", "fill-c", "fill-c")


@dataclass(frozen=True)
class Example:
    """One row on its way through both orders, and the feature that is shown.

    ``differing`` are the features where the orders give other bf16 results; ``feature`` is the
    first of them, or 0 where there is none.
    """

    x: tuple[float, ...]
    gain: tuple[float, ...]
    walks: dict[Order, Walk]
    differing: tuple[int, ...]

    @property
    def feature(self) -> int:
        return self.differing[0] if self.differing else 0


def example(contract: NormContract) -> Example:
    """A row of the contract's width, a gain, and both orders' walks, always the same."""
    shown = None
    for row in range(_ROWS):
        values = _uniform(row, 2 * contract.width)
        x = tuple(bf16(8 * one - 4) for one in values[: contract.width])
        gain = tuple(bf16(one + 0.5) for one in values[contract.width :])
        walks: dict[Order, Walk] = {
            order: bitwise.rms_norm(x, gain, replace(contract, order=order))
            for order in get_args(Order)
        }
        first, second = (walk.y for walk in walks.values())
        differing = tuple(i for i in range(contract.width) if first[i] != second[i])
        if shown is None or differing:
            shown = Example(x, gain, walks, differing)
        if differing:
            break
    assert shown is not None
    return shown


def _uniform(seed: int, count: int) -> list[float]:
    """Multiples of 2^-16 from 0 to below 1, exact in fp32."""
    values, state = [], seed
    for _ in range(count):
        state = (_LCG[0] * state + _LCG[1]) % 2**32
        values.append((state >> 16) / 2**16)
    return values


def chain(contract: NormContract, whose: str = "") -> str:
    """The chain in both orders, whose numbers are those of `example`.

    Arguments:
        contract: its width and eps hold for both orders.
        whose: what has this contract, such as "Kimi K3": its order is then marked.
    """
    shown = example(contract)
    drawing = Drawing("rounding chain")
    top = _shared(drawing, shown, contract)
    height = _lanes(drawing, shown, contract, whose, top)
    title = "The rounding chain in both orders of gain and cast"
    return drawing.render(
        height, f"{title}: {whose}" if whose else title, _told(shown, contract, whose)
    )


def _shared(drawing: Drawing, shown: Example, contract: NormContract) -> float:
    i, walk = shown.feature, next(iter(shown.walks.values()))
    width, levels = contract.width, (contract.width - 1).bit_length()
    pairs = "(q0 + q1) + (q2 + q3) …: " if width > 4 else ""
    exact, eps = Fraction, scientific(contract.eps)
    steps = (
        ("widen", "a = fp32(x)", walk.a[i], True),
        ("square", "q = a · a", walk.q[i], exact(walk.a[i]) ** 2 == exact(walk.q[i])),
        ("sum", f"S = fold of {width:,} q", walk.total, None if levels else True),
        ("mean", f"m = S / {width:,}", walk.mean, exact(walk.mean) * width == exact(walk.total)),
        (
            "add eps",
            f"v = m + {eps}" if len(eps) <= _LONGEST else "v = m + ε",
            walk.v,
            exact(walk.v) == exact(walk.mean) + exact(contract.eps),
        ),
        ("root", "s = √v", walk.s, exact(walk.s) ** 2 == exact(walk.v)),
        ("reciprocal", "ρ = 1 / s", walk.rho, exact(walk.rho) * exact(walk.s) == 1),
        (
            "normalise",
            "n = a · ρ",
            walk.n[i],
            exact(walk.a[i]) * exact(walk.rho) == exact(walk.n[i]),
        ),
    )
    drawing.text(_EDGE, 14, f"Feature {i:,} of a row of {width:,}", size=14, bold=True)
    drawing.text(
        _EDGE,
        31,
        f"x = {_decimal(shown.x[i])}, in bf16 {_hex(shown.x[i], 16)}",
        kind="muted",
    )
    _key(drawing, 40)
    top: float = 62
    for place, (name, formula, value, is_exact) in enumerate(steps, 1):
        tall = 78 if name == "sum" and levels else 62
        drawing.box(_EDGE, top, WIDTH - 2 * _EDGE, tall, kind="line", radius=4)
        drawing.text(_INNER, top + 16, f"{place} {name}", size=13, bold=True)
        note = {None: "each sum rounded to fp32", True: "exact here", False: "rounded to fp32"}
        drawing.text(
            WIDTH - _INNER, top + 16, note[is_exact], kind="muted", anchor="end", size=11.5
        )
        drawing.text(_INNER, top + 34, formula, size=13)
        drawing.text(WIDTH - _INNER, top + 34, _decimal(value), anchor="end", mono=True)
        if tall > 62:
            drawing.text(
                _INNER,
                top + 50,
                f"{pairs}neighbours first, {levels} level{'s' if levels > 1 else ''}",
                kind="muted",
                size=11.5,
            )
        drawing.text(_INNER, top + tall - 8, _hex(value, 32), size=11, mono=True, length=66)
        _bits(drawing, _BITS, top + tall - 8, value, 32, _ADVANCE)
        drawing.arrow(WIDTH / 2, top + tall, top + tall + 12)
        top += tall + 12
    return top


def _lanes(
    drawing: Drawing, shown: Example, contract: NormContract, whose: str, top: float
) -> float:
    i = shown.feature
    gain = shown.gain[i]
    drawing.box(_EDGE, top, WIDTH - 2 * _EDGE, 24, kind="line", radius=4)
    drawing.text(_INNER, top + 16, "gain, learned", size=13, bold=True)
    drawing.text(
        WIDTH - _INNER,
        top + 16,
        f"γ = {_decimal(gain)}, {_hex(gain, 16)}",
        anchor="end",
    )
    top += 24
    heights = (100, 94, 100, 50)
    for lane, (order, walk) in enumerate(shown.walks.items()):
        left = _EDGE + lane * (_LANE + 8)
        own = bool(whose) and order == contract.order
        middle, y = left + _LANE / 2, top + 12
        drawing.arrow(middle, top, y)
        drawing.box(left, y, _LANE, 58, kind="accent" if own else "line", radius=4)
        drawing.text(left + 8, y + 18, order, size=13, bold=True)
        count = "two roundings to bf16" if walk.h is not None else "one rounding to bf16"
        drawing.text(left + 8, y + 34, count, kind="muted")
        if own:
            drawing.text(left + 8, y + 50, f"▶ {_shortened(whose)}", size=11.5)
        y += 58
        for step, height in enumerate(heights):
            drawing.arrow(middle, y, y + 12)
            y += 12
            if step == 0 and walk.h is not None:
                _cast(drawing, left, y, "9 cast", "h = bf16(n)", walk.n[i], walk.h[i])
            elif step == 0:
                drawing.path(f"M{middle} {y}v28m0 44V{y + height}", dash="3 3")
                drawing.text(middle, y + 46, "no cast here:", kind="muted", anchor="middle")
                drawing.text(middle, y + 62, "n keeps its 32 bits", kind="muted", anchor="middle")
            elif step == 1:
                factor = "h" if walk.h is not None else "n"
                _product(drawing, left, y, f"p = {factor} · γ", walk.p[i], walk.h is None)
            elif step == 2:
                place = 11 if walk.h is not None else 10
                _cast(drawing, left, y, f"{place} cast", "y = bf16(p)", walk.p[i], walk.y[i])
            else:
                drawing.box(left, y, _LANE, height, kind="accent" if own else "line", radius=4)
                drawing.text(left + 8, y + 19, f"y = {_hex(walk.y[i], 16)}", size=14, bold=True)
                drawing.text(left + 8, y + 39, _decimal(walk.y[i]), mono=True)
            y += height
    top = y + 20
    for line in _verdict(shown):
        drawing.text(WIDTH / 2, top, line, anchor="middle", size=13)
        top += 18
    return top - 8


def _cast(
    drawing: Drawing, left: float, top: float, name: str, formula: str, wide: float, narrow: float
) -> None:
    """A rounding to bf16: which of the lower 16 bits are dropped, and what they do."""
    drawing.box(left, top, _LANE, 100, kind="line", radius=4)
    _head(drawing, left, top, name, formula)
    dropped = fp32_bits(wide) & 0xFFFF
    drawing.box(left + 6, top + 23, _LANE - 12, 16, kind="mark", dash="3 2")
    drawing.text(left + 9, top + 35, f"{dropped:016b}", size=12, mono=True, length=_LANE - 18)
    drawing.path(f"M{left + 7} {top + 31}h{_LANE - 14}", kind="accent", width=0.6)
    drawing.text(left + 8, top + 53, _why(wide, narrow), kind="muted", size=11)
    _bits(drawing, left + 8, top + 71, narrow, 16, (_LANE - 22) / 16)
    drawing.text(left + 8, top + 91, _hex(narrow, 16), size=11, mono=True)
    drawing.text(left + _LANE - 8, top + 91, _decimal(narrow), size=11, anchor="end", mono=True)


def _why(wide: float, narrow: float) -> str:
    dropped = fp32_bits(wide) & 0xFFFF
    up = bf16_bits(narrow) != fp32_bits(wide) >> 16
    if dropped == 0:
        return "zeros dropped: exact"
    if dropped == 0x8000:
        return f"half dropped: {'up' if up else 'down'}, to even"
    return f"{'over' if up else 'under'} half dropped: {'up' if up else 'down'}"


def _product(
    drawing: Drawing, left: float, top: float, formula: str, value: float, early: bool
) -> None:
    drawing.box(left, top, _LANE, 94, kind="line", radius=4)
    _head(drawing, left, top, f"{9 if early else 10} gain", formula)
    advance = (_LANE - 22) / 16
    _bits(drawing, left + 8, top + 37, value, 16, advance)
    bits = fp32_bits(value)
    drawing.box(left + 6, top + 44, _LANE - 12, 15, kind="fill-c")
    drawing.text(left + 9, top + 55, f"{bits & 0xFFFF:016b}", size=12, mono=True, length=_LANE - 18)
    drawing.text(left + 8, top + 71, _hex(value, 32), size=11, mono=True)
    drawing.text(left + 8, top + 87, _decimal(value), size=11, mono=True)


def _head(drawing: Drawing, left: float, top: float, name: str, formula: str) -> None:
    drawing.text(left + 8, top + 16, name, size=13, bold=True)
    drawing.text(left + _LANE - 8, top + 16, formula, anchor="end")


def _key(drawing: Drawing, top: float) -> None:
    """What the groups of bits are, above those of the first card."""
    sign, exponent, short, rest = (size * _ADVANCE for size in _FORMATS[32])
    x: float = _BITS
    for label, wide in (
        ("±", sign),
        ("exponent", exponent),
        ("mantissa: 7 in bf16, then 16", short + _SPACE + rest),
    ):
        drawing.text(x + wide / 2, top + 12, label, kind="muted", size=11, anchor="middle")
        x += wide + _SPACE


def _bits(drawing: Drawing, x: float, y: float, value: float, count: int, advance: float) -> None:
    """The first ``count`` bits of an fp32 value's 32, in groups on areas of their own."""
    digits = f"{fp32_bits(value):032b}"
    for size, fill in zip(_FORMATS[count], _FILLS, strict=False):
        group, digits = digits[:size], digits[size:]
        wide = size * advance
        drawing.box(x - 1, y - 11, wide + 2, 15, kind=fill)
        if size == 1:
            drawing.text(x + wide / 2, y, group, mono=True, anchor="middle")
        else:
            drawing.text(x + 0.5, y, group, mono=True, length=wide - 1)
        x += wide + _SPACE


def _hex(value: float, count: int) -> str:
    return f"0x{bf16_bits(value):04X}" if count == 16 else f"0x{fp32_bits(value):08X}"


def _decimal(value: float) -> str:
    """Nine digits tell any two fp32 values apart."""
    return f"{value:.9g}"


def _shortened(whose: str) -> str:
    return whose if len(whose) <= _LONGEST else f"{whose[: _LONGEST - 1]}…"


def _verdict(shown: Example) -> tuple[str, ...]:
    total = len(shown.x)
    if not shown.differing:
        return ("Both orders give this row the same bits.",)
    first, second = (bf16_bits(abs(walk.y[shown.feature])) for walk in shown.walks.values())
    apart = abs(first - second)
    return (
        f"{apart} unit{'' if apart == 1 else 's'} in the last place apart, from one input.",
        f"{len(shown.differing):,} of the row's {total:,} features "
        f"differ{'s' if len(shown.differing) == 1 else ''}.",
    )


def _told(shown: Example, contract: NormContract, whose: str) -> str:
    """The walk in words."""
    i = shown.feature
    walk = next(iter(shown.walks.values()))
    lanes = []
    for order, one in shown.walks.items():
        cast = "" if one.h is None else f"cast to bf16 {_hex(one.h[i], 16)}, "
        lanes.append(
            f"{order}: {cast}times the gain {_hex(one.p[i], 32)}, cast to bf16 "
            f"{_hex(one.y[i], 16)} = {_decimal(one.y[i])}"
        )
    own = f" {whose} has {contract.order}." if whose else ""
    return (
        f"Feature {i:,} of a row of {contract.width:,}, eps {scientific(contract.eps)}: "
        f"x = {_hex(shown.x[i], 16)} = {_decimal(shown.x[i])} in bf16; square "
        f"{_hex(walk.q[i], 32)}; sum {_hex(walk.total, 32)}; mean {_hex(walk.mean, 32)}; with eps "
        f"{_hex(walk.v, 32)}; root {_hex(walk.s, 32)}; reciprocal {_hex(walk.rho, 32)}; normalised "
        f"{_hex(walk.n[i], 32)}; gain {_hex(shown.gain[i], 16)}. {'. '.join(lanes)}. "
        f"{' '.join(_verdict(shown))}{own}"
    )
