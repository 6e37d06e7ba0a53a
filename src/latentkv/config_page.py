"""The page of a model known by its configuration alone. No torch.

Like the pages of the models here, it says nothing about rendering, and whatever can be derived is
derived from the contracts. What no contract has is left out, and `unknown` says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import layouts
from .accounting import Total, tree
from .compression import _quantises, _rotates
from .contracts import KVContract, NormContract
from .describe_formulas import ARITHMETIC, norm_formula
from .models.architecture import Architecture
from .models.configured import Configured, Note, Value
from .pages import plain


@dataclass(frozen=True)
class Norm:
    """One RMSNorm's contract, and where its width and its eps come from."""

    name: str
    contract: NormContract
    width_origin: str
    eps_origin: str


@dataclass(frozen=True)
class Record:
    """A cache's record: bytes a token in one layer, and in all with a latent."""

    name: str
    bytes: int
    layers: int
    bytes_per_token: int


@dataclass(frozen=True)
class Part:
    """A part of the whole model, with its parameters and their share of all."""

    title: str
    total: int
    share: float


@dataclass(frozen=True)
class ConfigPage:
    """What `show` says of a configuration.

    ``rotation`` and ``quantisation`` are the key-value path in words, "" where it has no contract.
    ``values`` are all that was read, with their origins.
    """

    model: str
    model_type: str
    file: str
    follows: str
    formula: str
    norms: tuple[Norm, ...]
    order_origin: str
    arithmetic: str
    path: KVContract | None
    rotation: str
    quantisation: str
    softmax_scale: float | None
    records: tuple[Record, ...]
    totals: tuple[Total, ...]
    parts: tuple[Part, ...]
    values: tuple[Value, ...]
    notes: tuple[Note, ...]
    unknown: tuple[Note, ...]

    def as_json(self) -> dict[str, Any]:
        """Dictionaries, lists, strings, numbers, booleans and None; tuples become lists."""
        result = plain(self)
        assert isinstance(result, dict)
        return result

    def value(self, name: str) -> Value | None:
        """A value that was read, by its name; None where none was."""
        return next((one for one in self.values if one.name == name), None)


def config_page(shown: Configured) -> ConfigPage:
    """The page of a configuration."""
    origins = {value.name: value.origin for value in shown.values}
    latent, kv = shown.norms.kv_latent, shown.kv
    counted = None if shown.architecture is None else tree(shown.architecture)
    norms = [Norm("key–value latent", latent, origins["kv_lora_rank"], origins["kv latent eps"])]
    if shown.norms.q_latent is not None:
        eps = origins["q latent eps"]
        norms.append(Norm("query latent", shown.norms.q_latent, origins["q_lora_rank"], eps))
    norms.append(Norm("blocks", shown.norms.block, origins["hidden_size"], origins["block eps"]))
    return ConfigPage(
        model=shown.display,
        model_type=shown.model_type,
        file=shown.file,
        follows=shown.follows,
        formula=norm_formula(r"\gamma_{KV}", latent.eps),
        norms=tuple(norms),
        order_origin=origins["order"],
        arithmetic=ARITHMETIC[latent.order],
        path=kv,
        rotation="" if kv is None else _rotates(kv.rope),
        quantisation=_quantisation(kv),
        softmax_scale=shown.softmax_scale,
        records=() if kv is None else _records(kv, shown.architecture),
        totals=() if counted is None else counted.totals,
        parts=()
        if counted is None
        else tuple(Part(one.title, one.total, one.share) for one in counted.root.children),
        values=shown.values,
        notes=shown.notes,
        unknown=shown.unknown,
    )


def _quantisation(kv: KVContract | None) -> str:
    if kv is None:
        return ""
    return "none" if kv.quant is None else _quantises(kv.quant, kv.norm.width)


def _records(kv: KVContract, architecture: Architecture | None) -> tuple[Record, ...]:
    if architecture is None:
        return ()
    layers = architecture.layers - (len(architecture.delta.layers) if architecture.delta else 0)
    records = [layouts.plain(kv)]
    if kv.quant is not None and kv.norm.width % 4 == 0:
        records.append(layouts.fp8_ds_mla(kv))
    return tuple(
        Record(one.name, one.bytes, layers, layouts.bytes_per_token(one, layers)) for one in records
    )
