"""A cached record as a byte diagram: rows of equally many bytes, fields to scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...layouts import SIZES, Field, Record
from .svg import WIDTH, Drawing, number

_RIGHT = WIDTH - 2
_DIGIT = 6.7  # the width of an offset's digit
_ROW = 24  # a row's height; the blank below it is _GAP
_GAP = 5
_LONGEST = 10  # rows, of at least _SHORTEST bytes
_SHORTEST = 16
_LETTER = 11  # the narrowest piece that holds a letter, and
_TICK = 8  # the narrowest value that is marked off from its neighbour
_FILLS = ("fill-a", "fill-b", "fill-c")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class _Row:
    """``bytes`` bytes from byte ``start`` on, and where they are drawn."""

    start: int
    bytes: int
    left: float
    top: float


def diagram(record: Record) -> str:
    """The record's fields with letters, offsets, counts, dtypes and bytes.

    Raises ValueError for more fields than there are letters.
    """
    if len(record.fields) > len(_LETTERS):
        raise ValueError(
            f"record {record.name} has {len(record.fields)} fields; a diagram has letters for "
            f"{len(_LETTERS)}"
        )
    drawing = Drawing(f"record {record.name}")
    each = _bytes_a_row(record)
    drawing.text(
        2, 12, f"{record.bytes:,} bytes a token and layer, {each:,} in a row", kind="muted"
    )
    left = max(40, 9 + _DIGIT * len(f"{(record.bytes - 1) // each * each:,}"))
    top: float = 20
    for start in range(0, record.bytes, each):
        drawing.text(
            left - 5, top + 16, f"{start:,}", kind="muted", size=11, anchor="end", mono=True
        )
        for letter, fill, field in _lettered(record):
            _piece(drawing, field, letter, fill, _Row(start, each, left, top))
        top += _ROW + _GAP
    top += 8
    for letter, fill, field in _lettered(record):
        drawing.box(2, top, 18, 18, kind=fill)
        drawing.text(11, top + 13.5, letter, anchor="middle", bold=True)
        drawing.text(28, top + 8, f"{field.name}: {_values(field)}", size=13)
        drawing.text(28, top + 24, _place(field), kind="muted")
        top += 36
    fields = "; ".join(
        f"{field.name}, {_values(field)}, {_place(field)}" for field in record.fields
    )
    return drawing.render(
        top,
        f"Record {record.name}, byte by byte",
        f"{record.bytes:,} bytes a token and layer, field after field without gaps: {fields}.",
    )


def _lettered(record: Record) -> Iterator[tuple[str, str, Field]]:
    for i, field in enumerate(record.fields):
        yield _LETTERS[i], _FILLS[i % len(_FILLS)], field


def _bytes_a_row(record: Record) -> int:
    each = _SHORTEST
    while each * _LONGEST < record.bytes:
        each *= 2
    return each


def _values(field: Field) -> str:
    return f"{field.count:,} × {field.dtype}"


def _place(field: Field) -> str:
    size = f"{field.bytes:,} byte{'' if field.bytes == 1 else 's'}"
    if field.bytes == 0:
        return size
    return f"bytes {field.offset:,} to {field.end - 1:,} ({size})"


def _piece(drawing: Drawing, field: Field, letter: str, fill: str, row: _Row) -> None:
    """What of a field lies in a row."""
    first, last = max(field.offset, row.start), min(field.end, row.start + row.bytes)
    if first >= last:
        return
    unit = (_RIGHT - row.left) / row.bytes
    left, width = row.left + (first - row.start) * unit, (last - first) * unit
    drawing.box(left, row.top, width, _ROW, kind=fill)
    value = SIZES[field.dtype]
    if value * unit >= _TICK:
        ticks = range(first + (field.offset - first) % value, last, value)
        marks = [
            f"M{number(row.left + (at - row.start) * unit)} {number(row.top)}v5"
            for at in ticks
            if at > first
        ]
        if marks:
            drawing.path("".join(marks))
    if width >= _LETTER:
        drawing.text(left + width / 2, row.top + 16.5, letter, anchor="middle", bold=True)
