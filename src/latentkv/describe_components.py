"""The pages of the key-value path around its norm, from contracts, sizes and sourced facts.

Sizes come from the model's facts, sentences from its contract, lines from the facts of models/. No
torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from ._source import Definition, definition
from .citations import cited, places
from .compression import Compression, compression
from .describe_formulas import aligned, part, product, quantised, turned
from .describe_norms import breadcrumb, cards, cited_files, heading, latent_norm, query_norm
from .models import spec
from .models.spec import ComponentFacts, Fact, Model, PathFacts, Source
from .pages import (
    Arithmetic,
    Axis,
    CachePage,
    Call,
    Code,
    MatrixPage,
    Page,
    RotationPage,
    Row,
    SplitPage,
    Tensor,
)
from .verdict import matched, unchecked

_FACTS = {
    "kimi-k2": "kimi_k2_pages",
    "kimi-k3": "kimi_k3_pages",
    "deepseek-v3.2-exp": "deepseek_v32_pages",
}

_NO_DEFINITION = (
    "The definition has no function for it: it begins with this matrix's output.",
    "The definition has no function for it: it ends with this matrix's input.",
)
_ANY = "bfloat16, float16 or float32"
_POWER_OF_TWO = ("act_quant", "flashmla", "vllm_fused")  # rules whose scales are
# The functions of definition/quant.py that `quantise` looks up by the rule.
SCALE_FUNCTIONS = {
    "act_quant": "_act_quant",
    "flashmla": "_flashmla",
    "vllm_fused": "_flashmla",
    "vllm_cuda": "_vllm_cuda",
    "sglang": "_over_448",
}


@dataclass(frozen=True)
class _Own:
    """What one component's page has of its own."""

    title: str
    summary: str
    formula: str
    input: Tensor
    output: Tensor
    sentence: str
    roundings: int
    definition: Definition | None
    note: str = ""
    accounting: tuple[Row, ...] = ()
    sizes: tuple[str, ...] = ()
    key: Tensor | None = None  # beside the latent, where that is the input or the output


def build(model: Model, name: str) -> Page:
    """The page of a component that `describe.components` names."""
    if name == "norm":
        return latent_norm(model)
    facts = path_facts(model)
    if name == "query-norm":
        return query_norm(model, facts)
    shown = compression(model)
    own = _OWN[name](model, shown)
    built = _page(model, facts, facts.of(name), own)
    fields = vars(built) | ({} if own.key is None else {"key": own.key})
    if name == "rotation":
        return RotationPage(**fields, rotation=shown.rotation, softmax=shown.softmax)
    if name == "split":
        return SplitPage(**fields)
    if name == "cache":
        return CachePage(**fields, max_positions=shown.max_positions, records=shown.records)
    for weight in shown.weights:
        if weight.step == name:
            verdict = (matched if model.kv_latent_norm.tensors_match else unchecked)()
            counted = {"learned": True, "parameters": weight.parameters, "verdict": verdict}
            return MatrixPage(**{**fields, **counted}, weight=weight)
    return built


def path_facts(model: Model) -> PathFacts:
    """What the pages of a model's key-value path say of its code."""
    pages: PathFacts = import_module(f".models.{_FACTS[model.name]}", __package__).PAGES
    return pages


def _page(model: Model, every: PathFacts, facts: ComponentFacts, own: _Own) -> Page:
    names = cited(model, every)
    step = next((one for one in model.compression.steps if one.name == facts.component), None)
    call, arithmetic = facts.call, facts.arithmetic
    if step is not None:
        call = call or Fact(step.expression, step.place)
        arithmetic = arithmetic or step.place
    assert call is not None and arithmetic is not None  # a component without a step says both
    sources = (*facts.sources, *_sizes(model, own.sizes))
    extra = (model.rotation, model.compression.scale) if facts.component == "rotation" else ()
    limit = model.max_positions if facts.component == "cache" else ()
    return Page(
        model=model.display,
        component=facts.component,
        title=own.title,
        path=breadcrumb(model, model.kv_latent_norm),
        call=Call(call.value, names[call.place.file], call.place.lines[0].first),
        learned=False,
        summary=own.summary,
        formula=own.formula,
        input=own.input,
        output=own.output,
        arithmetic=Arithmetic(
            facts.told or own.sentence,
            facts.roundings if facts.told else own.roundings,
            names[arithmetic.file],
            arithmetic.label,
        ),
        accounting=own.accounting,
        parameters=None,
        verdict="",
        code=Code(
            names[facts.code.file],
            heading(facts.code),
            tuple(map(str, facts.code.lines)),
            own.definition,
            own.note,
        ),
        sources=cards(sources),
        files=cited_files(names, facts, call, arithmetic, sources, extra, limit),
    )


