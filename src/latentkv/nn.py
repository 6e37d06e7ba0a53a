"""Modules that own parameters, named as in the checkpoints."""

from __future__ import annotations

import torch

from .contracts import NormContract
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
