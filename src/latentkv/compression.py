"""The key-value compression as a page shows it: steps, parameters, rotation, cache records.

Every number is derived from the model's contracts and sourced facts, every sentence from its
contracts. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import layouts
from .citations import cited
from .contracts import LatentQuant, RopeContract
from .models import spec
from .models.spec import File, Model
from .parameters import Parameters, parameters, product, together


@dataclass(frozen=True)
class Part:
    name: str
    width: int


@dataclass(frozen=True)
class Features:
    """What a step takes or gives: ``parts`` side by side, once for each of ``heads``."""

    shape: tuple[str | int, ...]
    heads: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Step:
    name: str
    does: str
    input: Features
    output: Features
    expression: str
    file: str
    lines: str
    note: str


@dataclass(frozen=True)
class Weight:
    """A learned tensor, as the checkpoint names it; N is the layer's number."""

    step: str
    tensor: str
    shape: tuple[int, ...]
    parameters: Parameters


@dataclass(frozen=True)
class Setting:
    """A value of the model's configuration, or of its code, and where it stands."""

    name: str
    value: float
    note: str
    repository: str
    copy_of: str
    file: str
    revision: str
    lines: str


@dataclass(frozen=True)
class Meaning:
    """A rotation's contract in words, a half-sentence for each choice."""

    interpolated: str
    rounding: str
    layout: str


@dataclass(frozen=True)
class Rotation:
    """The shared key's rotation: what the configuration sets, and what YaRN makes of it.

    ``low`` and ``high`` are the pairs between which the frequencies change over.
    ``interpolated``, ``rounding`` and ``layout`` are values of `RopeContract`, and ``meaning``
    says what they are.
    """

    settings: tuple[Setting, ...]
    frequency: str
    stretched: str
    low: int
    high: int
    ramp: str
    interpolated: str
    rounding: str
    layout: str
    meaning: Meaning


@dataclass(frozen=True)
class Softmax:
    scale: float
    formula: str
    file: str
    lines: str


@dataclass(frozen=True)
class Field:
    """``count`` values of one dtype, from byte ``offset`` to before byte ``end``."""

    name: str
    offset: int
    end: int
    count: int
    dtype: str
    bytes: int


@dataclass(frozen=True)
class Bytes:
    """The products behind a record's numbers."""

    per_token: str
    per_layer: str
    per_model: str


@dataclass(frozen=True)
class Record:
    """One token's bytes in one layer's cache, and what they add up to.

    ``bytes_per_token`` is that of all ``layers``; ``bytes_per_layer`` and ``bytes_per_model`` are
    those of as many tokens as the model takes.
    """

    name: str
    fields: tuple[Field, ...]
    bytes: int
    layers: int
    bytes_per_token: int
    bytes_per_layer: int
    bytes_per_model: int
    calculation: Bytes


@dataclass(frozen=True)
class Compression:
    steps: tuple[Step, ...]
    weights: tuple[Weight, ...]
    together: Parameters
    rotation: Rotation | None
    softmax: Softmax
    max_positions: Setting
    records: tuple[Record, ...]


def compression(model: Model) -> Compression:
    """The key-value path of a model around its latent norm."""
    weights, names = _weights(model), cited(model)
    records = [layouts.plain(model.kv)]
    if model.kv.quant is not None:
        records.append(layouts.fp8_ds_mla(model.kv))
    return Compression(
        steps=_steps(model, names),
        weights=weights,
        together=together(model, [weight.shape for weight in weights]),
        rotation=_rotation(model, names),
        softmax=_softmax(model, names),
        max_positions=_setting("max positions", model.max_positions, names),
        records=tuple(_record(model, record) for record in records),
    )


def _steps(model: Model, names: dict[File, str]) -> tuple[Step, ...]:
    kv, heads = model.kv, model.heads.value
    hidden = _features(Part("hidden state", model.hidden_size.value))
    parts = Part("latent", kv.norm.width), Part("key", kv.key_width)
    latent, key = map(_features, parts)
    both = _features(*parts)
    each_head = _features(
        Part("content key", model.qk_nope_head_dim.value),
        Part("value", model.v_head_dim.value),
        heads=heads,
    )
    told: dict[spec.StepName, tuple[str, Features, Features]] = {
        "down-projection": (
            "One matrix gives the latent and, beside it, the key that all heads share.",
            hidden,
            both,
        ),
        "norm": ("The latent is normalised, the key is not.", latent, latent),
        "rotation": (_rotates(kv.rope), key, key),
        "up-projection": (
            f"Each of the {heads} heads gets a content key and a value of its own.",
            latent,
            each_head,
        ),
        "cache": ("One record a token keeps latent and key, which all heads read.", both, both),
    }
    if kv.quant is not None:
        told["quantisation"] = (_quantises(kv.quant, kv.norm.width), latent, latent)
    return tuple(
        Step(
            step.name,
            *told[step.name],
            step.expression,
            names[step.place.file],
            step.place.label,
            step.note,
        )
        for step in model.compression.steps
    )


def _features(*parts: Part, heads: int = 1) -> Features:
    return Features(("B", "T", heads * sum(part.width for part in parts)), heads, parts)