def _down(model: Model, shown: Compression) -> _Own:
    latent, key, hidden = model.kv.norm.width, model.kv.key_width, model.hidden_size.value
    return _Own(
        "Key–value down-projection",
        _does(shown, "down-projection"),
        aligned(
            rf"{part('z', 1, latent)}&=W^{{DKV}}h",
            rf"{part('z', latent + 1, latent + key)}&=W^{{KR}}h",
            rf"W^{{DKV}}&\in\mathbb{{R}}^{{{latent}\times{hidden}}}",
            rf"W^{{KR}}&\in\mathbb{{R}}^{{{key}\times{hidden}}}",
        ),
        _tensor("h", Axis("D", hidden, "hidden"), dtype="bfloat16", note="the normed hidden state"),
        _both(model, "z", "bfloat16", "the latent's features, then the shared key's"),
        product(model),
        1,
        None,
        _NO_DEFINITION[0],
        (_row("Latent rows", latent, hidden), _row("Shared key rows", key, hidden)),
        ("hidden_size", "kv_lora_rank", "qk_rope_head_dim"),
    )


def _split(model: Model, shown: Compression) -> _Own:
    latent, key = model.kv.norm.width, model.kv.key_width
    return _Own(
        "Split into latent and shared key",
        f"The first {latent} features are the latent, the other {key} the key that all heads "
        "share.",
        aligned(
            rf"c^{{KV}}&={part('z', 1, latent)}",
            rf"k&={part('z', latent + 1, latent + key)}",
        ),
        _both(model, "z", _ANY, "what the down-projection gives"),
        _latent(latent, r"c^{KV}", "the input's", f"the first {latent} features, a view"),
        "Two views of one tensor: nothing is copied, computed or rounded.",
        0,
        definition("definition/path.py", "compress_kv"),
        "The definition slices where it uses the parts.",
        sizes=("kv_lora_rank", "qk_rope_head_dim"),
        key=_key(key, "k", "the input's", f"the other {key}, a view"),
    )


def _rotation(model: Model, shown: Compression) -> _Own:
    rope, width = model.kv.rope, model.kv.key_width
    title = "Rotation of the shared key"
    given = _key(width, "k", _ANY, "the shared key, before it is rotated")
    if rope is None:
        return _Own(
            title,
            f"Nothing is rotated: the {width} features that hold a rotary key in related models "
            "reach the cache as they are.",
            aligned(r"k&\mapsto k"),
            _key(width, "k", _ANY, "the shared key"),
            _key(width, "k", "the input's", _note(model, "rotation")),
            _does(shown, "rotation"),
            0,
            _functions("definition/path.py", "key_of"),
            "Without a rotation in its contract, the definition copies the key.",
        )
    also = f"; {note}" if (note := _note(model, "rotation")) else ""
    return _Own(
        title,
        "Each pair of the shared key's features turns by an angle that grows with the position p.",
        turned(rope),
        given,
        _key(width, "k^{R}", "the input's", f"in the {rope.layout} layout{also}"),
        _does(shown, "rotation"),
        # cos, sin, two products and their sum, or the result alone
        5 if rope.rounding == "each_step" else 1,
        _functions("definition/rope.py", "rotate", "build_table"),
    )


def _quantisation(model: Model, shown: Compression) -> _Own:
    quant, width = model.kv.quant, model.kv.norm.width
    assert quant is not None  # components lists it only then
    exact = quant.rule in _POWER_OF_TWO
    way_back = (
        " Each scale is a power of two, so the way back rounds nothing, short of an overflow."
        if exact
        else ""
    )
    return _Own(
        "Quantisation of the latent",
        f"Each group of {quant.group} features becomes e4m3 codes with one scale, and at once what "
        "the codes stand for.",
        quantised(quant),
        _latent(width, model.kv_latent_norm.output, _ANY, "the normalised latent"),
        _latent(width, r"\tilde c^{KV}", "that of the norm's output", _note(model, "quantisation")),
        _does(shown, "quantisation") + way_back,
        1 if exact else 2,
        _functions("definition/quant.py", "quantise", SCALE_FUNCTIONS[quant.rule], "dequantise"),
    )


