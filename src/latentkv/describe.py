"""Pages: everything the user sees about a component, derived from the model's facts.

A `Page` is built from the objects that run (the contract, the definition's own source) and from
sourced facts. It says nothing about rendering: the terminal, ``--json`` and the atlas read the
same object. Whatever can be derived is derived here, so a page can't contradict its contract.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ._source import Definition, definition
from .citations import cited
from .compression import Compression, compression
from .contracts import NormContract
from .models.spec import File, LatentNorm, Model, Place, Source
from .parameters import Parameters, parameters
from .verdict import matched, unchecked

DEFINITION = ("definition/norm.py", "rms_norm")


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
    """Where the model's own code is, and the definition, which is shown in its place."""

    file: str
    heading: str
    ranges: tuple[str, ...]
    definition: Definition


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

    def as_json(self) -> dict[str, Any]:
        """Dictionaries, lists, strings, numbers, booleans and None; tuples become lists."""
        result = plain(self)
        return {name: result[name] for name in _KEYS if name in result}


@dataclass(frozen=True)
class NormPage(Page):
    """The key-value latent norm, with the compression around it."""

    parameters: Parameters
    module: Module
    eps: Eps
    order: str
    compression: Compression


# The order in which JSON has them.
_KEYS = (
    "model title path call learned summary module formula eps order input output arithmetic "
    "parameters verdict compression code sources files component accounting"
).split()


def page(model: Model) -> NormPage:
    """The page of a model's key-value latent norm, with the compression around it."""
    norm, contract = model.kv_latent_norm, model.norms.kv_latent
    names = cited(model)
    counted = parameters(model, (contract.width,))
    return NormPage(
        model=model.display,
        component="norm",
        title=norm.title,
        path=(
            f"{model.layers.value} {norm.container}",
            f"{model.instances} {norm.counted}",
            *norm.path,
        ),
        call=Call(norm.call.value, names[norm.call.place.file], norm.call.place.lines[0].first),
        learned=True,
        summary=(
            "At each position, the features are divided by their root mean square; "
            "a learned gain then multiplies them."
        ),
        module=_module(norm, contract),
        formula=_formula(norm.gain, contract.eps),
        eps=_eps(norm, contract, names),
        order=contract.order,
        input=_tensor(
            norm,
            norm.input,
            contract,
            dtype="bfloat16, float16 or float32",
            note=f"the first {contract.width:,} of the {model.down_width:,} features that the "
            "down-projection gives",
        ),
        output=_tensor(norm, norm.output, contract, dtype=_OUTPUT[contract.order], note=""),
        arithmetic=Arithmetic(
            _ARITHMETIC[contract.order],
            _ROUNDINGS[contract.order],
            names[norm.arithmetic.file],
            norm.arithmetic.label,
        ),
        accounting=(Row("Learned gain", counted.calculation.per_instance, counted.per_instance),),
        parameters=counted,
        verdict=(matched if norm.tensors_match else unchecked)("feature width"),
        compression=compression(model),
        code=Code(
            names[norm.code.file],
            _heading(norm.code),
            tuple(map(str, norm.code.lines)),
            definition(*DEFINITION),
        ),
        sources=tuple(map(_card, norm.sources)),
        files=tuple(
            CitedFile(name, file.repository, file.path, file.revision, file.copy_of)
            for file, name in names.items()
        ),
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
_ROUNDINGS = {"cast_then_gain": 2, "gain_then_cast": 1}  # to the types of input and output
_OUTPUT = {
    "cast_then_gain": "PyTorch's promotion of the input's and the gain's",
    "gain_then_cast": "the input's, whatever the gain's is",
}


def _module(norm: LatentNorm, contract: NormContract) -> Module:
    file = norm.code.file
    gain = Gain(
        "weight",
        norm.gain,
        contract.width,
        norm.gain_dtype.value,
        norm.gain_dtype.note,
        "each normalisation instance has a learned gain vector of its own",
    )
    return Module(norm.module, norm.class_name, file.repository, file.path, file.revision, gain)


def _eps(norm: LatentNorm, contract: NormContract, names: dict[File, str]) -> Eps:
    config, file = norm.eps_config, norm.eps_config.place.file
    return Eps(
        value=contract.eps,
        origin=(
            f"The default of {norm.class_name}, ε = {scientific(contract.eps)}, applies: "
            "the norm is constructed without another."
        ),
        file=names[norm.eps.file],
        lines=norm.eps.label,
        config=Config(
            config.value,
            config.value != contract.eps,
            config.note,
            file.repository,
            file.copy_of,
            names[file],
            file.revision,
            config.place.label,
        ),
    )


def _tensor(
    norm: LatentNorm, symbol: str, contract: NormContract, *, dtype: str, note: str
) -> Tensor:
    shape = (
        Axis("B", None, "batch"),
        Axis("T", norm.positions, "positions"),
        Axis("d", contract.width, "kv latent"),
    )
    return Tensor(symbol, shape, dtype, note)


def _heading(code: Place) -> str:
    """Up to two ranges are listed; more are named by the lines they span."""
    if len(code.lines) <= 2:
        return code.label
    return f"{code.lines[0].first}–{code.lines[-1].last}"


def _card(source: Source) -> Card:
    return Card(
        source.id,
        source.grade,
        source.claim,
        source.repository,
        source.path,
        source.revision,
        source.lines,
    )


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
