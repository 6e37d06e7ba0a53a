"""Facts about the models, each with its source. No torch."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .deepseek_v32 import DEEPSEEK_V32
from .kimi_k2 import KIMI_K2
from .kimi_k3 import KIMI_K3
from .spec import Model

if TYPE_CHECKING:
    from .config.contracts import from_config
    from .config.file import ConfigError
    from .configured import Configured

__all__ = [
    "ConfigError",
    "Configured",
    "Model",
    "UnknownModelError",
    "from_config",
    "get",
    "names",
]

_MODELS = {model.name: model for model in (KIMI_K2, KIMI_K3, DEEPSEEK_V32)}
_REPOSITORIES = {model.repository.lower(): model for model in _MODELS.values()}
# Imported when they are asked for: a page of a known model needs none of it, and 50 ms less.
_CONFIGURATIONS = {
    "ConfigError": "config.file",
    "Configured": "configured",
    "from_config": "config.contracts",
}


def __getattr__(name: str) -> Any:
    if name not in _CONFIGURATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_CONFIGURATIONS[name]}", __name__), name)


class UnknownModelError(ValueError):
    """No model has this name; the message gives the nearest one and all that exist."""


def names() -> tuple[str, ...]:
    """The names that `get` takes, in the order in which pages list them."""
    return tuple(_MODELS)


def get(name: str) -> Model:
    """The model of this name or repository, upper or lower case, surrounding blanks ignored.

    Raises:
        TypeError: a name that is not a string.
        UnknownModelError: a name that no model has.
    """
    if not isinstance(name, str):
        raise TypeError(f"a model's name must be a str, got {name!r} ({type(name).__name__})")
    key = name.strip().lower()
    model = _MODELS.get(key) or _REPOSITORIES.get(key)
    if model is None:
        raise UnknownModelError(_unknown(name, key))
    return model


def _unknown(given: str, key: str) -> str:
    shown = given if len(given) <= 60 else f"{given[:57]}..."
    nearest = _nearest(key)
    hint = f", did you mean {nearest.name}?" if nearest else "."
    known = ", ".join(f"{model.name} ({model.repository})" for model in _MODELS.values())
    return f"unknown model {shown!r}{hint} Known models: {known}"


def _nearest(key: str) -> Model | None:
    every = {**_MODELS, **_REPOSITORIES}
    # A name cut short means what it begins; otherwise "kimi-k2" would be as near to "kimi-k3".
    begun = [name for name in every if key and name.startswith(key)]
    # 0.3 still finds kimi-k2 for "k2", and nothing for a word of another kind.
    found = begun or get_close_matches(key, _MODELS, n=1, cutoff=0.3)
    return every[found[0]] if found else None
