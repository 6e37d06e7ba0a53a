"""Whose sizes are counted. No torch."""

from __future__ import annotations

from ..models.architecture import Architecture
from ..models.configured import Configured
from ..models.spec import Model

Sized = Model | Configured | Architecture
"""One of `models`, one of `models.from_config`, or plain sizes."""


def sizes(model: Sized) -> Architecture:
    """The sizes of a whole model.

    Raises:
        TypeError: something else.
        ValueError: a configuration that doesn't give them all.
    """
    if isinstance(model, Architecture):
        return model
    if not isinstance(model, (Model, Configured)):
        raise TypeError(
            f"a model of latentkv.models or its sizes are wanted, got {type(model).__name__}: "
            "models.get(name) and models.from_config(path) give them"
        )
    if model.architecture is None:
        assert isinstance(model, Configured)
        raise ValueError(
            f"{model.display}: its tensors can't be derived, since not all sizes are known: "
            f"{'; '.join(map(str, model.unknown))}"
        )
    return model.architecture


def title(model: Sized) -> str:
    """What a page calls it."""
    return "model" if isinstance(model, Architecture) else model.display
