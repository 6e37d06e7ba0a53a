"""Latent caches: records of a layout (`latentkv.layouts`) in one tensor, written by slot.

One class serves all: a contiguous cache is [batch, tokens, record], a paged one
[blocks, block_size, record]; slot s is record ``s % block_size`` of block ``s // block_size``,
and for a contiguous cache ``batch * tokens + token``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

from . import layouts
from ._cache_arguments import check_memory, check_slots
from .compress import write_kv
from .contracts import KVContract
from .definition import records
from .layouts import Record


class LatentCache:
    """Cached latents and keys of one layer.

    Arguments:
        records: [blocks, block_size, record.width] in the record's element type. Blocks may lie
            apart (a slice of a larger pool), records of a block lie side by side or at whole
            records' distance.
        record: `layouts.plain` or `layouts.fp8_ds_mla` of the contract.
        contract: such as ``models.get("kimi-k2").kv``; rows are compressed by it.
        block_size: records a block, as the reader counts them.

    Attributes: the arguments, of which ``records`` is the tensor itself, used in place.

    Raises TypeError or ValueError: a shape, dtype or stride that is not the record's, overlapping
    records, memory that can't be written.
    """

    def __init__(
        self, records: torch.Tensor, record: Record, contract: KVContract, block_size: int
    ) -> None:
        self.record, self.contract, self.block_size = record, contract, block_size
        _check_record(record, contract)
        _check_block_size(block_size, record)
        if not isinstance(records, torch.Tensor):
            raise TypeError(f"records must be a tensor, got {type(records).__name__}")
        wanted = (block_size, record.width)
        if records.dim() != 3 or tuple(records.shape[1:]) != wanted:
            raise ValueError(
                f"records have shape {tuple(records.shape)}; {record.name} in blocks of "
                f"{block_size} is [blocks, {block_size}, {record.width}]"
            )
        if records.dtype != getattr(torch, record.element):
            raise TypeError(
                f"records have dtype {records.dtype}; {record.name} is torch.{record.element}: "
                f"where the bytes are right, pass records.view(torch.{record.element})"
            )
        check_memory(records)
        _check_writable(records)
        self.records = records

    @classmethod
    def contiguous(
        cls,
        contract: KVContract,
        batch: int,
        tokens: int,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> LatentCache:
        """[batch, tokens, 576] for the models' sizes, zeros."""
        record = layouts.plain(contract, str(dtype).removeprefix("torch."))
        return cls._new(record, contract, batch, tokens, device)

    @classmethod
    def paged(
        cls,
        contract: KVContract,
        blocks: int,
        block_size: int = layouts.FP8_BLOCK,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> LatentCache:
        """[blocks, block_size, 576] for the models' sizes, zeros."""
        record = layouts.plain(contract, str(dtype).removeprefix("torch."))
        return cls._new(record, contract, blocks, block_size, device)

    @classmethod
    def fp8(
        cls, contract: KVContract, blocks: int, *, device: torch.device | str = "cpu"
    ) -> LatentCache:
        """[blocks, 64, 656] bytes for the models' sizes, zeros. The contract needs a scale rule."""
        record = layouts.fp8_ds_mla(contract)
        return cls._new(record, contract, blocks, layouts.FP8_BLOCK, device)

    @classmethod
    def _new(
        cls,
        record: Record,
        contract: KVContract,
        blocks: int,
        block_size: int,
        device: torch.device | str,
    ) -> LatentCache:
        _check_block_size(block_size, record)
        if blocks < 0:
            raise ValueError(f"a cache can't have {blocks} blocks")
        element = getattr(torch, record.element)
        shape = (blocks, block_size, record.width)
        return cls(torch.zeros(shape, dtype=element, device=device), record, contract, block_size)

    @property
    def capacity(self) -> int:
        """Slots: 0 to this, exclusive."""
        return self.records.shape[0] * self.block_size

    @property
    def bytes(self) -> int:
        """Bytes of all records, used or not."""
        return layouts.bytes_per_layer(self.record, self.capacity)

    def write(
        self,
        down: torch.Tensor,
        gain: torch.Tensor,
        positions: torch.Tensor | None,
        slots: torch.Tensor,
    ) -> None:
        """Compress rows into their slots, reading each once: `latentkv.write_kv`.

        Arguments:
            down: [..., width + key_width], in the cache's dtype (bf16 for an fp8 cache).
            gain: [width].
            positions: as `latentkv.compress_kv`.
            slots: [...], int32 or int64. A negative one skips its row (padding), of equal ones
                the last wins.

        No gradient flows from the cache to the rows or the gain.

        Raises TypeError or ValueError, and leaves the cache as it was.
        """
        write_kv(self.records, slots, down, gain, self.contract, positions)

    def gather(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents [..., width] and keys [..., key_width] of these slots.

        What `latentkv.compress_kv` gives for the rows that were written. From an fp8 cache, both in
        bf16: ``code * scale``, rounded to fp32 and then to bf16, whatever the gain's dtype was. A
        negative slot (an index that selects nothing) gives
        zeros; no slot that is not asked for is used.

        Raises TypeError or ValueError.
        """
        check_slots(slots, None, self.records, values=self.records.device.type != "meta")
        quant = self.contract.quant
        group = quant.group if quant and self.record.has("scales") else None
        norm, key = self.contract.norm.width, self.contract.key_width
        return records.read(self.records, slots, norm, key, group)

    def __repr__(self) -> str:
        blocks = self.records.shape[0]
        return f"LatentCache({self.record.name}, {blocks} blocks of {self.block_size})"


def interleaved_to_half(key: torch.Tensor) -> torch.Tensor:
    """The rotated key in the half layout: all first elements of the pairs, then all second ones.

    Arguments:
        key: [..., key_width], pairs side by side. Returns the same shape and dtype, new.
    """
    return _permuted(key, layouts.half_of_interleaved)


def half_to_interleaved(key: torch.Tensor) -> torch.Tensor:
    """The rotated key in the interleaved layout, pairs side by side: what most caches keep.

    Arguments:
        key: [..., key_width], as `interleaved_to_half` gives it. Returns the same shape and dtype,
            new.
    """
    return _permuted(key, layouts.interleaved_of_half)


def _permuted(key: torch.Tensor, order: Callable[[int], tuple[int, ...]]) -> torch.Tensor:
    if key.dim() == 0:
        raise ValueError("key has no dimension; it must be [..., key_width]")
    return key[..., torch.tensor(order(key.shape[-1]), dtype=torch.int64, device=key.device)]


def _check_record(record: Record, contract: KVContract) -> None:
    if not isinstance(record, Record):
        raise TypeError(f"record must be a layouts.Record, got {type(record).__name__}")
    if not isinstance(contract, KVContract):
        raise TypeError(f"contract must be a KVContract, got {type(contract).__name__}")
    if record.has("scales"):
        wanted = layouts.fp8_ds_mla(contract)
    elif record.has("latent"):
        wanted = layouts.plain(contract, record.element)
    else:
        raise ValueError(f"record {record.name!r} is described here, but nothing writes it")
    if record != wanted:
        parts = [
            ", ".join(f"{field.count} {field.name} in {field.dtype}" for field in one.fields)
            for one in (record, wanted)
        ]
        raise ValueError(
            f"record {record.name!r} doesn't fit the contract: it has {parts[0]}; the contract's "
            f"has {parts[1]}"
        )


def _check_block_size(block_size: int, record: Record) -> None:
    if isinstance(block_size, bool) or not isinstance(block_size, int):
        raise TypeError(f"block_size must be an int, got {block_size!r}")
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    if record.has("scales") and block_size != layouts.FP8_BLOCK:
        raise ValueError(
            f"{record.name} comes in blocks of {layouts.FP8_BLOCK}, which its kernels demand; "
            f"got {block_size}"
        )


def _check_writable(records: torch.Tensor) -> None:
    """Refuse memory that the system would not let us write, where it can be asked (Linux)."""
    maps = Path("/proc/self/maps")
    if records.device.type != "cpu" or sys.platform != "linux" or not records.numel():
        return
    if not maps.exists():
        return
    address = records.data_ptr()
    for line in maps.read_text(encoding="utf-8", errors="replace").splitlines():
        span, permissions = line.split(maxsplit=2)[:2]
        begin, end = (int(part, 16) for part in span.split("-"))
        if begin <= address < end:
            if "w" not in permissions:
                raise ValueError(
                    "records are not writable: their memory is mapped read-only (a memory-mapped "
                    "file?); pass a tensor of your own, such as records.clone()"
                )
            return
