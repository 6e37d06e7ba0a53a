"""What a writing form does with its slots: -1, equal ones, and the records it wasn't given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ...bits import same_bits
from ..implementation import ImplementationError
from .implementation import PathImplementation
from .probes import Rows

_BLOCKS, _BLOCK_SIZE = 3, 16
_UNTOUCHED = 777.0
# Slots in no order, over all blocks; the first and the last stay free, to show what -1 reaches.
_GIVEN = (17, 3, 40, 16, 31, 32, 5, 46)
_PADDED = (1, 6)  # rows that get slot -1


@dataclass(frozen=True)
class Slots:
    """``negative`` is "skipped", "written to slot 0", "written to the last slot", "writes
    elsewhere", "raises" or "no slots"; ``duplicates`` who wins: "last", "first", "neither",
    "raises" or "" where there are no slots."""

    negative: str
    duplicates: str = ""
    faults: tuple[str, ...] = ()


def observe_slots(implementation: PathImplementation, rows: Rows, eps: float) -> Slots:
    """Write rows into a cache filled with 777, as they are without one."""
    if not implementation.has_slots:
        return Slots("no slots")
    rows = rows.pick(slice(len(_GIVEN)))
    latent, key = implementation(rows, eps)
    records = torch.cat([latent.bfloat16(), key.bfloat16()], dim=-1)
    cache = _Cache(records.shape[-1])
    try:
        cache.write(implementation, rows, eps, _GIVEN)
    except ImplementationError as error:
        if not error.raised:
            raise
        return Slots("raises", "raises", (f"raises when it is given a cache: {error}",))
    faults = []
    if not cache.holds(dict(zip(_GIVEN, records, strict=True))):
        faults.append("leaves another cache than its rows in their slots")
    negative = _negative(implementation, rows, eps, records)
    if negative != "skipped":
        faults.append(_OF_NEGATIVE[negative])
    duplicates = _duplicates(implementation, rows, eps, records)
    if duplicates == "neither":
        faults.append("leaves neither of two rows in a slot that both are given")
    return Slots(negative, duplicates, tuple(faults))


_OF_NEGATIVE = {
    "written to slot 0": "writes a row with slot -1 to slot 0",
    "written to the last slot": "writes a row with slot -1 to the last slot",
    "writes elsewhere": "with a slot -1 among them, writes to slots that it was not given",
    "raises": "raises on a slot -1",
}


class _Cache:
    """Records between two blocks that no slot reaches."""

    def __init__(self, width: int) -> None:
        shape = (_BLOCKS + 2, _BLOCK_SIZE, width)
        self.pool = torch.full(shape, _UNTOUCHED, dtype=torch.bfloat16)

    def write(
        self, implementation: PathImplementation, rows: Rows, eps: float, slots: tuple[int, ...]
    ) -> None:
        self.pool.fill_(_UNTOUCHED)
        implementation.write(rows, eps, self.pool[1:-1], torch.tensor(slots))

    def slot(self, number: int) -> torch.Tensor:
        return self.pool[1:-1].flatten(0, 1)[number]

    def holds(self, records: Mapping[int, torch.Tensor]) -> bool:
        """Whether these records, and no other change, are there."""
        expected = torch.full_like(self.pool, _UNTOUCHED)
        inner = expected[1:-1]
        for slot, record in records.items():
            inner[slot // _BLOCK_SIZE, slot % _BLOCK_SIZE] = record
        return same_bits(self.pool, expected)


def _negative(
    implementation: PathImplementation, rows: Rows, eps: float, records: torch.Tensor
) -> str:
    cache, last = _Cache(records.shape[-1]), _BLOCKS * _BLOCK_SIZE - 1
    slots = tuple(-1 if row in _PADDED else slot for row, slot in enumerate(_GIVEN))
    try:
        cache.write(implementation, rows, eps, slots)
    except ImplementationError as error:
        if not error.raised:
            raise
        return "raises"
    kept = {slot: record for slot, record in zip(slots, records, strict=True) if slot >= 0}
    if cache.holds(kept):
        return "skipped"
    for number, name in ((0, "written to slot 0"), (last, "written to the last slot")):
        if cache.holds({**kept, number: cache.slot(number)}):
            return name
    return "writes elsewhere"


def _duplicates(
    implementation: PathImplementation, rows: Rows, eps: float, records: torch.Tensor
) -> str:
    cache = _Cache(records.shape[-1])
    # Two rows for the first slot, three for the second, and others between them.
    slots = tuple(_GIVEN[index] for index in (0, 1, 0, 1, 2, 3, 1, 4))
    try:
        cache.write(implementation, rows, eps, slots)
    except ImplementationError as error:
        if not error.raised:
            raise
        return "raises"
    in_order = list(zip(slots, records, strict=True))
    if cache.holds(dict(in_order)):
        return "last"
    return "first" if cache.holds(dict(reversed(in_order))) else "neither"
