"""What becomes of the shared key: whether and how it is rotated, told from its bits.

An expected key is one of many: rotated by some frequencies, at some positions, one way round or
the other, from one layout into another. All of them are `definition.rotate` of other operands. The
geometry is found first, by distance; then the roundings, by bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ...bits import differing, same_bits
from ...contracts import KVContract, RopeContract, RopeLayout, RopeRounding
from ...definition import rotate
from ...definition.rope import inverse_frequencies
from ...layouts import half_of_interleaved, interleaved_of_half
from .probes import Rows, known_rotations, rotation_of, table_rows

# Roundings by the name under which they are reported: `definition.rotate`'s, and whether the table
# was rounded before. "table" is met where a cache of cos and sin is kept in the key's dtype.
_ROUNDINGS: dict[str, tuple[RopeRounding, bool]] = {
    "each_step": ("each_step", False),
    "result": ("result", False),
    "table": ("result", True),
}
_FEW = 128  # rows that tell the geometry
# A right geometry is off by roundings alone, a few 2^-9 of the pair, and at large positions by the
# last bit of a frequency, under 0.01 radians; a wrong one misses a quarter of the features or more.
_NEAR, _FAR_SHARE = 2.0**-5, 0.01
# Below this position two tables' last bits move under 1% of bf16 keys, while other roundings
# change 17% or more.
_EARLY, _EXPLAINED = 512, 0.05
# Two tables made in fp32: so many bf16 keys may differ, by so much of their pair (one ulp of cos
# moves a product by 2^-8, and the sum may round the other way).
TABLE_SHARE, _TABLE_DISTANCE = 1e-2, 2.0**-6


@dataclass(frozen=True)
class Explanation:
    """``rotated`` is "rotated", "not rotated" or "unknown"; ``layout`` and ``roundings`` are None
    where there are none to tell; ``faults`` is what the contract has against it."""

    rotated: str
    layout: str | None = None
    roundings: str | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """How the keys come about, and how far they are from the contract's."""

    how: Explanation
    differs: float  # the share of features
    near: bool  # no farther than another table's last bits bring it


