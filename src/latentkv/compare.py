"""The models side by side: what differs between them, and what follows from it.

Like a page, a comparison is derived from the models' facts and says nothing about rendering.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .contracts import NormContract
from .describe import page
from .describe_formulas import scientific
from .models.spec import Model
from .pages import Config, NormPage, Tensor


@dataclass(frozen=True)
class Cell:
    """A value, and where it stands; only the value decides whether models differ."""

    value: str
    place: str = ""


@dataclass(frozen=True)
class Row:
    field: str
    cells: tuple[Cell, ...]

    @property
    def differs(self) -> bool:
        return len({cell.value for cell in self.cells}) > 1

    def stands_alone(self, column: int) -> bool:
        """Whether this column alone differs, all the others agreeing."""
        counts = Counter(cell.value for cell in self.cells)
        return len(counts) == 2 and len(self.cells) > 2 and counts[self.cells[column].value] == 1


@dataclass(frozen=True)
class Comparison:
    models: tuple[str, ...]
    rows: tuple[Row, ...]
    consequences: tuple[str, ...]


def compare(models: Sequence[Model]) -> Comparison:
    """Every field of the models' pages, a row each, and the consequences of the differences."""
    pages = [page(model) for model in models]
    rows = [
        Row(field, tuple(cell(model, one) for model, one in zip(models, pages, strict=True)))
        for field, cell in _FIELDS.items()
    ]
    consequences = (
        _orders(pages),
        _promotions(pages),
        _configs(pages),
        *_counts(models),
        _layouts(models),
        _scales(models),
        _quantised(models),
        _caches(pages, models),
    )
    return Comparison(
        tuple(one.model for one in pages), tuple(rows), tuple(filter(None, consequences))
    )


def shape(tensor: Tensor) -> str:
    """[B batch, T positions, 512 kv latent]: sizes where they are fixed, symbols where not."""
    sizes = (axis.symbol if axis.size is None else f"{axis.size:,}" for axis in tensor.shape)
    named = (f"{size} {axis.name}" for size, axis in zip(sizes, tensor.shape, strict=True))
    return f"[{', '.join(named)}]"


def config_place(config: Config) -> str:
    return f"{config.file} {config.lines}"


def cite(sentence: str, file: str, lines: str) -> str:
    """The sentence, with the place that shows it before its full stop."""
    return f"{sentence.rstrip('.')} ({file} {lines})."


def _contract(contract: NormContract) -> str:
    return f"{contract.width:,} features, ε = {scientific(contract.eps)}"


def _rotation(model: Model) -> str:
    rope = model.kv.rope
    return "none" if rope is None else f"{rope.layout} layout, rounding {rope.rounding}"


def _frequencies(model: Model) -> str:
    rope = model.kv.rope
    if rope is None:
        return "none"
    return (
        f"theta {rope.theta:,.0f}; from pair {rope.high} on divided by {rope.factor:g}, up to pair "
        f"{rope.low} not, applied to the {rope.interpolated}"
    )


def _quantisation(model: Model) -> str:
    quant = model.kv.quant
    return "none" if quant is None else f"e4m3, {quant.rule}, groups of {quant.group}"


def _step_place(shown: NormPage, name: str) -> str:
    return " ".join(
        f"{step.file} {step.lines}" for step in shown.compression.steps if step.name == name
    )


def _frequency_place(shown: NormPage) -> str:
    """The lines of theta and factor, which one file has."""
    if shown.compression.rotation is None:
        return ""
    settings = {one.name: one for one in shown.compression.rotation.settings}
    theta, factor = settings["theta"], settings["factor"]
    return f"{theta.file} {theta.lines}, {factor.lines}"


_FIELDS: dict[str, Callable[[Model, NormPage], Cell]] = {
    "component": lambda m, p: Cell(p.title),
    "path": lambda m, p: Cell(" › ".join(p.path)),
    "call": lambda m, p: Cell(p.call.expression, f"{p.call.file} {p.call.line}"),
    "class": lambda m, p: Cell(p.module.class_),
    "order": lambda m, p: Cell(p.order),
    "arithmetic": lambda m, p: Cell(
        p.arithmetic.sentence, f"{p.arithmetic.file} {p.arithmetic.lines}"
    ),
    "eps applied": lambda m, p: Cell(scientific(p.eps.value), f"{p.eps.file} {p.eps.lines}"),
    "eps in config": lambda m, p: Cell(scientific(p.eps.config.value), config_place(p.eps.config)),
    "input": lambda m, p: Cell(shape(p.input)),
    "output": lambda m, p: Cell(shape(p.output)),
    "output dtype": lambda m, p: Cell(p.output.dtype),
    "gain dtype": lambda m, p: Cell(p.module.gain.dtype),
    "parameters each": lambda m, p: Cell(p.parameters.calculation.per_instance),
    "instances": lambda m, p: Cell(f"{p.parameters.instances} {p.parameters.counts.instances}"),
    "total": lambda m, p: Cell(p.parameters.calculation.total),
    "instances, whole model": lambda m, p: Cell(
        str(p.parameters.whole_model_instances), p.parameters.counts.whole_model_instances
    ),
    "total, whole model": lambda m, p: Cell(p.parameters.calculation.whole_model_total),
    "verdict": lambda m, p: Cell(p.verdict),
    "query latent norm": lambda m, p: Cell(_contract(m.norms.q_latent)),
    "block norm": lambda m, p: Cell(_contract(m.norms.block)),
    "key rotation": lambda m, p: Cell(_rotation(m), _step_place(p, "rotation")),
    "rotary frequencies": lambda m, p: Cell(_frequencies(m), _frequency_place(p)),
    "latent quantisation": lambda m, p: Cell(_quantisation(m), _step_place(p, "quantisation")),
    "softmax scale": lambda m, p: Cell(
        str(p.compression.softmax.scale),
        f"{p.compression.softmax.file} {p.compression.softmax.lines}",
    ),
    "key–value parameters, whole model": lambda m, p: Cell(
        p.compression.together.calculation.whole_model_total
    ),
    "cache bytes a token": lambda m, p: Cell(
        "; ".join(
            f"{record.name} {record.calculation.per_token}" for record in p.compression.records
        )
    ),
    "code": lambda m, p: Cell(p.code.file, p.code.heading),
    "sources": lambda m, p: Cell(", ".join(source.id for source in p.sources)),
}


