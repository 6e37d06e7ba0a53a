"""The pages of the latents' RMSNorms: the key-value one and the query's. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from ._source import definition
from .citations import cited, places
from .compression import compression
from .contracts import NormContract
from .describe_formulas import ARITHMETIC, norm_formula, scientific
from .models.spec import File, LatentNorm, Model, PathFacts, Place, Source
from .pages import (
    Arithmetic,
    Axis,
    Call,
    Card,
    CitedFile,
    Code,
    Config,
    Eps,
    Gain,
    Module,
    NormPage,
    RmsNormPage,
    Row,
    Tensor,
)
from .parameters import parameters
from .verdict import matched, unchecked

DEFINITION = ("definition/norm.py", "rms_norm")

_ROUNDINGS = {"cast_then_gain": 2, "gain_then_cast": 1}  # to the types of input and output
_OUTPUT = {
    "cast_then_gain": "PyTorch's promotion of the input's and the gain's",
    "gain_then_cast": "the input's, whatever the gain's is",
}


def latent_norm(model: Model) -> NormPage:
    """The page of the key-value latent norm, with the compression around it."""
    contract, names = model.norms.kv_latent, cited(model)
    built = _page(
        model,
        model.kv_latent_norm,
        contract,
        names,
        component="norm",
        features="kv latent",
        note=f"the first {contract.width:,} of the {model.down_width:,} features that the "
        "down-projection gives",
        files=cited_files(names),
    )
    return NormPage(**vars(built), compression=compression(model))


def query_norm(model: Model, facts: PathFacts) -> RmsNormPage:
    """The page of the query's latent norm, of the same class as the key-value one."""
    norm, names = facts.query_norm, cited(model, facts)
    return _page(
        model,
        norm,
        model.norms.q_latent,
        names,
        component="query-norm",
        features="query latent",
        note="what the query's down-projection gives",
        files=cited_files(names, norm),
    )


def _page(
    model: Model,
    norm: LatentNorm,
    contract: NormContract,
    names: dict[File, str],
    *,
    component: str,
    features: str,
    note: str,
    files: tuple[CitedFile, ...],
) -> RmsNormPage:
    counted = parameters(model, (contract.width,))

    def tensor(symbol: str, dtype: str, note: str) -> Tensor:
        shape = (
            Axis("B", None, "batch"),
            Axis("T", norm.positions, "positions"),
            Axis("d", contract.width, features),
        )
        return Tensor(symbol, shape, dtype, note)

    return RmsNormPage(
        model=model.display,
        component=component,
        title=norm.title,
        path=breadcrumb(model, norm),
        call=Call(norm.call.value, names[norm.call.place.file], norm.call.place.lines[0].first),
        learned=True,
        summary=(
            "At each position, the features are divided by their root mean square; "
            "a learned gain then multiplies them."
        ),
        module=_module(norm, contract),
        formula=norm_formula(norm.gain, contract.eps),
        eps=_eps(norm, contract, names),
        order=contract.order,
        input=tensor(norm.input, "bfloat16, float16 or float32", note),
        output=tensor(norm.output, _OUTPUT[contract.order], ""),
        arithmetic=Arithmetic(
            ARITHMETIC[contract.order],
            _ROUNDINGS[contract.order],
            names[norm.arithmetic.file],
            norm.arithmetic.label,
        ),
        accounting=(Row("Learned gain", counted.calculation.per_instance, counted.per_instance),),
        parameters=counted,
        verdict=(matched if norm.tensors_match else unchecked)("feature width"),
        code=Code(
            names[norm.code.file],
            heading(norm.code),
            tuple(map(str, norm.code.lines)),
            definition(*DEFINITION),
        ),
        sources=cards(norm.sources),
        files=files,
    )


def breadcrumb(model: Model, norm: LatentNorm) -> tuple[str, ...]:
    """From the model's blocks down to what holds the component, as its norm's page has it."""
    return (
        f"{model.layers.value} {norm.container}",
        f"{model.instances} {norm.counted}",
        *norm.path,
    )


def heading(code: Place) -> str:
    """Up to two ranges are listed; more are named by the lines they span."""
    if len(code.lines) <= 2:
        return code.label
    return f"{code.lines[0].first}–{code.lines[-1].last}"


def cards(sources: Sequence[Source]) -> tuple[Card, ...]:
    """Sources as a page shows them."""
    return tuple(
        Card(
            source.id,
            source.grade,
            source.claim,
            source.repository,
            source.path,
            source.revision,
            source.lines,
        )
        for source in sources
    )


def cited_files(names: dict[File, str], *shown: object) -> tuple[CitedFile, ...]:
    """The files in which the ``shown`` facts stand; without facts, all that have a name."""
    used = {place.file for place in places(shown)} if shown else set(names)
    return tuple(
        CitedFile(name, file.repository, file.path, file.revision, file.copy_of)
        for file, name in names.items()
        if file in used
    )


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
