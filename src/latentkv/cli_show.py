"""`latentkv show`: a model's page, one of its components, a configuration, or all side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from . import models
from .chosen import model_or_config
from .command import JsonOption, fail, print_json
from .models.spec import COMPONENTS


def show(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model's name or repository, in any case: "
            + ", ".join(models.names())
            + "; or the path of another model's config.json, or of its folder. Without it, the "
            "three side by side.",
            metavar="MODEL",
            show_default=False,
        ),
    ] = None,
    component: Annotated[
        str | None,
        typer.Argument(
            help="One component of the model's key-value path, on a page of its own: "
            + ", ".join(COMPONENTS)
            + ".",
            metavar="COMPONENT",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a model's latent norm and the key-value compression around it, or one component of it.

    Of the norm: formula, eps, arithmetic, shapes, parameters, code, sources. Of the compression:
    steps, shapes, parameters, rotation, softmax scale, and the cache's records byte by byte.
    Of a COMPONENT: the same of it alone. Of a configuration: the contracts that follow from it,
    each value's origin, and what can't be said from it. Without MODEL, the models stand side by
    side, their differences marked and explained.
    """
    if model is not None:
        _show_one(model, component, as_json)
        return
    from .describe import page

    every = [models.get(name) for name in models.names()]
    pages = [page(one) for one in every]
    if as_json:
        print_json([one.as_json() for one in pages])
        return
    from .compare import compare
    from .terminal import Pages

    Pages().comparison(compare(every), pages)


def _show_one(given: str, component: str | None, as_json: bool) -> None:
    try:
        chosen = model_or_config(given)
    except ValueError as error:
        if given.strip().lower() in COMPONENTS:
            fail(f"{given} is a component, and the model comes first: latentkv show MODEL {given}")
        fail(str(error))
    if isinstance(chosen, models.Model):
        _show_component(chosen, "norm" if component is None else component, as_json)
        return
    if component is not None:
        fail(
            f"{chosen.file}: a configuration has the page of its norm alone; leave out "
            f"{component!r}, or give one of {', '.join(models.names())} before it"
        )
    _show_config(chosen, as_json)


def _show_component(model: models.Model, name: str, as_json: bool) -> None:
    from . import describe

    try:
        shown = describe.component(model, name)
    except describe.UnknownComponentError as error:
        fail(str(error))
    if as_json:
        print_json(shown.as_json())
        return
    from .terminal_components import ComponentPages

    ComponentPages().component(shown)


def _show_config(chosen: models.Configured, as_json: bool) -> None:
    from .config_page import config_page

    shown = config_page(chosen)
    if as_json:
        print_json(shown.as_json())
        return
    from .terminal_config import ConfigPages

    ConfigPages().config(shown)
