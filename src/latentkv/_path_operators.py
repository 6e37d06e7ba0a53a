"""The key-value path's operators under ``torch.ops.latentkv``: schemas, fallbacks, fakes.

``rope`` is the layout and the rounding of the contract's rotation ("half_each_step"), ``rule`` that
of its quantisation; both are "" for none. The rotary table holds all else of a `RopeContract`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from . import definition
from ._cache_arguments import check_apart, check_cache, check_slots
from .contracts import (
    KVContract,
    LatentQuant,
    NormContract,
    Order,
    RopeContract,
    RopeLayout,
    RopeRounding,
    ScaleRule,
)
from .definition import records
from .definition.arguments import (
    OPERATOR_DTYPES,
    check_down,
    check_strides,
    output_dtype,
)
from .definition.path import joined

_ROWS = "Tensor down, Tensor gain, Tensor? positions, Tensor? table"
_NUMERICS = "float eps, str order, str rope, str rule, int group"

# Outputs are new and contiguous, as the norm's.
SCHEMAS = (
    f"compress_kv({_ROWS}, {_NUMERICS}) -> (Tensor latent, Tensor key)",
    f"compress_kv_fwd({_ROWS}, {_NUMERICS}) -> (Tensor latent, Tensor key, Tensor rstd)",
    "compress_kv_bwd(Tensor? dlatent, Tensor? dkey, Tensor down, Tensor gain, Tensor rstd,"
    " Tensor? positions, Tensor? table, str order, str rope) -> (Tensor ddown, Tensor dgain)",
    f"write_kv(Tensor(a!) cache, Tensor slots, {_ROWS}, {_NUMERICS}) -> ()",
)
_ANY_EPS = 1.0  # the backward has rstd instead


def check_operands(
    down: torch.Tensor,
    gain: torch.Tensor,
    contract: KVContract,
    positions: torch.Tensor | None,
    *,
    values: bool = True,
) -> None:
    """Refuse what the operators don't take, on any backend. Raises TypeError or ValueError."""
    check_down(down, gain, contract, positions, OPERATOR_DTYPES, values=values)
    check_strides(down, gain, None, name="down")


def check_write(
    cache: torch.Tensor,
    slots: torch.Tensor,
    down: torch.Tensor,
    gain: torch.Tensor,
    contract: KVContract,
    positions: torch.Tensor | None,
    *,
    values: bool = True,
) -> None:
    """As `check_operands`, for a cache and slots as well. Positions of skipped rows don't count."""
    check_operands(down, gain, contract, positions, values=False)
    check_cache(cache, down, gain, contract)
    check_slots(slots, down, cache, values=values)
    check_apart(cache, down=down, gain=gain, slots=slots, positions=positions)
    if values and contract.rope is not None and positions is not None:
        kept = slots >= 0
        rows = down[kept]
        check_down(rows, gain, contract, positions.expand(down.shape[:-1])[kept], OPERATOR_DTYPES)


def _contract_of(
    down: torch.Tensor,
    gain: torch.Tensor,
    table: torch.Tensor | None,
    eps: float,
    order: str,
    rope: str,
    rule: str,
    group: int,
) -> KVContract:
    """The contract that these arguments follow, but for what only the table says."""
    if down.dim() == 0 or gain.dim() != 1:
        raise ValueError("down must be [..., width] and gain 1-D")
    width, key_width = int(gain.shape[0]), int(down.shape[-1] - gain.shape[0])
    norm = NormContract(width, eps, cast(Order, order))
    turn = None
    if rope:
        if table is None or table.dim() != 2 or table.shape[1] != key_width:
            raise ValueError(f"rope {rope!r} needs a table [max_positions, {key_width}]")
        if table.device != down.device or table.dtype != torch.float32:
            raise ValueError(
                f"table is {table.dtype} on {table.device}; it must be float32 on {down.device}"
            )
        layout, _, rounding = rope.partition("_")
        turn = RopeContract(
            width=key_width,
            theta=2.0,
            factor=1.0,
            low=0,
            high=1,
            interpolated="inverse",
            rounding=cast(RopeRounding, rounding),
            layout=cast(RopeLayout, layout),
            max_positions=int(table.shape[0]),
        )
    quant = LatentQuant(group, cast(ScaleRule, rule)) if rule else None
    return KVContract(norm, key_width, turn, quant)


