"""Paths found here: the models' arithmetic in eager PyTorch, and what others made of it.

Each is imported only when it is listed; what is missing is skipped, with the reason.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ... import _library, models
from ...compress import compress_kv, write_kv
from ...contracts import KVContract, RopeContract
from ...definition import compress_kv as defined
from ...definition import rotary_table
from ...definition.records import write as write_defined
from ...models import Model
from ...models.yarn import Yarn
from ..known import Skipped, deepseek_eager, kimi_eager
from .implementation import PathImplementation
from .probes import known_groups


@dataclass(frozen=True)
class Subject:
    """A key-value path to be held against: what it is called, its contract and its YaRN."""

    name: str
    kv: KVContract
    yarn: Yarn | None


Build = Callable[[Subject], PathImplementation]


@dataclass(frozen=True)
class KnownPath:
    """A path to be built for a model. ``ours`` marks latentkv's own, which take its contract."""

    name: str
    build: Build
    ours: bool = False


def found() -> Iterator[KnownPath | Skipped]:
    """Everything that can be tested here, in the order of the table."""
    yield _function("Kimi K2, eager PyTorch", kimi_k2_eager)
    yield _function("Kimi K3, eager PyTorch", kimi_k3_eager)
    name = "DeepSeek, eager PyTorch"
    yield KnownPath(name, lambda held: PathImplementation(name, deepseek_v32_eager(held.kv)))
    yield from _transformers()
    yield from _latentkv()


