"""The latent norms of other people's models: put on latentkv in one call, and taken off again.

Nothing is imported from where the model comes from: the names of its modules and the attributes of
its config say enough. docs/integrations.md has the examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch

from .. import models
from ..contracts import NormContract, fp32
from ..models.families import FOLLOWS
from ..nn import LatentRMSNorm

KV_NAMES = ("kv_a_layernorm", "kv_norm")
QUERY_NAMES = ("q_a_layernorm", "q_norm")

_NESTED = ("text_config", "language_config", "llm_config")
_EPS = ("variance_epsilon", "eps", "epsilon")
_ORIGINAL = "_stands_in_for"  # an entry of __dict__ alone: as a submodule it would add keys


def replace_latent_norms(
    model: torch.nn.Module,
    *,
    query: bool = False,
    contract: NormContract | None = None,
    correct_eps: bool = False,
) -> list[str]:
    """Make the latent norms of a model follow its contract, keeping its parameters.

    Each module named ``kv_a_layernorm`` or ``kv_norm``, wherever the model holds it, gives way to
    a `LatentRMSNorm`. That shares the old module's parameters and hooks: an optimizer, a tied
    weight, a hook or its handle, device, dtype, ``requires_grad`` and the keys of ``state_dict``
    stay what they were. Eps and order are those of the model's own code, found by the
    ``model_type`` of the nearest config; the width is the config's ``kv_lora_rank``.

    Arguments:
        model: such as a transformers model; on any device, meta included; compiled or not.
        query: also replace the norm of the query latent (``q_a_layernorm``, ``q_norm``) beside it,
            where there is one.
        contract: what to follow instead, also for a model without a config or of an unknown type;
            the query latent's norm follows its eps and order, at its own width.
        correct_eps: accept that a module says it applies another eps than the contract's.

    Returns the names under which a module was replaced, in the model's order: one that several
    names share has them all. What follows its contract already is left as it is, so a second call
    returns an empty list. `restore_latent_norms` puts the old modules back.

    Raises TypeError for arguments of another type, and ValueError where there is no latent norm,
    the model type is unknown, a module's eps differs, its weight is not [width], or it is more
    than a norm with one weight. After an error the model is as it was.
    """
    _check_arguments(model, contract)
    modules = dict(model.named_modules(remove_duplicate=False))
    stand_ins: dict[int, LatentRMSNorm] = {}
    for name, is_query in _latent_norms(modules, query):
        norm = modules[name]
        wanted = _contract(name, modules, contract, is_query)
        if isinstance(norm, LatentRMSNorm):
            _check_follows(name, norm, wanted)
        elif id(norm) not in stand_ins:
            _check_norm(name, norm, wanted, correct_eps)
            stand_ins[id(norm)] = _stand_in(norm, wanted)
    return _exchange(modules, stand_ins)


def restore_latent_norms(model: torch.nn.Module) -> list[str]:
    """Put the very modules back that `replace_latent_norms` took out.

    They come back with the parameters, the hooks and the training mode that the model has by now:
    what was trained, loaded or moved meanwhile stays.

    Returns the names restored, in the model's order; an empty list where nothing was replaced.
    Raises TypeError for anything but a module.
    """
    _check_arguments(model, None)
    modules = dict(model.named_modules(remove_duplicate=False))
    originals: dict[int, torch.nn.Module] = {}
    for module in modules.values():
        original = vars(module).get(_ORIGINAL)
        if original is not None:
            _share(module, original)
            originals[id(module)] = original
    return _exchange(modules, originals)


def _latent_norms(modules: dict[str, torch.nn.Module], query: bool) -> Iterator[tuple[str, bool]]:
    """Names, each with whether it is the query latent's."""
    found = False
    for name in modules:
        owner, _, last = name.rpartition(".")
        if last in KV_NAMES:
            found = True
            yield name, False
        elif query and last in QUERY_NAMES:
            # Beside a latent's norm only: other attention calls the norm of its heads q_norm.
            beside = (f"{owner}.{kv}" if owner else kv for kv in KV_NAMES)
            if any(other in modules for other in beside):
                yield name, True
    if not found:
        model = modules[""]
        config = getattr(model, "config", None)
        raise ValueError(
            f"{type(model).__name__} has no module named {' or '.join(KV_NAMES)} "
            f"({_describe(config)}); known model types: {', '.join(FOLLOWS)}"
        )


def _contract(
    name: str, modules: dict[str, torch.nn.Module], given: NormContract | None, is_query: bool
) -> NormContract:
    """What the norm of this name has to follow."""
    config = _nearest_config(name, modules)
    if given is not None and not is_query:
        return given
    configs = _with_nested(config)
    rank = "q_lora_rank" if is_query else "kv_lora_rank"
    widths = [width for each in configs if (width := _field(each, rank)) is not None]
    width = widths[0] if widths else _width(name, modules[name])
    if given is None:
        types = [_field(each, "model_type") for each in configs]
        known = [FOLLOWS[each] for each in types if each in FOLLOWS]
        if not known:
            _refuse_unknown(name, modules, config)
        norms = models.get(known[0]).norms
        given = norms.q_latent if is_query else norms.kv_latent
    return dataclasses.replace(given, width=width)