def _compress_kv(
    down: torch.Tensor,
    gain: torch.Tensor,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    *numerics: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    contract = _contract_of(down, gain, table, *numerics)
    check_operands(down, gain, contract, positions)
    return definition.compress_kv(down, gain, contract, positions, table)


def _compress_kv_fwd(
    down: torch.Tensor,
    gain: torch.Tensor,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    *numerics: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    latent, key = _compress_kv(down, gain, positions, table, *numerics)
    contract = _contract_of(down, gain, table, *numerics)
    x = down[..., : contract.norm.width]
    return latent, key, definition.reciprocal_rms(x, contract.norm)


def _compress_kv_bwd(
    dlatent: torch.Tensor | None,
    dkey: torch.Tensor | None,
    down: torch.Tensor,
    gain: torch.Tensor,
    rstd: torch.Tensor,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    order: str,
    rope: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """On every device: the norm's own kernel where there is one, the definition for the key.

    An absent gradient is that of a result which nobody used: its part is zeros.
    """
    contract = _contract_of(down, gain, table, _ANY_EPS, order, rope, "", 0)
    check_operands(down, gain, contract, positions, values=False)
    x = down[..., : contract.norm.width]
    if dlatent is None:
        dx, dgain = x.new_zeros(x.shape), torch.zeros_like(gain)
    else:
        dx, dgain = torch.ops.latentkv.rms_norm_bwd.default(dlatent, x, gain, rstd, order)
    if dkey is None:
        dkey = down.new_zeros((*down.shape[:-1], contract.key_width))
    elif contract.rope is not None:
        assert positions is not None and table is not None  # refused above
        dkey = definition.rotate_backward(dkey, positions, contract.rope, table)
    return joined(dx, dkey), dgain


def _write_kv(
    cache: torch.Tensor,
    slots: torch.Tensor,
    down: torch.Tensor,
    gain: torch.Tensor,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    *numerics: Any,
) -> None:
    contract = _contract_of(down, gain, table, *numerics)
    check_write(cache, slots, down, gain, contract, positions)
    with torch.no_grad():  # the cache is data: its history must not reach back to the gain
        records.write(cache, slots, down, gain, contract, positions, table)


def _fake_compress_kv(
    down: torch.Tensor,
    gain: torch.Tensor,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    *numerics: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    contract = _contract_of(down, gain, table, *numerics)
    check_operands(down, gain, contract, positions, values=False)
    leading = down.shape[:-1]
    dtype = output_dtype(down.dtype, gain.dtype, contract.norm.order)
    return (
        down.new_empty((*leading, contract.norm.width), dtype=dtype),
        down.new_empty((*leading, contract.key_width)),
    )


def _fake_compress_kv_fwd(
    down: torch.Tensor,
    gain: torch.Tensor,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    *numerics: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    latent, key = _fake_compress_kv(down, gain, positions, table, *numerics)
    return latent, key, down.new_empty(down.shape[:-1], dtype=torch.float32)


def _fake_compress_kv_bwd(
    dlatent: torch.Tensor | None,
    dkey: torch.Tensor | None,
    down: torch.Tensor,
    gain: torch.Tensor,
    rstd: torch.Tensor,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    order: str,
    rope: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    contract = _contract_of(down, gain, table, _ANY_EPS, order, rope, "", 0)
    check_operands(down, gain, contract, positions, values=False)
    return down.new_empty(down.shape), gain.new_empty(gain.shape)


def _fake_write_kv(
    cache: torch.Tensor,
    slots: torch.Tensor,
    down: torch.Tensor,
    gain: torch.Tensor,
    positions: torch.Tensor | None,
    table: torch.Tensor | None,
    *numerics: Any,
) -> None:
    contract = _contract_of(down, gain, table, *numerics)
    check_write(cache, slots, down, gain, contract, positions, values=False)


def operators() -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Schema -> (fallback, fake)."""
    named = {schema: schema.partition("(")[0] for schema in SCHEMAS}
    return {
        schema: (globals()[f"_{name}"], globals()[f"_fake_{name}"])
        for schema, name in named.items()
    }
