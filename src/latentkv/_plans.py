"""A contract as its operators take it, and the rotary table that all layers and kernels share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .contracts import KVContract, RopeContract
from .definition import rotary_table


@dataclass(slots=True)
class Plan:
    """What every call needs of one contract, looked up once."""

    contract: KVContract
    width: int
    latent_width: int
    eps: float
    order: str
    rope: str
    rule: str
    group: int
    tables: dict[Any, torch.Tensor | None] = field(default_factory=dict)  # by device


_PLANS: dict[int, Plan] = {}
_TABLES: dict[tuple[RopeContract, torch.device], torch.Tensor] = {}
_MANY = 1000  # contracts made on the fly must not pile up


def plan_of(contract: KVContract) -> Plan:
    """Found by identity: hashing a contract takes as long as half a row. Raises TypeError."""
    plan = _PLANS.get(id(contract))
    if plan is None or plan.contract is not contract:
        if not isinstance(contract, KVContract):
            raise TypeError(f"contract must be a KVContract, got {type(contract).__name__}")
        if len(_PLANS) >= _MANY:
            _PLANS.clear()
        rope, quant = contract.rope, contract.quant
        plan = Plan(
            contract,
            contract.width,
            contract.norm.width,
            contract.norm.eps,
            contract.norm.order,
            f"{rope.layout}_{rope.rounding}" if rope else "",
            quant.rule if quant else "",
            quant.group if quant else 0,
        )
        _PLANS[id(contract)] = plan
    return plan


def table_of(plan: Plan, device: torch.device) -> torch.Tensor | None:
    """The rotary table on a device, None without rotation."""
    try:
        return plan.tables[device]
    except KeyError:
        table = None if plan.contract.rope is None else shared_table(plan.contract.rope, device)
        plan.tables[device] = table
        return table


# Traced, it would be built anew in each graph.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def shared_table(rope: RopeContract, device: torch.device) -> torch.Tensor:
    """[max_positions, width], fp32: one tensor for every equal contract and device."""
    table = _TABLES.get((rope, device))
    if table is None:
        # Whatever mode the first caller is in (fake tensors, inference), others share the result.
        with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
            table = rotary_table(rope).to(device)
        _TABLES[rope, device] = table
    return table
