"""What the operators' autograd shares: first derivatives in reverse mode, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch.autograd import forward_ad

from .contracts import NormContract

F = TypeVar("F", bound=Callable[..., Any])


def constant_in_graphs(function: F) -> F:
    """``torch.compiler.assume_constant_result``, less its import of the compiler: a second."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply``, less its search for default arguments: 30 us a call (torch 2.13)."""
    if torch.compiler.is_compiling() or in_transform():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


def eps_of(contract: NormContract) -> float:
    """Its eps: in a graph a constant, since two calls may not share a symbol (torch 2.13)."""
    return float(_constant_eps(contract)) if torch.compiler.is_compiling() else contract.eps


@constant_in_graphs
def _constant_eps(contract: NormContract) -> float:
    return contract.eps


def unit_stride(gradient: torch.Tensor) -> torch.Tensor:
    """As it is, where a kernel can read it: an expanded gradient has a last stride of 0."""
    return gradient if gradient.stride(-1) == 1 else gradient.contiguous()


def in_transform() -> bool:
    """Whether torch.func wraps the tensors: what needs a gradient outside doesn't show on them."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is not None
    )


def in_forward_mode() -> bool:
    return forward_ad._current_level >= 0


def refuse_tangents(*tensors: torch.Tensor) -> None:
    """Refuse what carries a derivative in forward mode: it would silently be lost."""
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(
            "latentkv has no forward-mode derivative: use backward(), torch.func.grad or vjp"
        )


def refuse_second() -> NoReturn:
    raise NotImplementedError(
        "latentkv has first derivatives only: drop create_graph, or differentiate the function of "
        "latentkv.definition in fp64"
    )
