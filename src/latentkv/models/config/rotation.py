"""The rotation of a configuration's shared key, and the softmax's scale. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...contracts import KVContract, NormContract, RopeContract
from ...reading.files import short
from ..configured import Note, cited
from ..families import Family
from ..spec import Model, Rotation
from ..yarn import Yarn, softmax_scale
from .keys import Keys

# What DeepSeek's modeling files, and transformers, take where a key is missing.
_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}
_PLAIN = ("", "default")


@dataclass(frozen=True)
class Path:
    """The path's contract and the softmax's scale, or why they aren't there."""

    kv: KVContract | None
    yarn: Yarn | None
    scale: float | None
    unknown: tuple[Note, ...] = ()


def _pathless(why: str, scale: float | None, *others: Note) -> Path:
    """No contract for the path, and why."""
    return Path(None, None, scale, (Note("key-value path", f"{why}."), *others))


def key_value_path(family: Family, keys: Keys, norm: NormContract, key: int, head: int) -> Path:
    """The key-value path around a latent norm.

    Arguments:
        key, head: features of the shared key, and of a query's head.

    Raises ConfigError where keys contradict each other or have values that no rotation has.
    """
    follows = family.follows
    if not family.model_type:
        return _own(family, keys, norm, head)
    if follows.kv.rope is None:
        if not keys.flag("mla_use_nope", True):
            why = f"{keys.place('mla_use_nope')} is false, and code that rotates was not read"
            return _pathless(why, None)
        return Path(replace(follows.kv, norm=norm, key_width=key), None, softmax_scale(head, None))
    ropes = _ropes(keys)
    rope, theta = (ropes[0] if ropes else None), _theta(keys, ropes)
    kind = _kind(keys, rope)
    if kind in _PLAIN:
        why = (
            family.no_kv
            or "the key turns by plain RoPE without YaRN, which no contract here is made for"
        )
        return _pathless(why, softmax_scale(head, None))
    if rope is None or kind != "yarn":
        why = family.no_kv or "no contract here describes such frequencies"
        why = f"the rotation is of type {kind}; {why}"
        if rope is not None and rope.has("mscale_all_dim"):
            beside = f"{rope.place('mscale_all_dim')} stands beside the rotation type {kind}."
            return _pathless(why, None, Note("softmax scale", beside))
        return _pathless(why, softmax_scale(head, None))
    yarn = _yarn(keys, rope, theta)
    scale = softmax_scale(head, yarn)
    contract, why = _contract(follows, keys, rope, yarn, key)
    if why or family.no_kv:
        return _pathless(family.no_kv or why, scale)
    return _with_quant(follows, norm, key, contract, yarn, scale)


def _with_quant(
    follows: Model,
    norm: NormContract,
    key: int,
    rope: RopeContract | None,
    yarn: Yarn | None,
    scale: float,
) -> Path:
    try:
        return Path(KVContract(norm, key, rope, follows.kv.quant), yarn, scale)
    except ValueError as error:
        return _pathless(str(error), scale)


def _own(family: Family, keys: Keys, norm: NormContract, head: int) -> Path:
    """DeepSeek's own configuration, whose rotation stands in model.py."""
    if family.no_kv:
        return _pathless(family.no_kv, None, Note("softmax scale", f"{family.no_kv}."))
    model = family.follows
    rotation, rope = model.rotation, model.kv.rope
    assert rotation is not None and rope is not None
    yarn = _own_yarn(keys, rotation)
    positions = keys.size_or("max_position_embeddings", None)
    if positions is None:
        positions = model.max_positions.value
        keys.note("max_position_embeddings", positions, cited(model.max_positions.place))
    if positions <= yarn.original:
        why = (
            f"max_seq_len {positions:,} is not above {yarn.original:,}, so model.py leaves YaRN out"
        )
        return _pathless(why, softmax_scale(head, None))
    key = keys.size("qk_rope_head_dim")
    contract, why = _built(rope, yarn, key, positions)
    if why:
        return _pathless(why, softmax_scale(head, yarn))
    return _with_quant(model, norm, key, contract, yarn, softmax_scale(head, yarn))


# The fields of model.py's ModelArgs, which its configuration may set: a Rotation's, and theirs.
_OWN_YARN = {
    "theta": "rope_theta",
    "factor": "rope_factor",
    "original": "original_seq_len",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
}


def _own_yarn(keys: Keys, rotation: Rotation) -> Yarn:
    values: dict[str, Any] = {}
    for name, key in _OWN_YARN.items():
        fact = getattr(rotation, name)
        value = keys.number_or(key, None, zero=name == "mscale")
        if value is None:
            value = fact.value
            keys.note(f"rope {name}", value, f"default, {cited(fact.place)}")
        values[name] = value
    if values["theta"] <= 1 or values["factor"] < 1:
        keys.fail("rope_theta must be above 1, and rope_factor at least 1")
    # model.py's one mscale is that of the softmax; cos and sin are not scaled
    return replace(rotation.yarn, **values, mscale_all_dim=values["mscale"])


