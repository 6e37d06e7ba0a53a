"""The operators under ``torch.ops.latentkv``: schemas, fakes, and which backend computes them.

Declared here in Python, always. The compiled kernels implement the CPU; the definition covers
every other device, and the CPU where they are missing (or LATENTKV_BACKEND=definition asks).
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from . import _path_operators, _sharding, definition
from .contracts import NormContract, Order
from .definition.arguments import (
    OPERATOR_DTYPES,
    check_gradients,
    check_norm,
    check_strides,
    output_dtype,
)

BACKENDS = ("cpu", "definition")
_ANY_EPS = 1.0  # the backward's operators have rstd instead


# Outputs are new and contiguous. The _fwd forms also return rstd, fp32 [...], for the _bwd ones;
# the gradient of the residual is that of x.
_SCHEMAS = (
    "rms_norm(Tensor x, Tensor gain, float eps, str order) -> Tensor",
    "rms_norm_fwd(Tensor x, Tensor gain, float eps, str order) -> (Tensor y, Tensor rstd)",
    "rms_norm_bwd(Tensor dy, Tensor x, Tensor gain, Tensor rstd, str order)"
    " -> (Tensor dx, Tensor dgain)",
    "add_rms_norm(Tensor x, Tensor residual, Tensor gain, float eps, str order)"
    " -> (Tensor y, Tensor sum)",
    "add_rms_norm_fwd(Tensor x, Tensor residual, Tensor gain, float eps, str order)"
    " -> (Tensor y, Tensor sum, Tensor rstd)",
    "add_rms_norm_bwd(Tensor dy, Tensor? dsum, Tensor x, Tensor residual, Tensor gain, Tensor rstd,"
    " str order) -> (Tensor dx, Tensor dgain)",
)


def check_operands(
    x: torch.Tensor,
    gain: torch.Tensor,
    contract: NormContract,
    residual: torch.Tensor | None = None,
) -> None:
    """Refuse what the operators don't take, on any backend. Raises TypeError or ValueError."""
    check_norm(x, gain, contract, residual, OPERATOR_DTYPES)
    check_strides(x, gain, residual)


def _contract_of(x: torch.Tensor, eps: float, order: str) -> NormContract:
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.dim() == 0:
        raise ValueError("x has no dimension; it must be [..., width]")
    # Under tracing, int() specialises the graph to this width: the contract fixes it anyway.
    return NormContract(int(x.shape[-1]), eps, cast(Order, order))


def _rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float, order: str) -> torch.Tensor:
    contract = _contract_of(x, eps, order)
    check_operands(x, gain, contract)
    return definition.rms_norm(x, gain, contract)


def _rms_norm_fwd(
    x: torch.Tensor, gain: torch.Tensor, eps: float, order: str
) -> tuple[torch.Tensor, torch.Tensor]:
    y = _rms_norm(x, gain, eps, order)
    return y, definition.reciprocal_rms(x, _contract_of(x, eps, order))


def _rms_norm_bwd(
    dy: torch.Tensor, x: torch.Tensor, gain: torch.Tensor, rstd: torch.Tensor, order: str
) -> tuple[torch.Tensor, torch.Tensor]:
    contract = _contract_of(x, _ANY_EPS, order)
    check_operands(x, gain, contract)
    return definition.rms_norm_backward(dy, x, gain, rstd, contract)


def _add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, eps: float, order: str
) -> tuple[torch.Tensor, torch.Tensor]:
    contract = _contract_of(x, eps, order)
    check_operands(x, gain, contract, residual)
    return definition.add_rms_norm(x, residual, gain, contract)


