"""A contract as its operators take it, and the rotary table that all layers and kernels share."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ._autograd import constant_in_graphs
from .contracts import KVContract, RopeContract
from .definition.rope import build_table


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
_BUILDING = Lock()
_TABLES: dict[str, torch.Tensor] = {}  # by name: a graph looks them up by a constant
_MANY = 1000  # contracts made on the fly must not pile up,
_MANY_TABLES = 32  # nor what they turn by: 64 MiB each at 262,144 positions


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


def table_of(plan: Plan, like: torch.Tensor) -> torch.Tensor | None:
    """The rotary table on a tensor's device, None without rotation."""
    try:
        table = plan.tables[like.device]
    except KeyError:
        rope = plan.contract.rope
        table = None if rope is None else shared_table(rope, like.device)
        plan.tables[like.device] = table
    if type(like) is FakeTensor and table is not None:
        return like.fake_mode.from_tensor(table)
    return table


def shared_table(rope: RopeContract, device: torch.device) -> torch.Tensor:
    """[max_positions, width], fp32: one tensor for every equal contract and device."""
    name = table_name(rope, device)
    with _BUILDING:  # threads that need it at once would each build one
        table = _TABLES.get(name)
        if table is None:
            # Whatever mode the first caller is in (fake tensors, inference), others share it.
            with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
                table = build_table(rope).to(device)
            if len(_TABLES) >= _MANY_TABLES:  # plans keep what they use
                _TABLES.clear()
            _TABLES[name] = table
    return table


# What a graph takes for constants: traced, the table would be built anew in each graph, and eps be
# a symbol that only the first of two calls may see (torch 2.13, dynamic=True).
@constant_in_graphs
def constants(contract: KVContract, device: torch.device) -> tuple[Any, ...]:
    """eps, order, rope, rule, group and the name of the table in `_TABLES`, "" for none."""
    plan, rope, name = plan_of(contract), contract.rope, ""
    if rope is not None:
        shared_table(rope, device)
        name = table_name(rope, device)
    return plan.eps, plan.order, plan.rope, plan.rule, plan.group, name


def table_name(rope: RopeContract, device: torch.device) -> str:
    return f"{rope} on {device}"