@dataclass(frozen=True)
class _Turn:
    """One geometry; what is not the contract's is said in words."""

    frequencies: torch.Tensor
    layout: RopeLayout = "half"
    by: str = ""  # other frequencies
    at: str = ""  # other positions
    shift: int | None = 0  # None: the number of the row
    opposite: bool = False
    halves: bool = False  # feature i was taken to turn with i + pairs

    @property
    def faults(self) -> tuple[str, ...]:
        words = (
            "takes the key's two halves for its pairs" if self.halves else "",
            "rotates in the opposite direction" if self.opposite else "",
            self.at,
            self.by,
        )
        return tuple(filter(None, words))

    def key(self, rows: Rows, roundings: str) -> torch.Tensor:
        """The key turned this way."""
        rounding, rounded_table = _ROUNDINGS[roundings]
        count, key = len(rows.key), rows.key
        numbers = torch.arange(count)
        positions = numbers if self.shift is None else rows.positions + self.shift
        table = table_rows(self.frequencies, positions)
        if self.opposite:
            table = torch.cat([table[:, : key.shape[-1] // 2], -table[:, key.shape[-1] // 2 :]], -1)
        if rounded_table:
            table = table.to(key.dtype).float()
        if self.halves:
            key = key[:, list(interleaved_of_half(key.shape[-1]))]
        rope = replace(rows.rope, layout=self.layout, rounding=rounding, max_positions=count)
        return rotate(key, numbers, rope, table)


def observe_key(key: torch.Tensor, alike: bool, rows: Rows, contract: KVContract) -> Key:
    """Explain keys, and hold them against the contract's.

    Arguments:
        key: of ``rows``, bf16.
        alike: whether other positions gave the same keys.
    """
    expected = expected_key(rows, contract)
    differs = float(differing(key, expected).double().mean())
    layout = contract.rope.layout if contract.rope else "interleaved"
    near = differs <= TABLE_SHARE and _far(key, expected, layout, _TABLE_DISTANCE) == 0
    return Key(_explain(key, alike, rows, contract), differs, near)


def _explain(key: torch.Tensor, alike: bool, rows: Rows, contract: KVContract) -> Explanation:
    rope = contract.rope
    if same_bits(key, rows.key):
        return Explanation("not rotated", faults=("does not rotate the key",) if rope else ())
    if same_bits(key, rows.key[:, list(half_of_interleaved(contract.key_width))]):
        fault = "brings the key into the half layout without rotating it"
        return Explanation("not rotated", "half", faults=(fault,))
    turn, far = _nearest(key, rows, contract)
    if far > _FAR_SHARE and alike:
        return Explanation("rotated", faults=("rotates every position alike",))
    if far > _FAR_SHARE:
        fault = f"no known rotation explains its keys ({far:.0%} off the nearest)"
        return Explanation("unknown", faults=(fault,))
    early = rows.positions < _EARLY
    shares = {
        name: float(differing(key[early], turn.key(rows, name)[early]).double().mean())
        for name in _ROUNDINGS
    }
    nearest = min(shares, key=lambda name: shares[name])
    explained = nearest if shares[nearest] <= _EXPLAINED else None
    if rope is None:
        faults: tuple[str, ...] = ("rotates the key, which has to stay as it is",)
    else:
        faults = turn.faults + _of_layout(turn.layout, rope)
        faults += _of_roundings(nearest, shares[nearest], rope)
    return Explanation("rotated", turn.layout, explained, faults)


def expected_key(rows: Rows, contract: KVContract) -> torch.Tensor:
    """The contract's own."""
    if contract.rope is None:
        return rows.key.clone()
    own = _Turn(inverse_frequencies(contract.rope), contract.rope.layout)
    return own.key(rows, contract.rope.rounding)


def _of_layout(layout: str, wanted: RopeContract) -> tuple[str, ...]:
    if layout == wanted.layout:
        return ()
    return (f"leaves the key in the {layout} layout, not {wanted.layout}",)


_HABITS = {
    "each_step": "rounds at each step of the rotation",
    "result": "rounds the rotation's result alone",
    "table": "rounds cos and sin, and then the rotation's result",
}


def _of_roundings(roundings: str, share: float, wanted: RopeContract) -> tuple[str, ...]:
    if share > _EXPLAINED:
        return (f"no known roundings explain its keys ({share:.0%} off the nearest, {roundings})",)
    return () if roundings == wanted.rounding else (_HABITS[roundings],)


def _nearest(key: torch.Tensor, rows: Rows, contract: KVContract) -> tuple[_Turn, float]:
    """The geometry with the fewest features off, and their share. The contract's comes first."""
    few = rows.pick(slice(_FEW))
    best: tuple[_Turn, float] | None = None
    for turn in _turns(contract):
        far = _far(key[:_FEW], turn.key(few, "result"), turn.layout, _NEAR)
        if best is None or far < best[1]:
            best = turn, far
        if far == 0:
            break
    assert best is not None
    return best


def _turns(contract: KVContract) -> Iterator[_Turn]:
    positions = (
        ("", 0),
        ("rotates by each position plus 1", 1),
        ("rotates by each position minus 1", -1),
        ("takes a row's number for its position", None),
    )
    own = rotation_of(contract).layout
    layouts: tuple[RopeLayout, ...] = ("half", "interleaved")
    for by, frequencies in _frequencies(contract):
        for at, shift in positions:
            for opposite in (False, True):
                for halves in (False, True):
                    for layout in sorted(layouts, key=lambda layout: layout != own):
                        yield _Turn(frequencies, layout, by, at, shift, opposite, halves)


def _frequencies(contract: KVContract) -> Iterator[tuple[str, torch.Tensor]]:
    """The contract's frequencies, and what is met in their place."""
    own = rotation_of(contract)
    ropes = dict.fromkeys((own, *known_rotations(contract.key_width)))
    yield "", inverse_frequencies(own)
    for rope in ropes:
        # With a factor of 1 every pair turns at its own frequency.
        plain = replace(rope, factor=1.0)
        if rope != own:
            name = f"theta {rope.theta:g} and factor {rope.factor:g}"
            yield f"rotates by {name}", inverse_frequencies(rope)
        theta = "" if rope.theta == own.theta else f" and by theta {rope.theta:g}"
        yield f"rotates without YaRN{theta}", inverse_frequencies(plain)
    rounded = inverse_frequencies(own).bfloat16().float()
    yield "rounds the rotation's frequencies to bf16", rounded


def _far(key: torch.Tensor, expected: torch.Tensor, layout: str, distance: float) -> float:
    """The share of features farther from the expected than ``distance`` times their pair's size."""
    shape = (2, -1) if layout == "half" else (-1, 2)
    pairs = expected.double().unflatten(-1, shape)
    size = pairs.square().sum(dim=-2 if layout == "half" else -1, keepdim=True).sqrt()
    far = (key.double().unflatten(-1, shape) - pairs).abs() > distance * size
    nan = key.isnan().unflatten(-1, shape)
    return float((far | nan).double().mean())
