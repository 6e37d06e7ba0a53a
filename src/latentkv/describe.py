"""Pages: everything the user sees about a component, derived from the model's facts.

A `Page` is built from the objects that run (the contract, the definition's own source) and from
sourced facts. It says nothing about rendering: the terminal, ``--json`` and the atlas read the
same object. Whatever can be derived is derived here, so a page can't contradict its contract.
"""

from __future__ import annotations

from difflib import get_close_matches

from .describe_components import build
from .describe_norms import latent_norm
from .models.spec import COMPONENTS, Model
from .pages import NormPage, Page


class UnknownComponentError(ValueError):
    """A model has no component of this name; the message lists those that it has."""


def page(model: Model) -> NormPage:
    """The page of a model's key-value latent norm, with the compression around it."""
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
