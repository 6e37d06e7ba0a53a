"""What an argument of the command line means: a model's name, or the path of a configuration."""

from __future__ import annotations

import os

from . import models


def model_or_config(given: str) -> models.Model | models.Configured:
    """The model of this name or repository, else the configuration at this path.

    Raises UnknownModelError where it is neither, ConfigError for a path to no such configuration.
    """
    try:
        return models.get(given)
    except models.UnknownModelError as error:
        if not os.path.exists(given):
            hint = "A path of a config.json, or of a folder that holds one, is taken too"
            raise models.UnknownModelError(f"{error}. {hint}") from None
    return models.from_config(given)


def check_path_known(chosen: models.Model | models.Configured | None) -> None:
    """Raises ValueError, with the reason, where a configuration gives no key-value path."""
    if chosen is not None and chosen.kv is None:
        why = " ".join(str(one) for one in chosen.unknown if one.topic == "key-value path")
        raise ValueError(f"{chosen.file}: {why} Its norm can be checked: leave out path")
