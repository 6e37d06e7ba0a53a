"""What a model is made of: components, which hold weights and other components. No torch.

A component has a name in the checkpoint, weights, parts, and numbers: as many instances as it has
numbers, each under a name of its own. A group of parts that the checkpoint doesn't name has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Weight:
    """A learned tensor, in the shape with which the model computes.

    Arguments:
        name: the last part of its name.
        quantised: how: "linear", a linear layer of a block, or "experts", one of a routed expert;
            "" where it is stored as it is.
        dtype: where it is not that of the checkpoint.
        unused: values of ``shape`` that pad it.
        expected: the dtype is not known, only likely.
        norm: whether it belongs to an RMSNorm.
        learned: False for what is stored though it follows from the configuration.
    """

    name: str
    shape: tuple[int, ...]
    quantised: str = ""
    dtype: str = ""
    unused: int = 0
    expected: bool = False
    norm: bool = False
    learned: bool = True

    @property
    def parameters(self) -> int:
        return math.prod(self.shape) if self.learned else 0


@dataclass(frozen=True)
class Component:
    """A part of a model.

    Arguments:
        title: what pages call it.
        name: its name below its parent's, "" for a group of parts.
        numbers: of its instances; each follows the name.
        active: how many of its instances a token uses; None for all.
        kind: "lookup" where a row is read and nothing multiplied, "apart" for what the language
            model runs without, "" for anything else.
    """

    title: str
    name: str
    weights: tuple[Weight, ...] = ()
    parts: tuple[Component, ...] = ()
    numbers: tuple[int, ...] = ()
    active: int | None = None
    kind: str = ""

    @property
    def count(self) -> int:
        return len(self.numbers) or 1


def linear(
    title: str, name: str, rows: int, columns: int, bias: bool = False, quantised: str = "linear"
) -> Component:
    """One that a quantised checkpoint may quantise."""
    dense = plain(title, name, rows, columns, bias)
    matrix, *rest = dense.weights
    return replace(dense, weights=(replace(matrix, quantised=quantised), *rest))


def plain(title: str, name: str, rows: int, columns: int, bias: bool = False) -> Component:
    weights = [Weight("weight", (rows, columns))]
    if bias:
        weights.append(Weight("bias", (rows,)))
    return Component(title, name, tuple(weights))


def norm(title: str, name: str, width: int, bias: bool = False) -> Component:
    return Component(
        title,
        name,
        tuple(Weight(one, (width,), norm=True) for one in ("weight", *(("bias",) if bias else ()))),
    )