def kimi_k2_eager(
    down: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Kimi K2's path as its dtype has PyTorch run it: bf16 products, the half layout."""
    latent, key = kimi_k3_eager(down, gain, eps, positions)
    x0, x1 = key[:, 0::2], key[:, 1::2]
    c, s = cos.to(key.dtype), sin.to(key.dtype)
    return latent, torch.cat([x0 * c - x1 * s, x1 * c + x0 * s], dim=-1)


def kimi_k3_eager(
    down: torch.Tensor, gain: torch.Tensor, eps: float, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Kimi K3's path: nothing but the norm."""
    latent, key = down.split([len(gain), down.shape[-1] - len(gain)], dim=-1)
    return kimi_eager(latent, gain, eps), key


def deepseek_v32_eager(contract: KVContract) -> Callable[..., Any]:
    """DeepSeek-V3.2-Exp's path: `deepseek_unquantised`, and an e4m3 round trip of the latent."""
    group = known_groups(contract.norm.width)[0]

    def path(
        down: torch.Tensor,
        gain: torch.Tensor,
        eps: float,
        positions: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        latent, key = deepseek_unquantised(down, gain, eps, positions, cos, sin)
        return _through_e4m3(latent, group), key

    return path


def deepseek_unquantised(
    down: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """DeepSeek-V3.2-Exp's path up to the quantisation: fp32 complex numbers turn the key."""
    latent, key = down.split([len(gain), down.shape[-1] - len(gain)], dim=-1)
    normed = deepseek_eager(latent, gain, eps)
    assert isinstance(normed, torch.Tensor)
    pairs = torch.view_as_complex(key.float().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
    return normed, turned.to(key.dtype)


def eager_codes(latent: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 codes [..., width] and fp32 scales [..., groups], as DeepSeek's act_quant gives them."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    groups = latent.float().unflatten(-1, (-1, group))
    amax = groups.abs().amax(dim=-1, keepdim=True).clamp_min(1e-4)
    mantissa, exponent = torch.frexp(amax / largest)  # mantissa from 0.5 to 1, exclusive
    scale = torch.ldexp(torch.ones_like(amax), exponent - (mantissa == 0.5).int())
    codes = (groups / scale).clamp(-largest, largest).to(torch.float8_e4m3fn)
    return codes.flatten(-2), scale.squeeze(-1)


def _through_e4m3(latent: torch.Tensor, group: int) -> torch.Tensor:
    codes, scales = eager_codes(latent, group)
    values: torch.Tensor = codes.float().unflatten(-1, (-1, group)) * scales.unsqueeze(-1)
    return values.flatten(-2).to(latent.dtype)


def eager_path(model: Model) -> Callable[..., Any]:
    """The model's own path among these: f(down, gain, eps, positions[, cos, sin])."""
    if model.kv.rope is None:
        return kimi_k3_eager
    return kimi_k2_eager if model.kv.quant is None else deepseek_v32_eager(model.kv)


def _function(name: str, function: Callable[..., Any]) -> KnownPath:
    return KnownPath(name, lambda _: PathImplementation(name, function))


def _transformers() -> Iterator[KnownPath | Skipped]:
    for package, prefix in (
        ("deepseek_v3", "DeepseekV3"),
        ("kimi_linear", "KimiLinear"),
        ("deepseek_v32", "DeepseekV32"),
    ):
        name = f"transformers {prefix}"
        if importlib.util.find_spec("transformers") is None:
            yield Skipped(name, "transformers is not installed")
            continue
        try:
            path = f"transformers.models.{package}"
            modeling = importlib.import_module(f"{path}.modeling_{package}")
            configuration = importlib.import_module(f"{path}.configuration_{package}")
            attention = getattr(modeling, f"{prefix}Attention")
            config = getattr(configuration, f"{prefix}Config")
            rotary = getattr(modeling, f"{prefix}RotaryEmbedding", None)
        except Exception as error:  # another version: without the model, or not with this torch
            yield Skipped(name, f"not in the transformers installed ({error})")
            continue
        yield KnownPath(name, _attention(name, attention, config, rotary))


def _attention(name: str, attention: type, config: type, rotary: type | None) -> Build:
    """An attention class of the model's sizes, asked what it hands to its cache."""

    def build(held: Subject) -> PathImplementation:
        configured = config(**_sizes(held))
        module = attention(configured, layer_idx=0).to(torch.bfloat16).eval()
        module.kv_a_proj_with_mqa = torch.nn.Identity()  # the rows are its output
        turn = None if rotary is None else rotary(configured)

        def path(
            down: torch.Tensor, gain: torch.Tensor, eps: float, positions: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            module.kv_a_layernorm.weight = torch.nn.Parameter(gain, requires_grad=False)
            x = down.unsqueeze(0)
            angles = () if turn is None else (turn(x, positions.unsqueeze(0)),)
            cache = _Capture()
            try:
                module(x, *angles, None, cache=cache)
            except _Captured:
                pass
            assert cache.latent is not None and cache.key is not None
            width = len(gain)
            return cache.latent.reshape(-1, width), cache.key.reshape(len(down), -1)

        return PathImplementation(name, path)

    return build


class _Captured(Exception):
    """Everything asked for is known: the attention itself need not be computed."""


class _Capture:
    """A cache that keeps what the class's first update gives it."""

    latent: torch.Tensor | None = None
    key: torch.Tensor | None = None

    def update(self, latent: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any) -> None:
        self.latent, self.key = latent, key
        raise _Captured


def _sizes(held: Subject) -> dict[str, Any]:
    """The path in a config's words, with one head and a hidden state that is the rows.

    The heads' widths and the query's rank are free: nothing that is cached depends on them.
    """
    kv, yarn, rope = held.kv, held.yarn, held.kv.rope
    if yarn is None or rope is None:  # a class that rotates needs one all the same
        yarn, rope = _rotating()
    return dict(
        hidden_size=kv.width,
        num_attention_heads=1,
        num_key_value_heads=1,
        q_lora_rank=kv.key_width,
        kv_lora_rank=kv.norm.width,
        qk_nope_head_dim=kv.key_width,
        qk_rope_head_dim=kv.key_width,
        v_head_dim=kv.key_width,
        num_hidden_layers=1,
        layer_types=["full_attention"],
        max_position_embeddings=rope.max_positions,
        rope_parameters=dict(
            rope_type="yarn",
            rope_theta=yarn.theta,
            factor=yarn.factor,
            beta_fast=yarn.beta_fast,
            beta_slow=yarn.beta_slow,
            mscale=yarn.mscale,
            mscale_all_dim=yarn.mscale_all_dim,
            original_max_position_embeddings=yarn.original,
        ),
        attn_implementation="eager",
    )


def _rotating() -> tuple[Yarn, RopeContract]:
    """The first model's rotation that has one."""
    every = (models.get(name) for name in models.names())
    return next((one.rotation.yarn, one.kv.rope) for one in every if one.rotation and one.kv.rope)


def _latentkv() -> Iterator[KnownPath]:
    yield KnownPath("latentkv, definition", _defined, ours=True)
    for name in _library.instruction_sets():
        yield KnownPath(f"latentkv, {name}", _forced(name), ours=True)


def _defined(held: Subject) -> PathImplementation:
    contract = held.kv
    table = None if contract.rope is None else rotary_table(contract.rope)
    compress, write = partial(defined, table=table), partial(write_defined, table=table)
    return _writing("latentkv, definition", compress, write, contract)


def _forced(instruction_set: str) -> Build:
    def forced(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with _library.using_instruction_set(instruction_set):
                return function(*arguments)

        return call

    name = f"latentkv, {instruction_set}"
    return lambda held: _writing(name, forced(compress_kv), forced(write_kv), held.kv)


def _writing(
    name: str, compress: Callable[..., Any], write: Callable[..., Any], contract: KVContract
) -> PathImplementation:
    """One of ours, in the form that is also asked to write."""

    def path(
        down: torch.Tensor,
        gain: torch.Tensor,
        eps: float,
        positions: torch.Tensor,
        cache: torch.Tensor | None = None,
        slots: torch.Tensor | None = None,
    ) -> Any:
        if cache is None or slots is None:
            return compress(down, gain, contract, positions)
        return write(cache, slots, down, gain, contract, positions)

    return PathImplementation(name, path)
