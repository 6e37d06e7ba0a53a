"""Other people's key-value paths in one calling form."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ..implementation import ImplementationError, describe, kind, parameters, run_guarded
from .probes import Rows

_FORM = "f(down, gain, eps, positions)"
_TABLE, _CACHE = ("cos", "sin"), ("cache", "slots")


class PathImplementation:
    """A key-value path under test: the forms that ``latentkv check --help`` lists.

    Arguments:
        name: how it is shown.
        function: ``f(down, gain, eps, positions) -> (latent, key)``. With parameters ``cos`` and
            ``sin`` it is given the rotary table's rows; with ``cache`` and ``slots``, which need
            defaults, it is also called to write there; what it then returns is not looked at.

    Every call checks what the form promises and raises ImplementationError where it is broken.
    """

    def __init__(self, name: str, function: Any) -> None:
        self.name = name
        if isinstance(function, type) or not callable(function):
            raise ImplementationError(
                f"{name} is {kind(function)}; it must be a function {_FORM} -> (latent, key)"
            )
        signed = function.forward if isinstance(function, torch.nn.Module) else function
        names = parameters(signed)
        self.takes_table = _both(name, names, _TABLE)
        self.has_slots = _both(name, names, _CACHE)
        self._call = function
        _check_signature(name, signed, _TABLE if self.takes_table else ())

    def __call__(self, rows: Rows, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Latent and key of each row. Raises ImplementationError."""
        result = self._run(rows, eps, {})
        pair = isinstance(result, (tuple, list)) and len(result) == 2
        if not pair or not all(isinstance(part, torch.Tensor) for part in result):
            raise ImplementationError(f"{self.name} returned {kind(result)}, not (latent, key)")
        latent, key = result
        count, width = rows.down.shape
        self._check_shape("latent", latent, (count, len(rows.gain)))
        self._check_shape("key", key, (count, width - len(rows.gain)))
        # They may be buffers that the next call overwrites.
        return latent.detach().clone(), key.detach().clone()

    def write(self, rows: Rows, eps: float, cache: torch.Tensor, slots: torch.Tensor) -> None:
        """Write the rows into ``cache``. Raises ImplementationError."""
        self._run(rows, eps, {"slots": slots}, cache)

    def _run(
        self,
        rows: Rows,
        eps: float,
        more: dict[str, torch.Tensor],
        cache: torch.Tensor | None = None,
    ) -> Any:
        if self.takes_table:
            more = {**dict(zip(_TABLE, rows.table(), strict=True)), **more}
        into = {} if cache is None else {"cache": cache}
        return run_guarded(
            self.name,
            lambda: self._call(rows.down, rows.gain, eps, rows.positions, **more, **into),
            {"down": rows.down, "gain": rows.gain, "positions": rows.positions, **more},
            f"{describe(rows.down)}, gain {describe(rows.gain)}, eps {eps:g}, positions "
            f"{describe(rows.positions)}{', a cache' if into else ''}",
        )

    def _check_shape(self, what: str, value: torch.Tensor, wanted: tuple[int, int]) -> None:
        if tuple(value.shape) != wanted:
            raise ImplementationError(
                f"{self.name} returned a {what} of shape {tuple(value.shape)}, not {wanted}"
            )
        if value.layout != torch.strided or value.device.type != "cpu":
            raise ImplementationError(
                f"{self.name} returned a {what} that can't be compared: layout "
                f"{value.layout}, on {value.device}; it must be an ordinary tensor on cpu"
            )


def _both(name: str, given: tuple[str, ...], pair: tuple[str, str]) -> bool:
    """Whether a signature has both parameters. Raises ImplementationError for one alone."""
    there = [parameter for parameter in pair if parameter in given]
    if len(there) == 1:
        missing = next(parameter for parameter in pair if parameter not in there)
        raise ImplementationError(f"{name} has a parameter {there[0]} but none named {missing}")
    return bool(there)


def _check_signature(name: str, function: Any, table: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin without one: the call will tell
    try:
        signature.bind(None, None, None, None, **dict.fromkeys(table))
    except TypeError as error:
        raise ImplementationError(
            f"{name}{signature} can't be called as {_FORM}: {error}; cos, sin, cache and slots are "
            "passed by name, the latter two not in every call"
        ) from None
