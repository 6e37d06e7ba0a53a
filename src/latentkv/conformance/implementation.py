"""Other people's norms in one calling form, however they take their width, gain and eps."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from ..bits import same_bits

_EPS_NAMES = ("eps", "epsilon", "variance_epsilon", "norm_eps", "rms_norm_eps", "layer_norm_eps")


class ImplementationError(Exception):
    """An implementation that can't be tested: it can't be imported, raises, mutates its input.

    ``raised`` tells a call that raised from one that broke a promise.
    """

    raised = False


class Implementation:
    """A norm under test, called as ``call(x, gain, eps)``.

    Arguments:
        name: how it is shown.
        function: one of the forms that ``latentkv check --help`` lists.
        device: where its inputs have to be.

    Every call checks what the form promises and raises ImplementationError where it is broken.
    """

    def __init__(self, name: str, function: Any, device: str = "cpu") -> None:
        self.name = name
        self.device = device
        self._call: Callable[..., Any]
        if isinstance(function, type) and issubclass(function, torch.nn.Module):
            self._call = _class_form(name, function)
            self.has_residual = _takes_residual(function.forward)
        elif isinstance(function, torch.nn.Module):
            self._call = _module_form(name, function)
            self.has_residual = _takes_residual(function.forward)
        elif isinstance(function, type) or not callable(function):
            raise ImplementationError(
                f"{name} is {kind(function)}; it must be a function f(x, gain, eps), or a "
                "torch.nn.Module class or object with a weight"
            )
        else:
            _check_signature(name, function)
            self._call = function
            self.has_residual = _takes_residual(function)

    def __call__(self, x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        """``y`` for rows ``x``. Raises ImplementationError."""
        result = self._run(x, gain, eps, {})
        if not isinstance(result, torch.Tensor):
            raise ImplementationError(f"{self.name} returned {kind(result)}, not a tensor")
        self._check_shape("y", result, x)
        return result.detach().clone()  # it may be a buffer that the next call overwrites

    def with_residual(
        self, x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``(y, sum)`` of the residual form. Raises ImplementationError."""
        result = self._run(x, gain, eps, {"residual": residual})
        pair = isinstance(result, (tuple, list)) and len(result) == 2
        if not pair or not all(isinstance(part, torch.Tensor) for part in result):
            raise ImplementationError(
                f"{self.name} with a residual returned {kind(result)}, not (y, sum)"
            )
        y, total = result
        self._check_shape("y", y, x)
        self._check_shape("sum", total, x)
        return y.detach().clone(), total.detach().clone()

    def _run(
        self, x: torch.Tensor, gain: torch.Tensor, eps: float, more: dict[str, torch.Tensor]
    ) -> Any:
        return run_guarded(
            self.name,
            lambda: self._call(x, gain, eps, **more),
            {"x": x, "gain": gain, **more},
            f"{describe(x)}, gain {describe(gain)}, eps {eps:g}{', a residual' if more else ''}",
        )

    def _check_shape(self, what: str, value: torch.Tensor, x: torch.Tensor) -> None:
        if value.shape != x.shape:
            raise ImplementationError(
                f"{self.name} returned {what} of shape {tuple(value.shape)} for x of shape "
                f"{tuple(x.shape)}; both must be equal"
            )


def run_guarded(
    name: str, call: Callable[[], Any], inputs: Mapping[str, torch.Tensor], on: str
) -> Any:
    """What ``call`` returns, given inputs that it must leave as they were.

    Arguments:
        name: the implementation's.
        inputs: by name, put back if they were changed.
        on: the inputs in words, for the message.

    Raises ImplementationError where the call raises or changes an input.
    """
    before = {label: value.clone() for label, value in inputs.items()}
    dtype = torch.get_default_dtype()
    try:
        with torch.no_grad(), redirect_stdout(sys.stderr):  # stdout may be JSON
            result = call()
    except ImplementationError:
        raise
    except (Exception, SystemExit) as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        failure = ImplementationError(
            f"{name} raised {type(error).__name__}: {first_line} (on {on})"
        )
        failure.raised = True
        raise failure from error
    finally:
        torch.set_default_dtype(dtype)  # the next probes must be the same ones
        changed = [label for label, value in inputs.items() if not same_bits(value, before[label])]
        for label in changed:  # others are tested with the same tensors
            inputs[label].copy_(before[label])
    if changed:
        raise ImplementationError(
            f"{name} mutates its input {changed[0]}; test it through a function that "
            "passes it a clone"
        )
    return result


def load(spec: str) -> Implementation:
    """The implementation that ``MODULE:NAME`` or ``FILE.py:NAME`` names.

    Raises ImplementationError, saying which part of the name could not be found.
    """
    return Implementation(spec, load_object(spec))


def load_object(spec: str) -> Any:
    """What ``MODULE:NAME`` or ``FILE.py:NAME`` names, whatever it is. Raises as `load`."""
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise ImplementationError(f"{spec!r} is not of the form MODULE:NAME or FILE.py:NAME")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last: a random.py there must not be the library's
    with redirect_stdout(sys.stderr):
        module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    value: Any = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except (Exception, SystemExit):
            raise ImplementationError(f"{place} has no {name}") from None
    return value


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ImplementationError(
            f"can't import {name}: {type(error).__name__}: {error}"
        ) from error


def _import_file(path: Path) -> Any:
    if not path.is_file():
        raise ImplementationError(f"there is no file {path}")
    # Dataclasses and torch.compile look a module up by its name, which must not be that of another:
    # a file may be called triton.py.
    name = f"_latentkv_impl_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ImplementationError(
            f"can't import {path}: {type(error).__name__}: {error}"
        ) from error
    return module


def _class_form(name: str, cls: type[torch.nn.Module]) -> Callable[..., Any]:
    eps_name = next((p for p in parameters(cls) if p in _EPS_NAMES), None)
    built: dict[tuple[int, float], torch.nn.Module] = {}

    def call(x: torch.Tensor, gain: torch.Tensor, eps: float, **more: torch.Tensor) -> Any:
        width = x.shape[-1]
        if (width, eps) not in built:
            built[width, eps] = cls(width, **({eps_name: eps} if eps_name else {}))
        return _module_form(name, built[width, eps])(x, gain, eps, **more)

    return call


def _module_form(name: str, module: torch.nn.Module) -> Callable[..., Any]:
    weight = {**dict(module.named_buffers()), **dict(module.named_parameters())}.get("weight")
    if weight is None:
        raise ImplementationError(f"{name}: the module has no parameter or buffer named weight")
    module = copy.deepcopy(module).eval()

    def call(x: torch.Tensor, gain: torch.Tensor, eps: float, **more: torch.Tensor) -> Any:
        if weight.shape != gain.shape:
            raise ImplementationError(
                f"{name}: weight has shape {tuple(weight.shape)}, not {tuple(gain.shape)}"
            )
        module.weight = torch.nn.Parameter(gain, requires_grad=False)
        return module(x, **more)

    return call


def _check_signature(name: str, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin without one: the call will tell
    try:
        signature.bind(None, None, None)
    except TypeError as error:
        raise ImplementationError(
            f"{name}{signature} can't be called as f(x, gain, eps): {error}"
        ) from None


def parameters(function: Any) -> tuple[str, ...]:
    """The names of a callable's parameters; none where it doesn't tell."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def _takes_residual(function: Any) -> bool:
    return "residual" in parameters(function)


def kind(value: Any) -> str:
    """What a value is, in words."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"an object of type {type(value).__name__}"


def describe(value: torch.Tensor) -> str:
    """Dtype and shape."""
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
