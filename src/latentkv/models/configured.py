"""A model known by its configuration alone: what follows from it, and what does not. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..contracts import KVContract, NormContract
from .architecture import Architecture
from .spec import Place
from .yarn import Yarn


@dataclass(frozen=True)
class Value:
    """A value of a model, and where it comes from.

    ``origin`` is a key of the configuration with its line ("config.json 12: kv_lora_rank"), or a
    default of a class ("DeepseekV3RMSNorm's default, transformers 5.24.0
    models/deepseek_v3/modeling_deepseek_v3.py 39").
    """

    name: str
    value: object
    origin: str


def cited(place: Place) -> str:
    """A place as an origin: repository, file, revision and lines."""
    return f"{place.file.address} {place.label}"


Topic = Literal[
    "eps",
    "rounding",
    "rotation",
    "key-value path",
    "softmax scale",
    "names",
    "MTP",
    "storage",
    "dtype",
    "dtypes",
    "A_log",
    "vision",
]
# What changes no count.
ARITHMETIC: frozenset[Topic] = frozenset(
    ("eps", "rounding", "rotation", "key-value path", "softmax scale")
)


@dataclass(frozen=True)
class Note:
    """A remark on a configuration: what it is about, and whole sentences."""

    topic: Topic
    text: str

    def __str__(self) -> str:
        return f"{self.topic}: {self.text}"


@dataclass(frozen=True)
class ConfiguredNorms:
    """The contracts of a model's RMSNorms; ``q_latent`` is None where the query has no latent."""

    kv_latent: NormContract
    q_latent: NormContract | None
    block: NormContract


@dataclass(frozen=True)
class Configured:
    """What a configuration says of a model's key-value latent.

    Arguments:
        name: short, for tables and messages: the folder's or repository's last part, else the
            model type.
        display: for titles.
        model_type: as the configuration has it; "" for DeepSeek's own, which has none.
        file: the configuration, as given; "" where it was an object.
        follows: the name, among `models.names()`, of the model whose arithmetic its norm has.
        norms: the contracts.
        kv: the key-value path's contract; None where some part of it has none here (`unknown`).
        yarn: what the rotation of ``kv`` was made from; None where it has none.
        architecture: the whole model's sizes; None where they are not all known (`unknown`).
        softmax_scale: by what attention scores are multiplied; None where it is not known.
        values: each value that a contract rests on, with its origin.
        notes: what is easily taken wrongly, such as an eps of the configuration that the latent
            norm doesn't apply.
        unknown: what can't be said from the configuration, and why.
    """

    name: str
    display: str
    model_type: str
    file: str
    follows: str
    norms: ConfiguredNorms
    kv: KVContract | None
    yarn: Yarn | None
    architecture: Architecture | None
    softmax_scale: float | None
    values: tuple[Value, ...]
    notes: tuple[Note, ...]
    unknown: tuple[Note, ...]
