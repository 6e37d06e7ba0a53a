"""Cache bytes against context length: cached latents, and the keys and values they expand to."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ... import layouts
from ...models.spec import Model
from .svg import Drawing, number

FIRST = 1024  # positions where the lines begin
_STEP = 8  # from one tick to the next
_EXPANDED = "bfloat16"
_LEFT, _LABELS = 44, 208  # the plot's edges; labels stand right of it
_TOP = 12
_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))
_DASHES = ("", "7 2 1.5 2", "5 3", "1.5 2")
_LABEL = 28  # what a label of two lines takes


@dataclass(frozen=True)
class Row:
    """A plotted number: what a model keeps of ``positions`` tokens, in all MLA layers."""

    model: str
    what: str
    positions: int
    bytes: int


@dataclass(frozen=True)
class _Line:
    model: Model
    what: str
    short: str
    per_token: int

    @property
    def last(self) -> int:
        return self.model.max_positions.value

    @property
    def bytes(self) -> int:
        return self.per_token * self.last


def table(models: Sequence[Model]) -> tuple[Row, ...]:
    """The plotted numbers, at each tick that a model reaches and at its last position.

    Raises ValueError without models, and for one that takes no more than `FIRST` positions.
    """
    lines, ticks = _lines(models), _ticks(models)
    return tuple(
        Row(line.model.display, line.what, positions, line.per_token * positions)
        for line in lines
        for positions in (*(tick for tick in ticks if tick < line.last), line.last)
    )


def plot(models: Sequence[Model]) -> str:
    """Both axes are logarithmic; a line ends at the model's largest number of positions.

    Raises as `table` does.
    """
    lines, ticks = _lines(models), _ticks(models)
    drawing = Drawing("context")
    widest = max(line.last for line in lines)
    across = (_LABELS - _LEFT) / math.log10(widest / FIRST)
    low = math.log10(min(line.per_token for line in lines) * FIRST)
    high = math.log10(max(line.bytes for line in lines))
    bottom = _TOP + (high - low) * across * 1.15 + 6

    def at(positions: int, size: int) -> tuple[float, float]:
        return (
            _LEFT + math.log10(positions / FIRST) * across,
            bottom - 6 - (math.log10(size) - low) * across * 1.15,
        )

    for power in range(math.ceil(low), math.floor(high) + 1):
        y = at(FIRST, 10**power)[1]
        drawing.path(f"M{_LEFT} {number(y)}H{_LABELS}", width=0.4)
        drawing.text(_LEFT - 4, y + 4, amount(10**power), kind="muted", size=11, anchor="end")
    for tick in ticks:
        x = at(tick, 1)[0]
        drawing.path(f"M{number(x)} {number(bottom)}v5")
        drawing.text(x, bottom + 17, f"{tick:,}", kind="muted", size=11, anchor="middle")
    drawing.path(f"M{_LEFT} {_TOP - 6}V{number(bottom)}H{_LABELS}")
    drawing.text((_LEFT + _LABELS) / 2, bottom + 34, "positions", anchor="middle")

    kinds = tuple(dict.fromkeys(line.what for line in lines))
    for line in lines:
        dash = _DASHES[kinds.index(line.what) % len(_DASHES)]
        (x, y), (end, height) = at(FIRST, line.per_token * FIRST), at(line.last, line.bytes)
        drawing.path(
            f"M{number(x)} {number(y)}L{number(end)} {number(height)}",
            kind="accent",
            width=1.6,
            dash=dash,
        )
    ordered = sorted(lines, key=lambda line: -line.bytes)
    places = _spread([at(line.last, line.bytes)[1] for line in ordered])
    names = [model.display for model in models]
    for line, place in zip(ordered, places, strict=True):
        x, y = at(line.last, line.bytes)
        drawing.path(
            f"M{number(x)} {number(y)}L{_LABELS + 2} {number(place)}", width=0.7, dash="1 2"
        )
        _marker(drawing, names.index(line.model.display), x, y)
        _marker(drawing, names.index(line.model.display), *at(FIRST, line.per_token * FIRST))
        drawing.text(_LABELS + 5, place - 2, line.model.display, size=11, bold=True)
        drawing.text(_LABELS + 5, place + 11, f"{line.short} {amount(line.bytes)}", size=11)
    top = max(bottom + 54, places[-1] + 34)  # many labels reach below the plot
    for kind in kinds:
        dash = _DASHES[kinds.index(kind) % len(_DASHES)]
        drawing.path(f"M2 {number(top - 4)}h34", kind="accent", width=1.6, dash=dash)
        drawing.text(44, top, kind)
        top += 18
    notes = _notes(models, lines)
    for note in notes:
        for part in textwrap.wrap(note, 52):
            drawing.text(2, top, part, kind="muted", size=11.5)
            top += 16
    ends = "; ".join(
        f"{line.model.display}, {line.what}: {amount(line.bytes)} at {line.last:,}"
        for line in ordered
    )
    return drawing.render(
        top - 8,
        "Cache bytes against context length, both logarithmic",
        f"Straight lines from {FIRST:,} positions to each model's last. {ends}. " + " ".join(notes),
    )


def amount(size: int) -> str:
    """Three digits and a decimal unit: 9.21 GB is 9.21 times 10^9 bytes."""
    for name, unit in _UNITS:
        rounded = float(f"{size / unit:.3g}")
        if rounded >= 1:
            return f"{rounded:,g} {name}"
    return "0 B"


def _lines(models: Sequence[Model]) -> tuple[_Line, ...]:
    if not models:
        raise ValueError("at least one model is needed: models.get(name) gives one")
    lines = []
    for model in models:
        if model.max_positions.value <= FIRST:
            raise ValueError(
                f"{model.display} takes {model.max_positions.value:,} positions: the plot begins "
                f"at {FIRST:,}, so it must be more"
            )
        records = [layouts.plain(model.kv)]
        if model.kv.quant is not None:
            records.append(layouts.fp8_ds_mla(model.kv))
        layers = model.mla_layers.value
        for record in records:
            what = f"latent and shared key, {record.name}"
            short = "latent" if record.has("latent") else record.name
            lines.append(_Line(model, what, short, layouts.bytes_per_token(record, layers)))
        features = model.heads.value * (model.head_width + model.v_head_dim.value)
        expanded = features * layouts.SIZES[_EXPANDED] * layers
        what = f"expanded: every head's key and value, {_EXPANDED}"
        lines.append(_Line(model, what, "expanded", expanded))
    return tuple(lines)


def _ticks(models: Sequence[Model]) -> tuple[int, ...]:
    widest, ticks = max(model.max_positions.value for model in models), [FIRST]
    while ticks[-1] * _STEP <= widest:
        ticks.append(ticks[-1] * _STEP)
    return tuple(ticks)


def _spread(wanted: Sequence[float]) -> list[float]:
    """Heights of labels, from the top down: near the wanted ones, and apart."""
    placed: list[float] = []
    for height in wanted:
        placed.append(max(height, placed[-1] + _LABEL if placed else _TOP + 6))
    return placed


def _marker(drawing: Drawing, model: int, x: float, y: float) -> None:
    """A shape for each model: circle, square, triangle, and again."""
    shapes = ("m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z", "m-3-3h6v6h-6z", "m0-4l4 7h-8z")
    drawing.shape(f"M{number(x)} {number(y)}{shapes[model % len(shapes)]}")


def _notes(models: Sequence[Model], lines: Sequence[_Line]) -> tuple[str, ...]:
    notes = []
    for group in _coinciding(lines):
        names = " and ".join(line.model.display for line in group)
        notes.append(
            f"{names} have one line, {group[0].short}: {group[0].per_token:,} bytes a token."
        )
    for model in models:
        delta = model.architecture.delta
        if delta is not None:
            notes.append(
                f"{model.display} caches in {model.mla_layers.value} of {model.layers.value} "
                f"layers; the state of its {len(delta.layers)} KDA layers is not counted."
            )
        if model.architecture.attention.indexer is not None:
            notes.append(f"{model.display}'s indexer caches keys of its own, not counted.")
    return tuple(notes)


def _coinciding(lines: Sequence[_Line]) -> list[list[_Line]]:
    groups: dict[int, list[_Line]] = {}
    for line in lines:
        groups.setdefault(line.per_token, []).append(line)
    return [group for group in groups.values() if len(group) > 1]