def _nearest_config(name: str, modules: dict[str, torch.nn.Module]) -> Any:
    """The config with a model type that is nearest above, or None."""
    while name:
        name = name.rpartition(".")[0]
        config = getattr(modules[name], "config", None)
        if _field(config, "model_type"):
            return config
    return None


def _with_nested(config: Any) -> list[Any]:
    """The configs of the language model inside, then the config: latents belong to the former."""
    inner = [_field(config, name) for name in _NESTED]
    return [each for each in (*inner, config) if each is not None]


def _field(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _width(name: str, norm: torch.nn.Module) -> int:
    weight = getattr(norm, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        _refuse_kind(name, norm)
    return weight.numel()


def _check_arguments(model: Any, contract: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if contract is not None and not isinstance(contract, NormContract):
        raise TypeError(f"contract must be a NormContract, got {type(contract).__name__}")


def _check_follows(name: str, norm: LatentRMSNorm, wanted: NormContract) -> None:
    if norm.contract != wanted:
        raise ValueError(
            f"{name} follows {norm.contract} already, not {wanted}: call restore_latent_norms first"
        )


def _check_norm(name: str, norm: torch.nn.Module, wanted: NormContract, correct_eps: bool) -> None:
    """Refuse what the contract's norm can't stand in for."""
    held = [key for key, value in norm._parameters.items() if value is not None]
    weight = norm._parameters.get("weight")
    alone = held == ["weight"] and not norm._buffers and not norm._modules
    if weight is None or not alone or "_fsdp_wrapped_module" in name.split("."):
        _refuse_kind(name, norm)
    if "forward" in vars(norm):
        raise ValueError(
            f"{name} ({type(norm).__name__}) has a forward of its own on the instance, as "
            "offloading and kernel replacement set it: replace the latent norms before them"
        )
    if weight.shape != (wanted.width,):
        raise ValueError(
            f"{name}.weight has shape {tuple(weight.shape)}, the contract's width is {wanted.width}"
        )
    for attribute in _EPS:
        if correct_eps or not hasattr(norm, attribute):
            continue
        eps = getattr(norm, attribute)
        if eps is None or fp32(eps) != fp32(wanted.eps):  # None: torch's, by the input's dtype
            raise ValueError(
                f"{name} ({type(norm).__name__}) applies {attribute}={eps}, its contract says "
                f"{wanted.eps}: pass correct_eps=True to apply the contract's from now on, or "
                "contract=NormContract(width, eps, order) to follow another"
            )


def _refuse_kind(name: str, norm: torch.nn.Module) -> NoReturn:
    held = [key for key, _ in (*norm.named_parameters(), *norm.named_buffers())]
    held += norm._modules
    raise ValueError(
        f"{name} ({type(norm).__name__}) holds {', '.join(held) or 'no parameter'}; a latent norm "
        "holds one parameter, weight [width], by itself: replace it before it is wrapped "
        "(compiled alone, parametrized, FullyShardedDataParallel)"
    )


def _refuse_unknown(name: str, modules: dict[str, torch.nn.Module], config: Any) -> NoReturn:
    raise ValueError(
        f"unknown contract for {name} ({type(modules[name]).__name__}) in "
        f"{type(modules['']).__name__}: {_describe(config)}; known model types: "
        f"{', '.join(FOLLOWS)}. For another, pass the arithmetic it has to follow: "
        "contract=NormContract(width, eps, order), or that of a known model, such as "
        "contract=latentkv.models.get('kimi-k2').norms.kv_latent"
    )


def _describe(config: Any) -> str:
    types = [_field(each, "model_type") for each in reversed(_with_nested(config))]
    if not types:
        return "it has no config"
    said = " with ".join("no model_type" if each is None else repr(each) for each in types)
    return f"its config ({type(config).__name__}) says {said}"


def _stand_in(norm: torch.nn.Module, contract: NormContract) -> LatentRMSNorm:
    stand_in = LatentRMSNorm(contract, device="meta")
    _share(norm, stand_in)
    vars(stand_in)[_ORIGINAL] = norm
    return stand_in


def _share(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """One parameter dict and one dict per kind of hook for both, and the same training mode.

    Sharing the dicts, not what is in them, keeps hook handles valid, and reaches the module
    that is out of the model when a parameter is assigned to the one inside, or by FSDP2.
    """
    for key, value in vars(source).items():
        if key == "_parameters" or "_hook" in key:
            vars(target)[key] = value
    target.training = source.training


def _exchange(modules: dict[str, torch.nn.Module], new: Mapping[int, torch.nn.Module]) -> list[str]:
    """Set the new module wherever the old one, given by its id, is held. Returns the names."""
    names = [name for name, module in modules.items() if name and id(module) in new]
    for name in names:
        owner, _, last = name.rpartition(".")
        setattr(modules[owner], last, new[id(modules[name])])
    return names
