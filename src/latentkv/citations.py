"""What a page calls the files that it cites, found in the model's facts themselves. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .models.spec import File, Model, Place


def cited(model: Model, *more: Any) -> dict[File, str]:
    """Every file in which one of the model's facts stands, and its name in a citation.

    Those of ``more`` facts, which no model holds, come last.

    Not those of ``sizes``, which the page of a norm doesn't show.

    The name is the last part of the path, with as many parts before it as tell the model's files
    apart, those of the repository's name included; revisions of one file are told by themselves.
    """
    shown = dataclasses.replace(model, sizes=())
    # the norm first: the model's own code leads the list
    files = dict.fromkeys(place.file for place in places((model.kv_latent_norm, shown, more)))
    return {file: _name(file, [other for other in files if other != file]) for file in files}


def places(value: Any) -> Iterator[Place]:
    """Every place in a fact, a dataclass of facts, or a tuple of these."""
    if isinstance(value, Place):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from places(getattr(value, field.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from places(item)


def _name(file: File, others: list[File]) -> str:
    parts, rest = _parts(file), [_parts(other) for other in others]
    for taken in range(1, len(parts) + 1):
        if all(parts[-taken:] != other[-taken:] for other in rest):
            return "/".join(parts[-taken:])
    return f"{'/'.join(parts)}@{file.revision}"


def _parts(file: File) -> list[str]:
    return [*file.repository.split("/"), *file.path.split("/")]
