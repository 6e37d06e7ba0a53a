"""A model's contracts from its config.json: each value with its origin, each gap with its reason.

No torch, and no code of the model's is run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NoReturn

from ...contracts import NormContract
from ...reading.files import short
from ..architecture import Storage
from ..configured import Configured, ConfiguredNorms, Note
from ..families import FAMILIES, MISTRAL, OWN_V3, OWN_V32, REFUSED, Family
from .file import ConfigFile, read
from .keys import NAMES, OWN_NAMES, Keys
from .rotation import key_value_path
from .sizes import is_k3, latent_attention, sizes
from .storage import own_storage, storage


def from_config(where: str | os.PathLike[str] | Mapping[str, Any], *, file: str = "") -> Configured:
    """What a configuration says of a model's key-value latent: contracts, sizes, and the gaps.

    Arguments:
        where: the path of a config.json, or of a folder that holds one, or the object in it. Also
            one of DeepSeek's own inference/config_*.json, which have no model_type.
        file: what to call the file of an object, in messages and origins; a repository's name may
            stand before it ("owner/name@revision/config.json").

    Model types: those of `families.FAMILIES`. An eps of the configuration is never taken for that
    of a latent norm: its class's default is, and `Configured.notes` says so where they differ.

    Raises:
        TypeError: ``where`` is neither path nor mapping.
        ConfigError: the file can't be read; the model type is unknown, has no latent or an
            arithmetic without a contract here; a key is missing, of another type, out of range
            or contradicts another. It names file, line, key and value, and is a ValueError.
    """
    source = read(where, file)
    family = _family(source)
    nested = ("text_config",) if family.nested else ()
    names = NAMES if family.model_type else OWN_NAMES
    keys = Keys(source, nested, () if nested else None, names)
    attention = latent_attention(family, keys)
    norms, notes = _norms(family, keys, attention.kv_rank, attention.q_rank)
    path = key_value_path(
        family, keys, norms.kv_latent, attention.rope, attention.nope + attention.rope
    )
    unknown = family.unknown + path.unknown
    if notes and family.unknown_eps:  # the configuration's eps differs
        unknown = (family.unknown_eps, *unknown)
    held, why = storage(keys, is_k3(family, keys)) if family.model_type else (own_storage(keys), ())
    if held and held.format == "fp8_block" and family in (FAMILIES["deepseek_v32"], OWN_V32):
        # the published checkpoint, which fp8 tiles tell from other copies
        held = replace(held, norm_dtype=family.follows.architecture.storage.norm_dtype)
    unknown += why
    built = sizes(family, keys, attention, held or Storage())
    unknown += built.unknown
    name = source.name or family.model_type or family.display.lower()
    return Configured(
        name=name,
        display=source.name or family.display,
        model_type=family.model_type,
        file=source.file,
        follows=family.follows.name,
        norms=norms,
        kv=path.kv,
        yarn=path.yarn,
        architecture=built.architecture if held else None,
        softmax_scale=path.scale,
        values=tuple(keys.values.values()),
        notes=notes + built.notes + family.notes,
        unknown=unknown,
    )


# What stands under text_config.
_INNER = {"kimi_k25": ("kimi_k2", "deepseek_v3"), "kimi_k3": ("kimi_linear",)}


def _family(source: ConfigFile) -> Family:
    keys = Keys(source)
    inner = keys.inside("text_config")
    latent = keys.has("kv_lora_rank") or bool(inner and inner.has("kv_lora_rank"))
    if not keys.has("model_type"):
        return _untyped(keys, latent)
    model_type = keys.word("model_type")
    refused = REFUSED.get(model_type)
    if refused:
        keys.fail(f"{keys.place('model_type')} is {model_type!r}, which has no contract: {refused}")
    family = FAMILIES.get(model_type)
    if family is None:
        _unknown(keys, model_type, inner, latent)
    if family.nested != (inner is not None):
        keys.fail(
            f"{model_type} keeps its language model under text_config, which is missing"
            if family.nested
            else f"{keys.place('text_config')} is there, and {model_type} has none: give the "
            "object of the language model"
        )
    if inner is not None:
        inner.word("model_type", allowed=_INNER[model_type])
    return family


def _untyped(keys: Keys, latent: bool) -> Family:
    if latent and keys.has("norm_eps"):
        keys.fail(MISTRAL)
    if latent and keys.has("n_layers"):
        return OWN_V32 if keys.has("index_n_heads") else OWN_V3
    keys.fail(
        "model_type is missing, and this isn't one of DeepSeek's inference/config_*.json "
        "either: give a model's config.json"
    )


def _unknown(keys: Keys, model_type: str, inner: Keys | None, latent: bool) -> NoReturn:
    where, known = keys.place("model_type"), ", ".join(FAMILIES)
    if not latent:
        keys.fail(
            f"{where} is {short(model_type)} and there is no kv_lora_rank: no key-value latent"
        )
    within = inner.word("model_type") if inner else ""
    if within in FAMILIES:
        keys.fail(
            f"{where} is {short(model_type)}, which is unknown here; its text_config is of the "
            f"known type {within}: give that object alone"
        )
    nearest = get_close_matches(model_type[:60], FAMILIES, n=1, cutoff=0.6)
    hint = f", did you mean {nearest[0]}?" if nearest else "."
    keys.fail(f"{where}: unknown model type {short(model_type)}{hint} Known: {known}")


def _norms(
    family: Family, keys: Keys, kv_rank: int, q_rank: int | None
) -> tuple[ConfiguredNorms, tuple[Note, ...]]:
    order = family.follows.norms.kv_latent.order
    keys.note("kv latent eps", family.eps, family.eps_origin())
    if q_rank is not None:
        keys.note("q latent eps", family.eps, family.eps_origin(query=True))
    keys.note("order", order, family.order_origin())
    said = keys.number("rms_norm_eps") if family.block_eps else keys.number_or("rms_norm_eps", None)
    block, block_origin = family.eps, family.eps_origin()
    if family.block_eps and said is not None:
        block, block_origin = said, keys.place("rms_norm_eps")
    keys.note("block eps", block, block_origin)
    hidden = keys.size("hidden_size")
    norms = ConfiguredNorms(
        kv_latent=NormContract(kv_rank, family.eps, order),
        q_latent=None if q_rank is None else NormContract(q_rank, family.eps, order),
        block=NormContract(hidden, block, order),
    )
    if said is None or said == family.eps:
        return norms, ()
    wrong = (
        f"{keys.place('rms_norm_eps')} is {said:g}, and the latent norms of "
        f"{family.display} apply {family.eps:g}, the default of their class."
    )
    if (said, family.eps) == (1e-5, 1e-6):
        # measured on Gaussian rows, as for the models side by side (compare.py)
        wrong += (
            " Code that takes the configuration's changes 7% of the bf16 outputs where the "
            "latent's rms is 0.1, and all of them where it is 0.01."
        )
    else:
        wrong += " Code that takes the configuration's scales small latents otherwise."
    return norms, (Note("eps", wrong),)
