"""Implementations found here: the models' arithmetic in eager PyTorch, and what others made of it.

Each is imported or compiled only when it is listed; what is missing is skipped, with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from .. import _library, definition
from ..contracts import NormContract
from ..ops import add_rms_norm, rms_norm
from .implementation import Implementation


@dataclass(frozen=True)
class Known:
    """An implementation to be built for a contract.

    ``ours`` marks latentkv's own, which take the contract's order: others have one of their own.
    ``apart`` names one, as ``--impl`` does, that is slow enough for a process of its own.
    """

    name: str
    build: Callable[[NormContract], Implementation]
    ours: bool = False
    apart: str = ""


@dataclass(frozen=True)
class Skipped:
    name: str
    reason: str


def found() -> Iterator[Known | Skipped]:
    """Everything that can be tested here, in the order of the table."""
    yield _function("Kimi, eager PyTorch", kimi_eager)
    yield _function("DeepSeek, eager PyTorch", deepseek_eager)
    yield from under_compile()
    yield Known("torch.nn.RMSNorm", lambda _: Implementation("torch.nn.RMSNorm", torch.nn.RMSNorm))
    yield from _transformers()
    yield from _liger()
    yield from _latentkv()


def kimi_eager(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """Kimi K2's and K3's norm as their code has PyTorch run it: round, then multiply."""
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return gain * (wide * rstd).to(x.dtype)


def deepseek_eager(
    x: torch.Tensor, gain: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """DeepSeek-V3.2-Exp's norm likewise, its gain held in fp32: multiply, then round."""
    wide = x.float() if residual is None else x.float() + residual.float()
    rstd = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    y = (gain.float() * (wide * rstd)).to(x.dtype)
    return y if residual is None else (y, wide.to(x.dtype))


def _function(name: str, function: Callable[..., Any]) -> Known:
    return Known(name, lambda _: Implementation(name, function))


def kimi_compiled(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """`kimi_eager` under torch.compile."""
    y: torch.Tensor = _compiled(kimi_eager)(_rows(x), gain, eps)
    return y.view(x.shape)


def deepseek_compiled(
    x: torch.Tensor, gain: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`deepseek_eager` under torch.compile."""
    run = _compiled(deepseek_eager)
    if residual is None:
        packed: torch.Tensor = run(_rows(x), gain, eps)
        return packed.view(x.shape)
    # The plain form shows what it does with strides: two strided operands as well would pass the
    # limit of eight recompilations.
    y, total = run(_rows(x).contiguous(), gain, eps, _rows(residual).contiguous())
    return y.view(x.shape), total.view(x.shape)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # fullgraph: where the limit of recompilations is reached, an error, not eager code.
    # vec_isa_ok: torch need not try each instruction set out in a process of its own, 1.3 s.
    compiled: Callable[..., Any] = torch.compile(
        function, dynamic=True, fullgraph=True, options={"cpp.vec_isa_ok": True}
    )
    return compiled


def _rows(x: torch.Tensor) -> torch.Tensor:
    # Every further rank, and every kind of view, would be compiled anew: 1.4 s each.
    return x.reshape(-1, x.shape[-1]).detach()


def under_compile() -> Iterator[Known | Skipped]:
    """The models' arithmetic compiled, to be run apart."""
    # What torch.compile itself looks for on the CPU.
    compiler = os.environ.get("CXX") or "g++"
    for owner, function in (("Kimi", kimi_compiled), ("DeepSeek", deepseek_compiled)):
        name = f"{owner}, torch.compile"
        if shutil.which(compiler) is None:
            yield Skipped(name, f"torch.compile needs a C++ compiler: {compiler} is not here")
        else:
            yield replace(_function(name, function), apart=f"{__name__}:{function.__name__}")


def _transformers() -> Iterator[Known | Skipped]:
    for model, cls in (
        ("deepseek_v3", "DeepseekV3RMSNorm"),
        ("kimi_linear", "KimiLinearRMSNorm"),
        ("deepseek_v32", "DeepseekV32RMSNorm"),
    ):
        name = f"transformers {cls.removesuffix('RMSNorm')}"
        if importlib.util.find_spec("transformers") is None:
            yield Skipped(name, "transformers is not installed")
            continue
        try:
            module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
            norm = getattr(module, cls)
        except Exception as error:  # another version: without the model, or not with this torch
            yield Skipped(name, f"not in the transformers installed ({error})")
            continue
        yield Known(name, _with_default_eps(name, norm))


def _with_default_eps(name: str, cls: type) -> Callable[[NormContract], Implementation]:
    """As these models build it: with the width alone."""
    return lambda contract: Implementation(name, cls(contract.width))


def _liger() -> Iterator[Known | Skipped]:
    modes = {"llama": "Liger RMSNorm, llama mode", "gemma": "Liger RMSNorm, gemma mode"}
    if importlib.util.find_spec("liger_kernel") is None:
        yield Skipped("Liger RMSNorm", "liger-kernel is not installed")
    elif not torch.cuda.is_available():
        yield Skipped("Liger RMSNorm", "its Triton kernels need a GPU, and none is here")
    else:
        module = importlib.import_module("liger_kernel.transformers.rms_norm")
        for mode, name in modes.items():
            yield Known(name, _liger_mode(name, mode, module.LigerRMSNorm))


def _liger_mode(name: str, mode: str, cls: type) -> Callable[[NormContract], Implementation]:
    def build(contract: NormContract) -> Implementation:
        module = cls(contract.width, eps=contract.eps, casting_mode=mode, in_place=False)
        return Implementation(name, module, device="cuda")

    return build


def _latentkv() -> Iterator[Known]:
    yield _ours("latentkv, definition", definition.rms_norm, definition.add_rms_norm)
    for name in _library.instruction_sets():
        yield _ours(f"latentkv, {name}", _forced(name, rms_norm), _forced(name, add_rms_norm))


def _ours(name: str, norm: Callable[..., Any], add_norm: Callable[..., Any]) -> Known:
    def build(contract: NormContract) -> Implementation:
        def call(
            x: torch.Tensor, gain: torch.Tensor, eps: float, residual: torch.Tensor | None = None
        ) -> Any:
            asked = NormContract(contract.width, eps, contract.order)
            return norm(x, gain, asked) if residual is None else add_norm(x, residual, gain, asked)

        return Implementation(name, call)

    return Known(name, build, ours=True)


def _forced(instruction_set: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with _library.using_instruction_set(instruction_set):
            return function(*args)

    return call
