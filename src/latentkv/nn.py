"""Modules that own parameters, named as in the checkpoints."""

from __future__ import annotations

from dataclasses import fields

import torch

from .cache import LatentCache
from .compress import compress_kv
from .contracts import KVContract, NormContract
from .ops import rms_norm


class LatentRMSNorm(torch.nn.Module):
    """RMSNorm with a learned gain, by a contract.

    The gain is the parameter ``weight`` [width], ones until loaded, in torch's default dtype
    unless one is given; with bf16 inputs and ``cast_then_gain``, keep it in bf16, since the output
    has the promotion of both.

    Arguments:
        contract: such as ``models.get("kimi-k2").norms.kv_latent``.
        device, dtype: of the gain.

    Raises TypeError for anything but a NormContract.
    """

    def __init__(
        self,
        contract: NormContract,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(contract, NormContract):
            raise TypeError(f"contract must be a NormContract, got {type(contract).__name__}")
        self.contract = contract
        self.weight = torch.nn.Parameter(torch.empty(contract.width, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gain to ones."""
        torch.nn.init.ones_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., width] to [..., width]: `latentkv.rms_norm`."""
        return rms_norm(x, self.weight, self.contract)

    def extra_repr(self) -> str:
        return f"{self.contract.width}, eps={self.contract.eps}, order={self.contract.order!r}"


class KVCompression(torch.nn.Module):
    """From the hidden state to latent and shared key: down-projection, norm, and the path.

    Parameters, as the checkpoints name them: ``kv_a_proj_with_mqa.weight``
    [width + key_width, hidden_size] (no bias) and ``kv_a_layernorm.weight`` [width].

    Arguments:
        contract: such as ``models.get("kimi-k2").kv``.
        hidden_size: features of the hidden state.
        device, dtype: of the parameters.

    Raises TypeError for anything but a KVContract.
    """

    def __init__(
        self,
        contract: KVContract,
        hidden_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(contract, KVContract):
            raise TypeError(f"contract must be a KVContract, got {type(contract).__name__}")
        self.contract = contract
        self.kv_a_proj_with_mqa = torch.nn.Linear(
            hidden_size, contract.width, bias=False, device=device, dtype=dtype
        )
        self.kv_a_layernorm = LatentRMSNorm(contract.norm, device=device, dtype=dtype)

    def forward(
        self, hidden: torch.Tensor, positions: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., hidden_size] to latent [..., width] and key [..., key_width]: `compress_kv`."""
        down = self.kv_a_proj_with_mqa(hidden)
        return compress_kv(down, self.kv_a_layernorm.weight, self.contract, positions)

    def write(
        self,
        cache: LatentCache,
        hidden: torch.Tensor,
        positions: torch.Tensor | None,
        slots: torch.Tensor,
    ) -> None:
        """The same into the cache's slots, without a latent or key in between.

        Raises TypeError for another kind of cache, ValueError for one of another contract; else
        as `LatentCache.write`.
        """
        if not isinstance(cache, LatentCache):
            raise TypeError(f"cache must be a LatentCache, got {type(cache).__name__}")
        if cache.contract != self.contract:
            raise ValueError(
                "the cache was made for another contract than this module's: its "
                + ", ".join(
                    f"{field.name} is {getattr(cache.contract, field.name)}, not "
                    f"{getattr(self.contract, field.name)}"
                    for field in fields(KVContract)
                    if getattr(cache.contract, field.name) != getattr(self.contract, field.name)
                )
            )
        down = self.kv_a_proj_with_mqa(hidden)
        cache.write(down.detach(), self.kv_a_layernorm.weight.detach(), positions, slots)