def _ropes(keys: Keys) -> list[Keys]:
    """rope_scaling, rope_parameters, which holds the base too, or both, where they agree."""
    found = [one for one in (keys.inside("rope_scaling"), keys.inside("rope_parameters")) if one]
    if len(found) == 2:
        kinds = [_kind(keys, each) for each in found]
        if all(kinds) and kinds[0] != kinds[1]:
            keys.fail(
                f"{found[0].place('type')} is {short(kinds[0])} and {found[1].place('rope_type')} "
                f"is {short(kinds[1])}: they must be equal, or one of them be removed"
            )
        for name in _NUMBERS:
            one, other = (each.number_or(name, None, zero=True) for each in found)
            if None not in (one, other) and one != other:
                keys.fail(
                    f"{found[0].place(name)} is {one:g} and {found[1].place(name)} is {other:g}: "
                    "they must be equal, or one of them be removed"
                )
    return found


_NUMBERS = (
    "factor",
    "mscale",
    "mscale_all_dim",
    "beta_fast",
    "beta_slow",
    "original_max_position_embeddings",
    "attention_factor",
)


def _kind(keys: Keys, rope: Keys | None) -> str:
    if rope is None:
        return ""
    named = {name: rope.word(name) for name in ("type", "rope_type") if rope.has(name)}
    if len(set(named.values())) > 1:
        keys.fail(f"{rope.place('type')} and {rope.place('rope_type')} differ")
    return next(iter(named.values()), "")


def _theta(keys: Keys, ropes: list[Keys]) -> float:
    given = {
        one.place("rope_theta"): value
        for one in (keys, *ropes)
        if (value := one.number_or("rope_theta", None)) is not None
    }
    if len(set(given.values())) > 1:
        told = " and ".join(f"{place} is {value:g}" for place, value in given.items())
        keys.fail(f"{told}: they must be equal, or one of them be removed")
    theta = next(iter(given.values()), 10000.0)
    if not given:
        keys.note("rope_theta", theta, "the default of DeepSeek's and transformers' classes")
    if not theta > 1:
        keys.fail(f"{keys.place('rope_theta')} is {theta:g}; a base above 1 is expected")
    return theta


def _yarn(keys: Keys, rope: Keys, theta: float) -> Yarn:
    def given(name: str, default: float, zero: bool = False) -> float:
        value = rope.number_or(name, None, zero=zero)
        if value is None:
            rope.note(name, value := default, "the default of DeepSeek's modeling files")
        return value

    factor = rope.number("factor")
    if factor < 1:
        keys.fail(f"{rope.place('factor')} is {factor:g}; a factor of at least 1 is expected")
    return Yarn(
        theta=theta,
        factor=factor,
        original=rope.size("original_max_position_embeddings"),
        beta_fast=given("beta_fast", _BETAS["beta_fast"]),
        beta_slow=given("beta_slow", _BETAS["beta_slow"]),
        mscale=given("mscale", 1.0, zero=True),
        mscale_all_dim=given("mscale_all_dim", 0.0, zero=True),
    )


def _contract(
    follows: Model, keys: Keys, rope: Keys, yarn: Yarn, key: int
) -> tuple[RopeContract | None, str]:
    template = follows.kv.rope
    assert template is not None
    if yarn.rotary_scale != 1:
        return None, (
            f"mscale is {yarn.mscale:g} and mscale_all_dim {yarn.mscale_all_dim:g}, so that cos "
            "and sin are scaled, which no RopeContract describes"
        )
    if (rope.number_or("attention_factor", 1.0, zero=True)) != 1:
        return None, "attention_factor scales cos and sin, which no RopeContract describes"
    if not rope.flag("truncate", True):
        return None, "truncate is false: the ramp begins between pairs, in no RopeContract"
    if not keys.flag("rope_interleave", True):
        return None, (
            "rope_interleave is false: features i and i + width / 2 turn with each other, where a "
            "RopeContract turns 2i and 2i + 1"
        )
    return _built(template, yarn, key, keys.size("max_position_embeddings", most=1 << 40))


def _built(
    template: RopeContract, yarn: Yarn, key: int, positions: int
) -> tuple[RopeContract | None, str]:
    try:
        low, high = yarn.ramp(key)
        return replace(
            template,
            width=key,
            theta=yarn.theta,
            factor=yarn.factor,
            low=low,
            high=high,
            max_positions=positions,
        ), ""
    except (ValueError, OverflowError) as error:
        return None, str(error)
