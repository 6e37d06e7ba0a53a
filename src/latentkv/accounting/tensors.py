"""Every tensor of a model's checkpoint, derived from its sizes. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from ..models.architecture import Architecture
from .component import Component
from .sizes import Sized, sizes
from .storage import Ignored, Tensor, held
from .whole import components

LIMIT = 4_000_000  # tensors; Kimi K3 has 497,220


def tensors(model: Sized) -> Iterator[Tensor]:
    """The tensors of a model's published checkpoint, component by component.

    Kimi K3 has 497,220 of them, so they come one by one.

    Raises ValueError for a configuration that doesn't give all sizes, and for sizes of which no
    checkpoint would have less than `LIMIT` tensors.
    """
    architecture = sizes(model)
    if (number := sum(map(_least, components(architecture)))) > LIMIT:
        raise ValueError(
            f"these sizes make a checkpoint of at least {number:,} tensors; {LIMIT:,} are counted "
            "at most, eight times as many as the largest known has: look at the configuration's "
            "layers and experts"
        )
    return _each(architecture)


def _each(architecture: Architecture) -> Iterator[Tensor]:
    names = _Names(architecture)
    for component in components(architecture):
        yield from names.under("", component)


def digest(names: Iterable[str]) -> str:
    """SHA-256 of the sorted names, each followed by a newline, in hexadecimal."""
    found = hashlib.sha256()
    for name in sorted(names):
        found.update(f"{name}\n".encode())
    return found.hexdigest()


class _Names:
    def __init__(self, architecture: Architecture) -> None:
        self._storage = architecture.storage
        self._ignored = Ignored(architecture)

    def under(self, prefix: str, component: Component) -> Iterator[Tensor]:
        """A component's tensors, and those of its parts."""
        path = _join(prefix, component.name)
        if not component.numbers:
            yield from self._inside(path, component)
            return
        numbered = [_join(path, str(number)) for number in component.numbers]
        if self._ignored.by_number or not _flat(component):
            for one in numbered:
                yield from self._inside(one, component)
            return
        # 82,432 experts of one shape: what one of them has, under each one's name
        first = len(numbered[0])
        rows = [(one.name[first:], one[1:]) for one in self._inside(numbered[0], component)]
        for one in numbered:
            for name, rest in rows:
                yield Tensor(one + name, *rest)

    def _inside(self, path: str, component: Component) -> Iterator[Tensor]:
        quantised = self._quantised(path, component)
        for weight in component.weights:
            for one in held(weight, self._storage, quantised and bool(weight.quantised)):
                yield Tensor(_join(path, one.name), *one[1:])
        for part in component.parts:
            yield from self.under(path, part)

    def _quantised(self, path: str, component: Component) -> bool:
        storage = self._storage
        kinds = {weight.quantised for weight in component.weights} - {""}
        if storage.format == "plain" or not kinds:
            return False
        return (storage.quantised == "linear" or "experts" in kinds) and path not in self._ignored


def _least(component: Component) -> int:
    """Tensors of a component and its parts, without scales and the like."""
    return component.count * (len(component.weights) + sum(map(_least, component.parts)))


def _flat(component: Component) -> bool:
    """Whether none of its parts have numbers of their own."""
    return all(not part.numbers and _flat(part) for part in component.parts)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