def _up(model: Model, shown: Compression) -> _Own:
    heads, latent = model.heads.value, model.kv.norm.width
    nope, value = model.qk_nope_head_dim.value, model.v_head_dim.value
    symbol = _cached(model)
    return _Own(
        "Key–value up-projection",
        _does(shown, "up-projection"),
        aligned(
            rf"k^{{C}}_n&=W^{{UK}}_n{symbol}",
            rf"v_n&=W^{{UV}}_n{symbol}",
            rf"W^{{UK}}_n&\in\mathbb{{R}}^{{{nope}\times{latent}}}",
            rf"W^{{UV}}_n&\in\mathbb{{R}}^{{{value}\times{latent}}}",
            rf"1&\le n\le{heads}",
        ),
        _latent(latent, symbol, "bfloat16", _read_as(model)),
        _tensor(
            r"k^{C},\;v",
            Axis("n", heads, "heads"),
            Axis("e", nope + value, "content key and value"),
            dtype="bfloat16",
            note=f"{nope} features of content key, then {value} of value; "
            + _note(model, "up-projection"),
        ),
        product(model),
        1,
        None,
        _NO_DEFINITION[1],
        (
            _row("Content key rows", heads, nope, latent),
            _row("Value rows", heads, value, latent),
        ),
        ("heads", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank"),
    )


def _cache(model: Model, shown: Compression) -> _Own:
    key = "k" if model.kv.rope is None else "k^{R}"
    kept = rf"\left[{_cached(model)};{key}\right]"
    sizes = [
        "+".join(rf"{field.count}\times{field.bytes // field.count}" for field in record.fields)
        for record in shown.records
    ]
    records = ", or ".join(f"{one.name}: {one.bytes:,} bytes" for one in shown.records)
    stored = (
        "An engine that caches the latent, as this library's cache does, keeps it and the key as "
        "they are: nothing is rounded. The model's own file keeps every head's key and value."
    )
    if model.kv.quant is not None:
        stored = (
            "Nothing is rounded: the plain record stores what the codes stand for, the other the "
            "codes and their scales; the key is stored as it is."
        )
    return _Own(
        "Cache record",
        _does(shown, "cache"),
        aligned(
            f"r&={kept}",
            *(
                rf"b&={size}={record.bytes}"
                for size, record in zip(sizes, shown.records, strict=True)
            ),
        ),
        _latent(model.kv.norm.width, _cached(model), _ANY, _read_as(model)),
        _both(model, "r", records, _note(model, "cache")),
        stored,
        0,
        _functions("definition/records.py", "write"),
        key=_key(model.kv.key_width, key, "the latent's", "the key that all heads share"),
    )


_OWN: dict[str, Callable[[Model, Compression], _Own]] = {
    "down-projection": _down,
    "split": _split,
    "rotation": _rotation,
    "quantisation": _quantisation,
    "up-projection": _up,
    "cache": _cache,
}


def _does(shown: Compression, step: str) -> str:
    return next(one.does for one in shown.steps if one.name == step)


def _note(model: Model, step: str) -> str:
    return next(one.note for one in model.compression.steps if one.name == step)


def _cached(model: Model) -> str:
    """The symbol of the latent that the up-projection and the cache get."""
    return model.kv_latent_norm.output if model.kv.quant is None else r"\tilde c^{KV}"


def _read_as(model: Model) -> str:
    return "the normalised latent" if model.kv.quant is None else "what the codes stand for"


def _tensor(symbol: str, *axes: Axis, dtype: str, note: str) -> Tensor:
    every = (Axis("B", None, "batch"), Axis("T", None, "positions"), *axes)
    return Tensor(symbol, every, dtype, note)


def _latent(width: int, symbol: str, dtype: str, note: str) -> Tensor:
    return _tensor(symbol, Axis("d", width, "kv latent"), dtype=dtype, note=note)


def _key(width: int, symbol: str, dtype: str, note: str) -> Tensor:
    return _tensor(symbol, Axis("r", width, "shared key"), dtype=dtype, note=note)


def _both(model: Model, symbol: str, dtype: str, note: str) -> Tensor:
    axis = Axis("m", model.kv.width, "kv latent and shared key")
    return _tensor(symbol, axis, dtype=dtype, note=note)


def _row(name: str, *sizes: int) -> Row:
    return Row(name, " × ".join(f"{size:,}" for size in sizes), math.prod(sizes))


def _functions(path: str, *names: str) -> Definition:
    """Several functions of one file, with what each calls there, none of it twice."""
    found = [definition(path, name) for name in names]
    parts = dict.fromkeys(part for one in found for part in one.source.split("\n\n\n"))
    return Definition(found[0].file, ", ".join(names), "\n\n\n".join(parts))


_SAID = {
    "hidden_size": "hidden size",
    "kv_lora_rank": "key–value latent",
    "qk_rope_head_dim": "shared key",
    "qk_nope_head_dim": "content key of a head",
    "v_head_dim": "value of a head",
    "heads": "heads",
}


def _sizes(model: Model, names: tuple[str, ...]) -> tuple[Source, ...]:
    """The configuration as a source for these sizes."""
    facts: list[tuple[str, Fact[int]]] = [(_SAID[name], getattr(model, name)) for name in names]
    if not facts:
        return ()
    (file,) = {place.file for place in places(tuple(fact for _, fact in facts))}
    claim = ", ".join(f"{said} {fact.value:,}" for said, fact in facts)
    lines = sorted(
        (one for _, fact in facts for one in fact.place.lines), key=lambda one: one.first
    )
    grade = "Direct evidence, in a copy" if file.copy_of else "Direct evidence"
    place = spec.Place(file, tuple(lines))
    return (Source("sizes", grade, f"The sizes that are configured: {claim}.", place),)
