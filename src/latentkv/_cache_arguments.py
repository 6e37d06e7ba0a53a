"""What a cache's operators accept, on every backend: records, slots, memory."""

from __future__ import annotations

import torch

from . import layouts
from .contracts import KVContract
from .definition.arguments import INDEX_DTYPES, check_strided, named, output_dtype


def check_slots(
    slots: torch.Tensor, down: torch.Tensor | None, cache: torch.Tensor, *, values: bool = True
) -> None:
    """Refuse slots that don't go with the rows or lie outside the cache.

    Arguments:
        down: [..., width], each row of which has a slot; None for reading.
        values: whether to look at the numbers, too.

    Raises TypeError or ValueError.
    """
    check_strided("slots", slots)
    if slots.dtype not in INDEX_DTYPES:
        raise TypeError(f"slots have dtype {named(slots.dtype)}; allowed: int32, int64")
    if down is not None and slots.shape != down.shape[:-1]:
        raise ValueError(
            f"slots have shape {tuple(slots.shape)}; they must have one for each row of down, "
            f"{tuple(down.shape[:-1])}: give padding rows slot -1"
        )
    if slots.device != cache.device:
        raise ValueError(f"slots are on {slots.device} but the cache on {cache.device}: move one")
    if not values or slots.numel() == 0:
        return
    largest, capacity = int(slots.max()), cache.shape[0] * cache.shape[1]
    if largest >= capacity:
        raise ValueError(
            f"slot {largest} is out of range: the cache has {capacity} records, in "
            f"{cache.shape[0]} blocks of {cache.shape[1]}"
        )


def check_cache(
    cache: torch.Tensor, down: torch.Tensor, gain: torch.Tensor, contract: KVContract
) -> None:
    """Refuse what rows of this contract can't be written to. Raises TypeError or ValueError."""
    check_strided("cache", cache)
    if cache.device != down.device:
        raise ValueError(f"cache is on {cache.device} but down on {down.device}: move one of them")
    if cache.dim() != 3:
        raise ValueError(
            f"cache has shape {tuple(cache.shape)}; it must be [blocks, block size, record]"
        )
    if cache.shape[1] < 1:
        raise ValueError("cache has block size 0; a block must hold at least 1 record")
    rows = named(down.dtype)
    if cache.dtype == torch.uint8:
        record = layouts.fp8_ds_mla(contract)
        if down.dtype != torch.bfloat16:
            raise TypeError(
                f"down has dtype {rows}; an fp8 record holds the key in bfloat16, so rows must be "
                "bfloat16"
            )
    else:
        latent = output_dtype(down.dtype, gain.dtype, contract.norm.order)
        if not cache.dtype == down.dtype == latent:
            raise TypeError(
                f"cache has dtype {named(cache.dtype)}; rows of {rows} give latents of "
                f"{named(latent)} and keys of {rows}, and all three must be the same"
            )
        record = layouts.plain(contract, rows)
    if cache.shape[2] != record.width:
        parts = ", ".join(f"{field.count} {field.name}" for field in record.fields)
        raise ValueError(
            f"cache has records of {cache.shape[2]} elements; this contract's have "
            f"{record.width}: {parts}"
        )
    check_memory(cache)


def check_memory(cache: torch.Tensor) -> None:
    """Refuse records that overlap, lie in pieces or can't be written. Raises ValueError."""
    blocks, block_size, width = cache.shape
    block, record, element = cache.stride()
    record = record if block_size > 1 else width
    block = block if blocks > 1 else block_size * record
    if (element != 1 and width > 1) or record < width or block < (block_size - 1) * record + width:
        raise ValueError(
            f"cache has strides {tuple(cache.stride())} for shape {tuple(cache.shape)}: its "
            "records overlap or lie in pieces, and a write to one would change another; pass a "
            "cache of its own memory, not an expanded or transposed one"
        )
    if block % width or record % width:
        raise ValueError(
            f"cache has strides {tuple(cache.stride())}: blocks and records must begin at whole "
            f"records of {width} elements"
        )
    if cache.requires_grad:
        raise ValueError("cache requires a gradient, which a write would falsify: detach() it")
    if cache.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(
            "cache is not writable here: it was made in inference mode and is written outside it"
        )


def check_apart(cache: torch.Tensor, **others: torch.Tensor | None) -> None:
    """Refuse a cache that shares memory with what a write reads. Raises ValueError."""
    if not _has_memory(cache):
        return
    begin, end = _span(cache)
    for name, other in others.items():
        if other is None or not _has_memory(other):
            continue
        its_begin, its_end = _span(other)
        if begin < its_end and its_begin < end:
            raise ValueError(
                f"cache and {name} share memory: a write would change what is still to be read"
            )


def _has_memory(value: torch.Tensor) -> bool:
    fake = isinstance(value, torch._subclasses.FakeTensor)
    return value.device.type == "cpu" and value.numel() > 0 and not fake


def _span(value: torch.Tensor) -> tuple[int, int]:
    """The addresses from a tensor's first element to behind its last."""
    last = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    begin = value.data_ptr()
    return begin, begin + (last + 1) * value.element_size()