_ROUNDING = {
    "each_step": "cos, sin, each product and their sum are rounded to the key's dtype",
    "result": "everything is computed in float32 and rounded once",
}
_INTERPOLATED = {
    "power": "the factor multiplies {}, whose reciprocal is then taken",
    "inverse": "the reciprocal of {} is taken, which is then divided by the factor",
}
_LAYOUT = {
    "half": "all first elements of the pairs come before all second ones",
    "interleaved": "pairs stay side by side",
}
_SCALE = {
    "act_quant": "max(amax, 1e-4) × fp32(1/448), rounded up to a power of two",
    "flashmla": "max(amax / 448, 1e-4), rounded up to a power of two",
    "vllm_fused": "max(amax / 448, 1e-4), rounded up to a power of two",
    "vllm_cuda": "max(amax / 448, 2^-126)",
    "sglang": "amax / 448",
}


def _rotates(rope: RopeContract | None) -> str:
    if rope is None:
        return "The key is passed on as it is: nothing is rotated."
    return (
        f"The key's pairs (2i, 2i + 1) turn with the position; {_ROUNDING[rope.rounding]}, and "
        f"{_LAYOUT[rope.layout]} ({rope.layout} layout)."
    )


def _quantises(quant: LatentQuant, width: int) -> str:
    # vllm_fused has flashmla's scale, of another latent
    early = ", in float32 before the norm's last rounding," if quant.rule == "vllm_fused" else ""
    return (
        f"The latent{early} goes to e4m3 and back, in {width // quant.group} groups of "
        f"{quant.group}, each with one scale by {quant.rule}: {_SCALE[quant.rule]}."
    )


def _weights(model: Model) -> tuple[Weight, ...]:
    names, latent = model.compression, model.kv.norm.width
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "down-projection": (names.down, (model.down_width, model.hidden_size.value)),
        "norm": (names.norm, (latent,)),
        "up-projection": (names.up, (model.up_width, latent)),
    }
    return tuple(
        Weight(step, f"{names.prefix}.{name}.weight", shape, parameters(model, shape))
        for step, (name, shape) in shapes.items()
    )


def _rotation(model: Model, names: dict[File, str]) -> Rotation | None:
    rope, facts = model.kv.rope, model.rotation
    if rope is None or facts is None:
        return None
    settings: dict[str, spec.Fact[float] | spec.Fact[int]] = {
        "theta": facts.theta,
        "factor": facts.factor,
        "original positions": facts.original,
        "beta_fast": facts.beta_fast,
        "beta_slow": facts.beta_slow,
        "mscale": facts.mscale,
    }
    if facts.mscale_all_dim != facts.mscale:  # one fact where the code has one key for both
        settings["mscale_all_dim"] = facts.mscale_all_dim
    power, factor, last = f"theta^(2i/{rope.width})", f"{rope.factor:g}", rope.width // 2 - 1
    between = f"from {rope.low + 1} to {rope.high - 1} a ramp; "
    return Rotation(
        settings=tuple(_setting(name, fact, names) for name, fact in settings.items()),
        frequency=f"1 / {power}",
        stretched=(
            f"1 / ({factor} × {power})"
            if rope.interpolated == "power"
            else f"(1 / {power}) / {factor}"
        ),
        low=rope.low,
        high=rope.high,
        ramp=(
            f"pairs 0 to {rope.low} keep their frequency; "
            f"{between if rope.high - rope.low > 1 else ''}"
            f"from {rope.high} to {last} it is divided by {factor}"
        ),
        interpolated=rope.interpolated,
        rounding=rope.rounding,
        layout=rope.layout,
        meaning=Meaning(
            _INTERPOLATED[rope.interpolated].format(power),
            _ROUNDING[rope.rounding],
            _LAYOUT[rope.layout],
        ),
    )


def _softmax(model: Model, names: dict[File, str]) -> Softmax:
    formula = f"{model.head_width}^-0.5"
    if model.rotation is not None:
        yarn = model.rotation.yarn
        key = "" if yarn.mscale_all_dim == 1 else f"{yarn.mscale_all_dim:g} × "
        formula += f" × m^2, m = 0.1 × {key}ln {yarn.factor:g} + 1 = {yarn.temperature}"
    place = model.compression.scale
    return Softmax(model.softmax_scale, formula, names[place.file], place.label)


def _setting(name: str, fact: spec.Fact[float] | spec.Fact[int], names: dict[File, str]) -> Setting:
    file = fact.place.file
    return Setting(
        name,
        fact.value,
        fact.note,
        file.repository,
        file.copy_of,
        names[file],
        file.revision,
        fact.place.label,
    )


def _record(model: Model, record: layouts.Record) -> Record:
    layers, positions = model.mla_layers.value, model.max_positions.value
    layer = layouts.bytes_per_layer(record, positions)
    return Record(
        record.name,
        tuple(
            Field(field.name, field.offset, field.end, field.count, field.dtype, field.bytes)
            for field in record.fields
        ),
        bytes=record.bytes,
        layers=layers,
        bytes_per_token=layouts.bytes_per_token(record, layers),
        bytes_per_layer=layer,
        bytes_per_model=layouts.bytes_per_model(record, positions, layers),
        calculation=Bytes(
            product(record.bytes, layers),
            product(record.bytes, positions),
            product(layer, layers),
        ),
    )
