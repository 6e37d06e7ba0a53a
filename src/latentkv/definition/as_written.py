"""Conditions under which the definition's operations mean what they say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

# PyTorch runs an elementwise CPU operation on more elements than this on several threads.
_ONE_THREAD = 32768


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Keep a function, and all that it calls, out of ``torch.compile``'s graphs.

    Compiled code drops the cast between two products and so swaps one rounding order for the
    other (torch 2.13, CPU: 26% of bf16 outputs). In a graph that may not break, an error says so.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            raise RuntimeError("latentkv.definition can't be compiled; latentkv.rms_norm can")
        if "torch._dynamo" in sys.modules:  # importing it costs a second: only where it is there
            untraced: Callable[P, R] = _disabled(function)
            return untraced(*args, **kwargs)
        return function(*args, **kwargs)

    return call


@cache
def _disabled(function: Callable[P, R]) -> Callable[P, R]:
    disable: Callable[[Callable[P, R]], Callable[P, R]] = torch.compiler.disable
    return disable(function)


@contextmanager
def gradual_underflow(like: torch.Tensor) -> Iterator[None]:
    """Keep subnormals in the CPU operations of the block, whatever `set_flush_denormal` was told.

    The mode belongs to a thread, and PyTorch's workers inherit it from the thread that started
    them and keep it: after ``set_flush_denormal(True)``, one parallel operation and
    ``set_flush_denormal(False)``, half of a large product was still flushed (torch 2.13, two
    threads). So the block runs on the calling thread alone, where the mode can be set. (Threads
    that first use torch meanwhile start with one thread, too: the number is the process's.)
    """
    if like.device.type != "cpu":
        yield
        return
    smallest = torch.ones((), dtype=torch.int32, device="cpu").view(torch.float32)  # 2^-149
    flushes = bool(smallest * 1 == 0)
    threads = torch.get_num_threads() if like.numel() > _ONE_THREAD else 1
    if flushes:
        torch.set_flush_denormal(False)
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)
        if flushes:
            torch.set_flush_denormal(True)
