"""The key-value path's public functions and their autograd."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import is_grad_enabled
from torch.autograd.graph import increment_version

from . import _library, _path_operators
from ._autograd import (
    apply,
    in_forward_mode,
    in_transform,
    refuse_second,
    refuse_tangents,
    unit_stride,
)
from ._plans import _TABLES, Plan, constants, plan_of, table_of
from .contracts import KVContract

assert _library  # it declares the operators
_compress_kv = torch.ops.latentkv.compress_kv.default
_compress_kv_fwd = torch.ops.latentkv.compress_kv_fwd.default
_compress_kv_bwd = torch.ops.latentkv.compress_kv_bwd.default
_write_kv = torch.ops.latentkv.write_kv.default


def compress_kv(
    down: torch.Tensor, gain: torch.Tensor, contract: KVContract, positions: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise the latent, send it through its quantisation, rotate the shared key: to the bit.

    One pass over the down-projection's output; the arithmetic is docs/numerics.md's, and every
    backend gives the bits of ``definition.compress_kv``.

    Arguments:
        down: [..., width + key_width], bf16, fp16 or fp32, last stride 1, any leading shape and
            strides: the latent's features, then the key's, pairs side by side.
        gain: [width], bf16, fp16 or fp32, contiguous, on the same device.
        contract: such as ``models.get("kimi-k2").kv``.
        positions: int32 or int64, one for each row, or broadcasting to that; from 0 to the
            contract's ``max_positions``, exclusive. Not looked at where nothing is rotated.

    Returns ``(latent, key)``, new and contiguous: [..., width] in the dtype that the norm gives,
    and [..., key_width] in that of ``down``. Gradients flow through norm and rotation, and
    straight through the quantisation.

    Raises:
        TypeError, ValueError: naming what was given and what is allowed.
        NotImplementedError: a second derivative, or one in forward mode, is asked for.
    """
    if torch.compiler.is_compiling():
        latent, key, _ = apply(_CompressKV, *_in_graph(down, gain, contract, positions))
        return latent, key
    try:
        plan = plan_of(contract)
        if down.size(-1) != plan.width or gain.size(0) != plan.latent_width:
            _explain(down, gain, contract, positions)
        arguments = _arguments(plan, down, gain, positions)
        if is_grad_enabled() and (down.requires_grad or gain.requires_grad or in_transform()):
            latent, key, _ = apply(_CompressKV, *arguments)
            return latent, key
        if in_forward_mode():
            refuse_tangents(down, gain)
        latent, key = _compress_kv(*arguments)
        return latent, key
    except NotImplementedError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError):
        _explain(down, gain, contract, positions)
        raise


def write_kv(
    cache: torch.Tensor,
    slots: torch.Tensor,
    down: torch.Tensor,
    gain: torch.Tensor,
    contract: KVContract,
    positions: torch.Tensor | None,
) -> None:
    """`compress_kv` into a cache's slots, in the same pass; `latentkv.cache` has the layouts.

    Arguments:
        cache: [blocks, block size, record], changed in place: in the dtype of ``down`` (latent,
            then key), or uint8 (the fp8 record).
        slots: int32 or int64, one for each row: ``block * block_size + place in the block``. A
            negative one skips its row, position and all; of equal ones the last wins.
        down, gain, contract, positions: as `compress_kv`.

    Raises TypeError or ValueError, and leaves the cache as it was.
    """
    if torch.compiler.is_compiling():
        _write_kv(cache, slots, *_in_graph(down, gain, contract, positions))
        return
    try:
        if cache.requires_grad or (cache.is_inference() and not torch.is_inference_mode_enabled()):
            _explain_write(cache, slots, down, gain, contract, positions)
        plan = plan_of(contract)
        if down.size(-1) != plan.width or gain.size(0) != plan.latent_width:
            _explain_write(cache, slots, down, gain, contract, positions)
        if in_forward_mode():
            refuse_tangents(down, gain)
        _write_kv(cache, slots, *_arguments(plan, down, gain, positions))
        if not cache.is_inference():  # whoever saved it for a backward must hear of the change
            increment_version(cache)
    except NotImplementedError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError):
        _explain_write(cache, slots, down, gain, contract, positions)
        raise


def _arguments(
    plan: Plan, down: torch.Tensor, gain: torch.Tensor, positions: torch.Tensor | None
) -> tuple[Any, ...]:
    """What both operators take of the rows and their contract."""
    table = table_of(plan, down)
    at = None if table is None else positions
    return down, gain, at, table, plan.eps, plan.order, plan.rope, plan.rule, plan.group


def _in_graph(
    down: torch.Tensor, gain: torch.Tensor, contract: KVContract, positions: torch.Tensor | None
) -> tuple[Any, ...]:
    """As `_arguments`, in words that a compiler can trace."""
    if down.shape[-1] != contract.width or gain.shape[0] != contract.norm.width:
        _explain(down, gain, contract, positions)
    eps, order, rope, rule, group, name = constants(contract, down.device)
    table = _TABLES[name] if name else None
    at = positions if name else None
    return down, gain, at, table, eps, order, rope, rule, group


class _CompressKV(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        down: torch.Tensor,
        gain: torch.Tensor,
        positions: torch.Tensor | None,
        table: torch.Tensor | None,
        eps: float,
        order: str,
        rope: str,
        rule: str,
        group: int,
    ) -> Any:
        return _compress_kv_fwd(down, gain, positions, table, eps, order, rope, rule, group)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        down, gain, positions, table, _, ctx.order, ctx.rope, _, _ = inputs
        _, _, rstd = output
        ctx.mark_non_differentiable(rstd)
        ctx.save_for_backward(down, gain, positions, table, rstd)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dlatent: Any, dkey: Any, _: Any) -> Any:
        if dlatent is None and dkey is None:
            return (None,) * 9
        down, gain, positions, table, rstd = ctx.saved_tensors
        ddown, dgain = apply(
            _CompressKVBackward,
            None if dlatent is None else unit_stride(dlatent),
            None if dkey is None else unit_stride(dkey),
            down,
            gain,
            rstd,
            positions,
            table,
            ctx.order,
            ctx.rope,
        )
        if dlatent is None:  # the gain had no part in the result
            dgain = None
        return ddown, dgain, None, None, None, None, None, None, None


class _CompressKVBackward(torch.autograd.Function):
    """First derivatives, as a function without derivatives of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        dlatent: torch.Tensor | None,
        dkey: torch.Tensor | None,
        down: torch.Tensor,
        gain: torch.Tensor,
        rstd: torch.Tensor,
        positions: torch.Tensor | None,
        table: torch.Tensor | None,
        order: str,
        rope: str,
    ) -> Any:
        return _compress_kv_bwd(dlatent, dkey, down, gain, rstd, positions, table, order, rope)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> NoReturn:
        refuse_second()


def _explain(
    down: torch.Tensor, gain: torch.Tensor, contract: KVContract, positions: torch.Tensor | None
) -> None:
    """Say what was wrong, in the words that every backend uses; return where nothing was."""
    _path_operators.check_operands(down, gain, contract, positions)


def _explain_write(
    cache: torch.Tensor,
    slots: torch.Tensor,
    down: torch.Tensor,
    gain: torch.Tensor,
    contract: KVContract,
    positions: torch.Tensor | None,
) -> None:
    _path_operators.check_write(cache, slots, down, gain, contract, positions)
