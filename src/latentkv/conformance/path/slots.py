"""What a writing form leaves in a cache: its rows in their slots, and what of -1 and equal ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from ...bits import differing, same_bits
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
    elsewhere", "spoils other rows", "raises", "no slots" or "not tested", as where already the
    write of rows with slots of their own fails. ``duplicates`` is who wins: "last", "first", "one
    of them", "neither", "spoils other rows", "raises", "not tested" or, without slots, ""."""

    negative: str
    duplicates: str = ""
    faults: tuple[str, ...] = ()


def observe_slots(implementation: PathImplementation, rows: Rows, eps: float) -> Slots:
    """Write rows into a cache filled with 777, as they are without one."""
    if not implementation.has_slots:
        return Slots("no slots")
    rows = rows.pick(slice(len(_GIVEN)))
    latent, key = implementation(rows, eps)
    width = latent.shape[-1]
    records = torch.cat([latent.bfloat16(), key.bfloat16()], dim=-1)
    cache = _Cache(records.shape[-1])
    try:
        cache.write(implementation, rows, eps, _GIVEN)
    except ImplementationError as error:
        if not error.raised:
            raise
        fault = f"raises when it is given a cache: {error}"
        return Slots("not tested", "not tested", (fault,))
    wrong = _of_plain_write(cache, records, width)
    # Also after a wrong write: an implementation that changes its inputs there is refused.
    negative = _negative(implementation, rows, eps, records)
    duplicates = _duplicates(implementation, rows, eps, records)
    if wrong:
        return Slots("not tested", "not tested", (wrong,))
    faults = (_OF_NEGATIVE.get(negative), _OF_DUPLICATES.get(duplicates))
    return Slots(negative, duplicates, tuple(filter(None, faults)))


_OF_NEGATIVE = {
    "written to slot 0": "writes a row with slot -1 to slot 0",
    "written to the last slot": "writes a row with slot -1 to the last slot",
    "writes elsewhere": "writes to slots that it was not given when one of them is -1",
    "spoils other rows": "does not write the other rows when a slot is -1",
    "raises": "raises on a slot -1",
}
_OF_DUPLICATES = {
    "neither": "leaves none of the rows in a slot that several are given",
    "spoils other rows": "leaves other rows or slots wrong when two slots are equal",
    "raises": "raises on equal slots",
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

    def changed(self) -> torch.Tensor:
        """The records that are not as they were, wherever they are."""
        records = self.pool.flatten(0, 1)
        return records[differing(records, torch.full_like(records, _UNTOUCHED)).any(dim=-1)]

    def reaches_beyond(self, slots: Collection[int]) -> bool:
        """Whether a record changed that is in none of these slots."""
        return not self.holds({slot: self.slot(slot) for slot in slots})

    def holds(self, records: Mapping[int, torch.Tensor]) -> bool:
        """Whether these records, and no other change, are there."""
        expected = torch.full_like(self.pool, _UNTOUCHED)
        inner = expected[1:-1]
        for slot, record in records.items():
            inner[slot // _BLOCK_SIZE, slot % _BLOCK_SIZE] = record
        return same_bits(self.pool, expected)


def _of_plain_write(cache: _Cache, records: torch.Tensor, width: int) -> str | None:
    """What is wrong with a write of rows that have a slot each; the latent's width is given."""
    latent, key = records[:, :width], records[:, width:]
    none = torch.full_like(records, _UNTOUCHED)
    written = {
        "latent": torch.cat([latent, none[:, width:]], dim=-1),
        "key": torch.cat([none[:, :width], key], dim=-1),
        "swapped": torch.cat([key, latent], dim=-1),
    }
    held = {
        name: cache.holds(dict(zip(_GIVEN, there, strict=True))) for name, there in written.items()
    }
    changed = cache.changed()
    if cache.holds(dict(zip(_GIVEN, records, strict=True))):
        return None
    if not len(changed):
        return "leaves the cache as it was"
    if held["latent"]:
        return "writes the latent into the cache, but not the key"
    if held["key"]:
        return "writes the key into the cache, but not the latent"
    if held["swapped"]:
        return "writes the key, then the latent into the cache's records"
    if _same_records(changed, records):
        return "writes its rows to other slots than theirs"
    if all(
        same_bits(cache.slot(slot), record) for slot, record in zip(_GIVEN, records, strict=True)
    ):
        return "writes to slots that it was not given, beside its own"
    return "leaves another cache than its rows in their slots"


def _same_records(some: torch.Tensor, others: torch.Tensor) -> bool:
    """Whether these are the same records in any order; each of ``others`` is another."""
    if some.shape != others.shape:
        return False
    return all(any(same_bits(one, other) for one in some) for other in others)


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
    return "writes elsewhere" if cache.reaches_beyond(kept) else "spoils other rows"


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
    if cache.holds(dict(reversed(in_order))):
        return "first"
    wrong = [
        slot
        for slot in set(slots)
        if not any(same_bits(cache.slot(slot), record) for at, record in in_order if at == slot)
    ]
    if any(slots.count(slot) > 1 for slot in wrong):
        return "neither"
    return "spoils other rows" if wrong or cache.reaches_beyond(slots) else "one of them"
