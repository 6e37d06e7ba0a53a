"""The key-value path's time: compress and write, against the same steps in eager PyTorch.

One cache of blocks of 64, written by slots in the order of the rows; eager code and the copy get
the same rows, slots and cache. `bench` starts the child and prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from . import layouts
from .bench_clock import Measurement, median_seconds
from .layouts import Record
from .models.spec import Model

if TYPE_CHECKING:
    import torch

TOKENS = (1, 1024, 16384)


def bytes_moved(record: Record, rows: int, row_bytes: int) -> int:
    """What compressing into a cache has to move at least: rows read once, records written once."""
    return rows * (row_bytes + record.bytes)


def records_of(model: Model) -> tuple[Record, ...]:
    """The records that the model's cache may hold."""
    plain = layouts.plain(model.kv)
    return (plain, layouts.fp8_ds_mla(model.kv)) if model.kv.quant else (plain,)


def measure_path(model: Model, heap: str) -> Iterator[Measurement]:
    """Each function at each size. ``heap``: "warm", or "default" for the largest size alone."""
    import torch

    for record in records_of(model):
        for rows in TOKENS if heap == "warm" else TOKENS[-1:]:
            functions = _functions(model, record, rows)
            if heap != "warm":
                functions.pop("eager")
            for name, function in functions.items():
                with torch.inference_mode():
                    seconds = median_seconds(function)
                yield Measurement(f"write, {record.name}", name, rows, seconds, heap)


def _functions(model: Model, record: Record, rows: int) -> dict[str, Callable[[], object]]:
    import torch

    from ._plans import plan_of, table_of
    from .cache import LatentCache

    contract = model.kv
    generator = torch.Generator().manual_seed(0)
    down = torch.randn(rows, contract.width, generator=generator).bfloat16()
    gain = (0.25 + 1.75 * torch.rand(contract.norm.width, generator=generator)).bfloat16()
    positions = torch.arange(rows)
    block_size = layouts.FP8_BLOCK
    shape = (-(-rows // block_size), block_size, record.width)
    memory = torch.zeros(shape, dtype=getattr(torch, record.element))
    cache = LatentCache(memory, record, contract, block_size)
    slots = torch.arange(rows)
    flat = memory.view(-1, record.width)
    table = table_of(plan_of(contract), down)  # built before anything is timed
    eager = _eager(model, record)
    functions: dict[str, Callable[[], object]] = {
        "latentkv": lambda: cache.write(down, gain, positions, slots),
        "eager": partial(eager, flat, slots, down, gain, positions, table),
    }
    if record.element == "bfloat16":
        functions["copy"] = lambda: flat[:rows].copy_(down)
    return functions


def _eager(model: Model, record: Record) -> Callable[..., None]:
    """The model's path in eager PyTorch, and an assignment to the slots."""
    import torch

    from .conformance.path.known import deepseek_unquantised, eager_codes, eager_path

    eps, quant = model.kv.norm.eps, model.kv.quant
    # Codes are stored as they are: what they stand for isn't needed, nor computed.
    path = deepseek_unquantised if record.has("scales") else eager_path(model)

    def write(
        flat: torch.Tensor,
        slots: torch.Tensor,
        down: torch.Tensor,
        gain: torch.Tensor,
        positions: torch.Tensor,
        table: torch.Tensor | None,
    ) -> None:
        halves: tuple[Any, ...] = ()
        if table is not None:
            halves = tuple(table[positions].chunk(2, dim=-1))
        latent, key = path(down, gain, eps, positions, *halves)
        if record.has("scales"):
            assert quant is not None
            parts = (*eager_codes(latent, quant.group), key.contiguous())
            flat[slots] = torch.cat([part.view(torch.uint8) for part in parts], dim=-1)
        else:
            flat[slots] = torch.cat([latent, key], dim=-1)

    return write
