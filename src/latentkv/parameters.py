"""How many parameters a learned tensor has: in one instance, and over the model. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .models.spec import Model


@dataclass(frozen=True)
class Counts:
    """What the numbers of instances count."""

    instances: str
    whole_model_instances: str


@dataclass(frozen=True)
class Calculation:
    """The products behind the numbers."""

    per_instance: str
    total: str
    whole_model_total: str


@dataclass(frozen=True)
class Parameters:
    per_instance: int
    instances: int
    total: int
    whole_model_instances: int
    whole_model_total: int
    counts: Counts
    calculation: Calculation


def parameters(model: Model, shape: tuple[int, ...]) -> Parameters:
    """Those of a tensor that each layer with latent attention has once."""
    each = math.prod(shape)
    factors = " × ".join(f"{size:,}" for size in shape)
    return _counted(model, each, factors if len(shape) == 1 else f"{factors} = {each:,}")


def together(model: Model, shapes: Sequence[tuple[int, ...]]) -> Parameters:
    """Those of several such tensors."""
    several = [math.prod(shape) for shape in shapes]
    added = " + ".join(f"{one:,}" for one in several)
    return _counted(model, sum(several), f"{added} = {sum(several):,}")


def product(each: int, number: int) -> str:
    """512 × 61 = 31,232"""
    return f"{each:,} × {number:,} = {each * number:,}"


def _counted(model: Model, each: int, calculation: str) -> Parameters:
    some, every = model.instances, model.mla_layers.value
    return Parameters(
        per_instance=each,
        instances=some,
        total=each * some,
        whole_model_instances=every,
        whole_model_total=each * every,
        counts=Counts(model.kv_latent_norm.counted, _whole(model)),
        calculation=Calculation(calculation, product(each, some), product(each, every)),
    )


def _whole(model: Model) -> str:
    """What the count over the whole model counts, and what neither count holds."""
    every, layers, dense = model.mla_layers.value, model.layers.value, model.dense_layers.value
    if every == layers:
        text = f"every layer: {model.moe_layers} MoE blocks and {dense} dense"
    else:
        text = f"every MLA layer; the other {layers - every} layers have no key–value latent"
    if extra := model.mtp_layers.value:
        text += f"; the checkpoint's MTP layer has {extra} more, which neither count includes"
    return text
