"""Pages: everything the user sees about a component, derived from the model's facts.

A `Page` is built from the objects that run (the contract, the definition's own source) and from
sourced facts. It says nothing about rendering: the terminal, ``--json`` and the atlas read the
same object. Whatever can be derived is derived here, so a page can't contradict its contract.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ._source import Definition
from .compression import Compression, Record, Rotation, Setting, Softmax, Weight
from .models.spec import COMPONENTS, Model
from .parameters import Parameters

DEFINITION = ("definition/norm.py", "rms_norm")


class UnknownComponentError(ValueError):
    """A model has no component of this name; the message lists those that it has."""


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


def page(model: Model) -> NormPage:
    """The page of a model's key-value latent norm, with the compression around it."""
    from .describe_norms import latent_norm  # it takes its parts from here

    return latent_norm(model)


def components(model: Model) -> tuple[str, ...]:
    """The components of a model's key-value path that have a page, in the order of the data."""
    return tuple(name for name in COMPONENTS if name not in lacking(model))


def lacking(model: Model) -> dict[str, str]:
    """The components that other models have, and why this one has none."""
    if model.kv.quant is None:
        return {"quantisation": "its contract caches the normalised latent as it is"}
    return {}


def component(model: Model, name: str) -> Page:
    """The page of one component of a model's key-value path.

    Arguments:
        name: one of `components`, in any case, surrounding blanks ignored.

    Returns a NormPage for "norm", an RmsNormPage for "query-norm", a MatrixPage for the two
    projections, a SplitPage, a RotationPage, a CachePage, else a Page.

    Raises UnknownComponentError, a ValueError, with those that there are.
    """
    from .describe_components import build

    return build(model, component_name(model, name))


def component_name(model: Model, given: str) -> str:
    """The name as `components` has it. Raises UnknownComponentError where it has none."""
    found = given.strip().lower()
    if found in components(model):
        return found
    missing = lacking(model)
    shown = given if len(given) <= 60 else f"{given[:57]}..."
    listed = f"Components: {', '.join(components(model))}"
    if found in missing:
        raise UnknownComponentError(f"{model.display} has no {found}: {missing[found]}. {listed}")
    near = get_close_matches(found, components(model), n=1, cutoff=0.5)
    hint = f", did you mean {near[0]}?" if near else "."
    without = "".join(f". It has no {name}: {why}" for name, why in missing.items())
    raise UnknownComponentError(
        f"unknown component {shown!r} of {model.display}{hint} {listed}{without}"
    )


_ARITHMETIC = {
    "cast_then_gain": (
        "The normalisation runs in float32; its result is cast back to the input type, "
        "and only then multiplied by the gain."
    ),
    "gain_then_cast": (
        "The normalisation runs in float32 and so does the product with the gain; "
        "a single cast back to the input type comes last."
    ),
}


def _formula(gain: str, eps: float) -> str:
    mantissa, exponent = decimal_parts(eps)
    factor = "" if mantissa == "1" else rf"{mantissa}\times"
    return (
        r"\begin{aligned}m_2(x)&=\frac{1}{d}\sum_{j=1}^d x_j^2\\"
        rf"y&={gain}\odot\frac{{x}}{{\sqrt{{m_2(x)+\varepsilon}}}}\\"
        rf"\varepsilon&={factor}10^{{{exponent}}}\end{{aligned}}"
    )


def decimal_parts(value: float) -> tuple[str, int]:
    """Mantissa and exponent of the shortest decimal that reads back as ``value``."""
    digits, _, exponent = f"{value!r}".partition("e")
    if not exponent:  # repr writes 0.0001 in full
        for precision in range(17):
            digits, _, exponent = f"{value:.{precision}e}".partition("e")
            if float(f"{digits}e{exponent}") == value:
                break
    return digits, int(exponent)


def scientific(value: float) -> str:
    """10⁻⁶, or 2.5 × 10⁻⁶."""
    mantissa, exponent = decimal_parts(value)
    power = "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if mantissa == "1" else f"{mantissa} × {power}"


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