def _add_rms_norm_fwd(
    x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, eps: float, order: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    y, total = _add_rms_norm(x, residual, gain, eps, order)
    return y, total, definition.reciprocal_rms(x, _contract_of(x, eps, order), residual)


def _add_rms_norm_bwd(
    dy: torch.Tensor,
    dsum: torch.Tensor | None,
    x: torch.Tensor,
    residual: torch.Tensor,
    gain: torch.Tensor,
    rstd: torch.Tensor,
    order: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    contract = _contract_of(x, _ANY_EPS, order)
    check_operands(x, gain, contract, residual)
    return definition.rms_norm_backward(dy, x, gain, rstd, contract, residual, dsum)


def _fake_rms_norm(x: torch.Tensor, gain: torch.Tensor, eps: float, order: str) -> torch.Tensor:
    check_operands(x, gain, _contract_of(x, eps, order))
    # new_empty is contiguous; empty_like would keep a permuted input's strides.
    return x.new_empty(x.shape, dtype=output_dtype(x.dtype, gain.dtype, order))


def _fake_rms_norm_fwd(
    x: torch.Tensor, gain: torch.Tensor, eps: float, order: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake_rms_norm(x, gain, eps, order), _empty_rstd(x)


def _fake_rms_norm_bwd(
    dy: torch.Tensor, x: torch.Tensor, gain: torch.Tensor, rstd: torch.Tensor, order: str
) -> tuple[torch.Tensor, torch.Tensor]:
    contract = _contract_of(x, _ANY_EPS, order)
    check_operands(x, gain, contract)
    check_gradients(dy, x, gain, rstd, contract, None)
    return x.new_empty(x.shape), gain.new_empty(gain.shape)


def _fake_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, eps: float, order: str
) -> tuple[torch.Tensor, torch.Tensor]:
    check_operands(x, gain, _contract_of(x, eps, order), residual)
    return _fake_rms_norm(x, gain, eps, order), x.new_empty(x.shape)


def _fake_add_rms_norm_fwd(
    x: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, eps: float, order: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return *_fake_add_rms_norm(x, residual, gain, eps, order), _empty_rstd(x)


def _fake_add_rms_norm_bwd(
    dy: torch.Tensor,
    dsum: torch.Tensor | None,
    x: torch.Tensor,
    residual: torch.Tensor,
    gain: torch.Tensor,
    rstd: torch.Tensor,
    order: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    contract = _contract_of(x, _ANY_EPS, order)
    check_operands(x, gain, contract, residual)
    check_gradients(dy, x, gain, rstd, contract, dsum)
    return x.new_empty(x.shape), gain.new_empty(gain.shape)


def _empty_rstd(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.float32)


def _declare() -> torch.library.Library:
    library = torch.library.Library("latentkv", "DEF")
    for schema in _SCHEMAS:
        name = schema.partition("(")[0]
        fake = _sharding.shardable(name, globals()[f"_fake_{name}"])
        _register(library, schema, globals()[f"_{name}"], fake)
    for schema, functions in _path_operators.operators().items():
        _register(library, schema, *functions)
    return library


def _register(
    library: torch.library.Library,
    schema: str,
    fallback: Callable[..., Any],
    fake: Callable[..., Any],
) -> None:
    name = library.define(schema)
    library.impl(name, fallback, "CompositeExplicitAutograd")
    torch.library.register_fake(f"latentkv::{name}", fake, lib=library)


def _forced_backend() -> str:
    """What LATENTKV_BACKEND asks for, empty for nothing."""
    forced = os.environ.get("LATENTKV_BACKEND", "")
    if forced == "triton":
        raise RuntimeError("LATENTKV_BACKEND=triton: this version has no Triton kernels")
    if forced not in ("", *BACKENDS):
        raise ValueError(f"LATENTKV_BACKEND={forced}: must be one of {', '.join(BACKENDS)}")
    return forced


def _find(forced: str) -> Path | None:
    """The compiled kernels' file, or None where the definition computes."""
    if forced == "definition":
        return None
    found = sorted(Path(__file__).parent.glob("_kernels_cpu*.so"))
    if not found:
        remedy = "install a C++ compiler and reinstall latentkv with --no-build-isolation"
        if forced:
            raise RuntimeError(f"LATENTKV_BACKEND={forced}: the kernels are not built: {remedy}")
        warnings.warn(
            f"latentkv runs on its definition, exact but slow: the kernels are not built; {remedy}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return found[0]


def _load(path: Path | None) -> ctypes.CDLL | None:
    """The compiled kernels, which register themselves for the operators' CPU."""
    if path is None:
        return None
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"the compiled kernels don't load with torch {torch.__version__} ({error}): reinstall "
            "latentkv with --no-build-isolation, or set LATENTKV_BACKEND=definition"
        ) from error
    kernels = ctypes.CDLL(str(path))
    kernels.latentkv_instruction_sets.restype = ctypes.c_char_p
    kernels.latentkv_instruction_set.restype = ctypes.c_char_p
    return kernels


def backend() -> str:
    """What computes on the CPU: "cpu" (the compiled kernels) or "definition"."""
    return "definition" if _KERNELS is None else "cpu"


def instruction_sets() -> tuple[str, ...]:
    """What the compiled kernels can use on this processor, best first; empty without them."""
    if _KERNELS is None:
        return ()
    return tuple(_KERNELS.latentkv_instruction_sets().decode().split())


def instruction_set() -> str:
    """The one in use, "none" without compiled kernels."""
    return "none" if _KERNELS is None else str(_KERNELS.latentkv_instruction_set().decode())


def use_instruction_set(name: str) -> None:
    """Make the compiled kernels use this instruction set, in every thread of the process.

    The bits are the same with each. LATENTKV_INSTRUCTION_SET in the environment does it at import.
    Raises ValueError where it is missing.
    """
    if _KERNELS is None or _KERNELS.latentkv_use_instruction_set(name.encode()) != 0:
        available = ", ".join(instruction_sets()) or "none, since the definition computes"
        raise ValueError(f"instruction set {name!r} is not available here; there is {available}")


@contextmanager
def using_instruction_set(name: str) -> Iterator[None]:
    """`use_instruction_set` for the length of a block."""
    before = instruction_set()
    use_instruction_set(name)
    try:
        yield
    finally:
        use_instruction_set(before)


# Declared last: an import that fails leaves nothing behind, and can be tried again.
_KERNELS = _load(_find(_forced_backend()))
if os.environ.get("LATENTKV_INSTRUCTION_SET"):
    use_instruction_set(os.environ["LATENTKV_INSTRUCTION_SET"])
_LIBRARY = _declare()  # the operators live as long as this object
