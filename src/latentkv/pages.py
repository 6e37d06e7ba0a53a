"""What a page is: the fields of a component of the key-value path, as plain data. No torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ._source import Definition
from .compression import Compression, Record, Rotation, Setting, Softmax, Weight
from .parameters import Parameters


@dataclass(frozen=True)
class Call:
    expression: str
    file: str
    line: int


@dataclass(frozen=True)
class Gain:
    """What is learned: one value for each feature, owned by each instance."""

    name: str
    symbol: str
    size: int
    dtype: str
    dtype_note: str
    owner: str


@dataclass(frozen=True)
class Module:
    name: str
    class_: str
    repository: str
    file: str
    revision: str
    gain: Gain


@dataclass(frozen=True)
class Config:
    """The eps of the model's configuration file, which the norm may or may not apply."""

    value: float
    differs: bool
    note: str
    repository: str
    copy_of: str
    file: str
    revision: str
    lines: str


@dataclass(frozen=True)
class Eps:
    value: float
    origin: str
    file: str
    lines: str
    config: Config


@dataclass(frozen=True)
class Axis:
    """One dimension; ``size`` is None where any size is taken."""

    symbol: str
    size: int | None
    name: str


@dataclass(frozen=True)
class Tensor:
    symbol: str
    shape: tuple[Axis, ...]
    dtype: str
    note: str


@dataclass(frozen=True)
class Arithmetic:
    sentence: str
    roundings: int
    file: str
    lines: str


@dataclass(frozen=True)
class Code:
    """Where the model's own code is, and the definition, which is shown in its place.

    ``definition`` is None where the definition has no function for it; ``note`` says why.
    """

    file: str
    heading: str
    ranges: tuple[str, ...]
    definition: Definition | None
    note: str = ""


@dataclass(frozen=True)
class Card:
    """A source as a page shows it."""

    id: str
    grade: str
    claim: str
    repository: str
    file: str
    revision: str
    lines: str


@dataclass(frozen=True)
class CitedFile:
    """A file as the page's citations call it, and where to find it."""

    name: str
    repository: str
    path: str
    revision: str
    copy_of: str


@dataclass(frozen=True)
class Row:
    """A line of the exact accounting of one instance."""

    component: str
    calculation: str
    parameters: int


@dataclass(frozen=True)
class Page:
    """A component of the key-value path.

    ``component`` is the name by which `page` and the command line know it. ``accounting`` are the
    lines that add up to one instance's parameters, and with ``parameters`` and ``verdict`` they
    are there where something is learned: else they are empty, None and "".
    """

    model: str
    component: str
    title: str
    path: tuple[str, ...]
    call: Call
    learned: bool
    summary: str
    formula: str
    input: Tensor
    output: Tensor
    arithmetic: Arithmetic
    accounting: tuple[Row, ...]
    parameters: Parameters | None
    verdict: str
    code: Code
    sources: tuple[Card, ...]
    files: tuple[CitedFile, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """``input``, and what is taken beside it."""
        return (self.input,)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """``output``, and what is given beside it."""
        return (self.output,)

    def as_json(self) -> dict[str, Any]:
        """Dictionaries, lists, strings, numbers, booleans and None; tuples become lists."""
        result = plain(self)
        return {name: result[name] for name in _KEYS if name in result}


@dataclass(frozen=True)
class RmsNormPage(Page):
    """The norm of a latent."""

    parameters: Parameters
    module: Module
    eps: Eps
    order: str


@dataclass(frozen=True)
class NormPage(RmsNormPage):
    """The key-value latent norm, with the compression around it."""

    compression: Compression


@dataclass(frozen=True)
class MatrixPage(Page):
    """A projection, with its tensor as the checkpoint names it."""

    parameters: Parameters
    weight: Weight


@dataclass(frozen=True)
class SplitPage(Page):
    """The split: ``output`` is the latent, ``key`` the shared key beside it."""

    key: Tensor

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self.output, self.key


@dataclass(frozen=True)
class RotationPage(Page):
    """The shared key's rotation: ``rotation`` is None where nothing is rotated."""

    rotation: Rotation | None
    softmax: Softmax


@dataclass(frozen=True)
class CachePage(Page):
    """What one token leaves in a layer's cache, in each record that the contract allows.

    ``input`` is the latent, ``key`` the shared key beside it.
    """

    key: Tensor
    max_positions: Setting
    records: tuple[Record, ...]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.input, self.key


# The order in which JSON has them.
_KEYS = (
    "model title path call learned summary module formula eps order input output key "
    "arithmetic parameters verdict compression weight rotation softmax max_positions records "
    "code sources files component accounting"
).split()


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries and tuples as lists, for JSON."""
    if dataclasses.is_dataclass(value):
        # class_ and the like: a trailing underscore keeps a keyword usable as a field
        return {
            field.name.rstrip("_"): plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value
