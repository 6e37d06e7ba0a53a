"""How DTensor may split the operators: rows along any leading dimension, features never.

Importing torch.distributed.tensor takes longer than everything here, so the rules wait until
somebody else has: DTensor asks an operator's fake for the output's shape before it looks for a
rule, and that is when the rule is put in place. Which was imported first doesn't matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def shardable(name: str, fake: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The operator's fake, which also sees to its sharding rule once DTensor is imported."""
    waiting = True

    @wraps(fake)
    def with_rule(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        nonlocal waiting
        if waiting and "torch.distributed.tensor" in sys.modules:
            register(name)
            waiting = False
        return fake(*args, **kwargs)

    return with_rule


def register(name: str) -> None:
    """Tell DTensor how the operator may be split; imports torch.distributed.tensor."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding

    operator = getattr(torch.ops.latentkv, name).default
    register_sharding(operator)(partial(_acceptable, operator))
    # register_sharding keeps strings out of the key under which DTensor remembers its decisions,
    # and with them the output's dtype; the order, which comes last, decides that dtype.
    propagator = DTensor._op_dispatcher.sharding_propagator
    propagator.op_to_schema_info[operator] = RuntimeSchemaInfo(
        static_argnum=len(operator._schema.arguments) - 1
    )


def _acceptable(operator: Any, *arguments: Any) -> list[tuple[list[Any], list[Any]]]:
    """Placements of (outputs, inputs) on one mesh dimension, None for what is not a tensor."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    given = dict(zip((a.name for a in operator._schema.arguments), arguments, strict=True))
    tensors = {name for name, value in given.items() if hasattr(value, "placements")}

    def placed(rows: Any, gain_gradient: Any) -> tuple[list[Any], list[Any]]:
        outputs = [gain_gradient if r.name == "dgain" else rows for r in operator._schema.returns]
        inputs = [Replicate() if name == "gain" else rows for name in given]
        return outputs, [
            placement if name in tensors else None
            for name, placement in zip(given, inputs, strict=True)
        ]

    leading = range(given["x"].ndim - 1)
    return [
        placed(Replicate(), Replicate()),
        *(placed(Shard(dim), Partial("sum")) for dim in leading),
    ]