def _orders(pages: Sequence[NormPage]) -> str:
    by_order: dict[str, list[NormPage]] = {}
    for one in pages:
        by_order.setdefault(one.order, []).append(one)
    if len(by_order) < 2:
        return ""
    told = ", ".join(
        f"{order} ({', '.join(one.model for one in group)}) rounds "
        + ("once" if group[0].arithmetic.roundings == 1 else "twice")
        for order, group in by_order.items()
    )
    # 25.8% measured over 20,000 Gaussian rows, bf16, gains between 0.25 and 2 (docs/numerics.md).
    return (
        f"Order: {told}. With equal eps, 26% of bf16 outputs differ, each by one unit in the "
        "last place; a cosine similarity or a tolerance of 8e-3 doesn't notice, and neither does "
        "a gain that is a power of two."
    )


def _promotions(pages: Sequence[NormPage]) -> str:
    promoting = [one.model for one in pages if one.order == "cast_then_gain"]
    if len(promoting) in (0, len(pages)):
        return ""
    return (
        f"Output dtype: for bf16 input with a float32 gain, {' and '.join(promoting)} give "
        "float32; the others keep bf16."
    )


def _configs(pages: Sequence[NormPage]) -> str:
    # Share of bf16 outputs that change from 1e-6 to 1e-5: 7.4% at an rms of 0.1 and all of them
    # at 0.01, on the rows above.
    return " ".join(
        f"eps: {one.model}'s configuration says {scientific(one.eps.config.value)} "
        f"({config_place(one.eps.config)}), which is for other norms; this one applies "
        f"{scientific(one.eps.value)}. Code that takes the configuration's changes 7% of the bf16 "
        "outputs where the latent's rms is 0.1, and all of them where it is 0.01."
        for one in pages
        if one.eps.config.differs
    )


def _counts(models: Sequence[Model]) -> tuple[str, ...]:
    if all(model.instances == model.mla_layers.value for model in models):
        return ()
    told = "; ".join(
        f"{model.display} {model.instances} {model.kv_latent_norm.counted}, "
        f"{model.mla_layers.value} over the whole model"
        for model in models
    )
    return (
        f"Counts: {told}. A dense layer's norm is the same as a MoE block's, so a loader must "
        "expect the larger number.",
    )


def _layouts(models: Sequence[Model]) -> str:
    by_layout: dict[str, list[str]] = {}
    for model in models:
        layout = model.kv.rope.layout if model.kv.rope else ""
        by_layout.setdefault(layout, []).append(model.display)
    unrotated = by_layout.pop("", [])
    if len(by_layout) < 2 and not (by_layout and unrotated):
        return ""
    told = [f"{' and '.join(names)}: {layout}" for layout, names in by_layout.items()]
    if unrotated:
        told.append(f"{' and '.join(unrotated)}: not rotated at all")
    return (
        f"Key layout: {'; '.join(told)}. A query scores rightly only against keys in its own "
        "layout; the other is a permutation of it, with the same shape and dtype."
    )


def _scales(models: Sequence[Model]) -> str:
    if len({model.softmax_scale for model in models}) < 2:
        return ""
    told = ", ".join(
        f"{model.softmax_scale * model.head_width**0.5:.6g} × {model.head_width}^-0.5 in "
        f"{model.display}"
        for model in models
    )
    return (
        f"Softmax scale: {told}. The factor is YaRN's m squared; without it attention is softer "
        "than the model's, and nothing fails."
    )


def _quantised(models: Sequence[Model]) -> str:
    rounded = [model.display for model in models if model.kv.quant is not None]
    if len(rounded) in (0, len(models)):
        return ""
    return (
        f"Latent quantisation: in {' and '.join(rounded)} attention reads what the latent's e4m3 "
        "codes stand for, before any cache; in the others it reads the norm's own output, so that "
        "an fp8 cache changes what they compute."
    )


def _caches(pages: Sequence[NormPage], models: Sequence[Model]) -> str:
    told = []
    for one, model in zip(pages, models, strict=True):
        record, some, every = one.compression.records[0], model.mla_layers.value, model.layers.value
        if some != every:
            told.append(
                f"Cache: {some} of {model.display}'s {every} layers keep a latent; sized for all "
                f"of them, a {record.name} cache takes {record.bytes * every:,} bytes a token "
                f"instead of {record.bytes_per_token:,}."
            )
    return " ".join(told)
