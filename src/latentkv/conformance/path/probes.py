"""The rows of a check of the path: seeded, bf16, made once per contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from ... import models
from ...contracts import KVContract, RopeContract
from ...definition.rope import inverse_frequencies
from .. import probes

# How many rows, by the root mean square of their latents. At 1 the rounding order and the scale
# rule show and the eps hardly does; at 0.01 it does.
_ROWS = {1.0: 448, 0.01: 64}
# What groups of features of the former are multiplied by, beyond the first half of them, which
# stays: at 2^-8 the largest magnitude of a group is below 0.0448, where FlashMLA's floor of the
# scale begins, and at 2^-20 below 1e-4, where DeepSeek's does; zeros tell whether there is any.
_MAGNITUDES = (1.0, 2.0**-8, 2.0**-8, 2.0**-20, 0.0)
# Where scales are powers of two, another one shows only in e4m3's subnormal codes, from 2^-15 of
# the largest magnitude down: half of the features of those groups are 2^-12 to 2^-18 of it.
_FAINT = (12, 19)
# Small positions show an error of one, large ones an error of the frequencies.
_SMALL = 512


@dataclass(frozen=True)
class Rows:
    """What one call is given: rows, the gain, positions, and the rotation whose table they have."""

    down: torch.Tensor
    gain: torch.Tensor
    positions: torch.Tensor
    rope: RopeContract

    def pick(self, index: torch.Tensor | Sequence[int] | slice) -> Rows:
        """Some of the rows, in the order given."""
        return replace(self, down=self.down[index], positions=self.positions[index])

    def table(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, fp32 [rows, pairs], of the rotation at the rows' positions."""
        cos, sin = table_rows(inverse_frequencies(self.rope), self.positions).chunk(2, dim=-1)
        return cos.contiguous(), sin.contiguous()

    @property
    def latent(self) -> torch.Tensor:
        return self.down[:, : len(self.gain)]

    @property
    def key(self) -> torch.Tensor:
        return self.down[:, len(self.gain) :]


def table_rows(frequencies: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rows of a rotary table, [rows, 2 * pairs]: `definition.rotary_table` at some positions."""
    angle = (positions.float().unsqueeze(-1) * frequencies).double()
    return torch.cat([angle.cos().float(), angle.sin().float()], dim=-1)


def known_rotations(width: int) -> tuple[RopeContract, ...]:
    """The models' rotations, for keys of this width."""
    ropes = (models.get(name).kv.rope for name in models.names())
    return tuple(dict.fromkeys(replace(rope, width=width) for rope in ropes if rope))


def known_groups(width: int) -> tuple[int, ...]:
    """How many features may share a scale: as many as in the models' rules, or all of them."""
    quants = (models.get(name).kv.quant for name in models.names())
    groups = dict.fromkeys(quant.group for quant in quants if quant)
    return tuple(group for group in (*groups, width) if width % group == 0)


def rotation_of(contract: KVContract) -> RopeContract:
    """The contract's rotation; where it has none, one for implementations that rotate anyway."""
    return contract.rope or known_rotations(contract.key_width)[0]


@cache
def sample(contract: KVContract) -> Rows:
    """Rows [512, width + key_width] whose groups separate the scale rules, at spread positions."""
    width, group = contract.norm.width, known_groups(contract.norm.width)[0]
    generator = torch.Generator().manual_seed(20260201)
    rms = torch.cat([torch.full((count, 1), value) for value, count in _ROWS.items()])
    count = len(rms)
    shape = (count, width // group, 1)
    drawn = torch.randint(len(_MAGNITUDES), shape, generator=generator)
    faint = torch.exp2(-torch.randint(*_FAINT, (*shape[:2], group), generator=generator).float())
    faint = torch.where(torch.rand(faint.shape, generator=generator) < 0.5, faint, 1.0)
    plain = (torch.arange(count) < _ROWS[1.0] // 2) | (rms[:, 0] != 1)
    drawn[plain], faint[plain] = 0, 1
    scale = torch.tensor(_MAGNITUDES)[drawn] * faint
    latent = rms * (torch.randn(*shape[:2], group, generator=generator) * scale).flatten(1)
    key = torch.randn(count, contract.key_width, generator=generator)
    order = torch.randperm(count, generator=generator)
    rope = rotation_of(contract)
    # Two short of the last position: an implementation that is one off still has a row to read.
    last = max(rope.max_positions - 2, 0)
    positions = torch.randint(last + 1, (count,), generator=generator)
    positions[::2] %= _SMALL
    positions[:4] = torch.tensor([0, 1, 2, last]).clamp(0, last)
    _, gain = probes.sample(width, "cpu")
    down = torch.cat([latent, key], dim=-1)[order].bfloat16()
    return Rows(down, gain, positions[order], rope)


def visibly_scaled(rows: Rows) -> torch.Tensor:
    """Which rows are too large for the eps to show: bool [rows]."""
    return rows.latent.float().square().mean(dim=-1) > 0.05
