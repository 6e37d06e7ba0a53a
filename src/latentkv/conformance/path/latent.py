"""What becomes of the latent after its norm: kept, or sent through e4m3 by which scale rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import torch

from ...bits import differing
from ...contracts import ORDERS, RULES, KVContract, LatentQuant, Order, ScaleRule
from ...definition import compress_kv
from .probes import Rows, known_groups, sample, visibly_scaled

# e4m3 has eight values to a binade and bf16 128: among 16 features of a normal row 84% of the
# magnitudes differ after quantisation, whatever the group's size, and 99% without. Among fewer,
# each of the others hides proportionally less.
_FINEST, _HIDDEN = 16, 0.006
# Another order of summation moves a bf16 value in 1e-5 of the cases, and with it now and then the
# scale of its group; another rule or order of gain and cast changes 1% or more.
_EXPLAINED = 5e-3


@dataclass(frozen=True)
class Latent:
    """``rules`` are those that explain the latent, several where the probes can't tell them apart;
    none where it is kept as it is or no rule does. ``order`` is the norm's."""

    quantised: bool
    rules: tuple[str, ...] = ()
    group: int | None = None
    order: str | None = None
    nearest: str = ""  # the rule that comes nearest
    off: float = 0.0  # the share of features in which it differs
    eps_differs: bool = False  # small rows are off where large ones are not


def observe_latent(latent: torch.Tensor, rows: Rows, contract: KVContract) -> Latent:
    """Explain the latents of `probes.sample`, in bf16."""
    if not _is_quantised(latent, rows, contract):
        return Latent(False)
    large = visibly_scaled(rows)
    shares: dict[tuple[str, int, str], float] = {}
    own = (contract.quant.group,) if contract.quant else ()
    likely = tuple(dict.fromkeys((*own, *known_groups(contract.norm.width))))
    for group in (*likely, *_other_groups(contract.norm.width, likely)):
        if group not in likely and min(shares.values()) <= _EXPLAINED:
            break
        for rule in RULES:
            for order in ORDERS:
                expected = expected_latent(_variant(contract, group, rule, order))
                wrong = differing(latent, expected)[large]
                shares[rule, group, order] = float(wrong.double().mean())
    rule, group, order = best = min(shares, key=lambda key: shares[key])
    off = shares[best]
    if off > _EXPLAINED:
        return Latent(True, nearest=rule, off=off)
    expected = expected_latent(_variant(contract, group, rule, order))
    small = float(differing(latent, expected)[~large].double().mean())
    rules = tuple(name for name in RULES if shares[name, group, order] == off)
    return Latent(True, rules, group, order, rule, off, eps_differs=small > _EXPLAINED)


def expected_latent(contract: KVContract) -> torch.Tensor:
    """The definition's, of the contract's sample."""
    return _unrotated(replace(contract, rope=None))


@lru_cache(maxsize=64)  # half a megabyte each
def _unrotated(contract: KVContract) -> torch.Tensor:
    rows = sample(contract)  # latents of any rotation's rows are these
    return compress_kv(rows.down, rows.gain, contract, None)[0]


def step_of(expected: torch.Tensor, group: int) -> torch.Tensor:
    """How far apart neighbouring values of a quantised latent lie at most.

    An eighth of the value, or below the normal range 2^-9 of the scale, which is at most
    2 / 448 of the group's largest magnitude: together under 2^-16 of that.
    """
    values = expected.double().abs()
    amax = values.unflatten(-1, (-1, group)).amax(dim=-1).repeat_interleave(group, dim=-1)
    return torch.maximum(values / 7, amax * 2.0**-16)


def _variant(contract: KVContract, group: int, rule: str, order: str) -> KVContract:
    norm = replace(contract.norm, order=cast(Order, order))
    return replace(contract, norm=norm, quant=LatentQuant(group, cast(ScaleRule, rule)))


def _other_groups(width: int, likely: tuple[int, ...]) -> list[int]:
    """Powers of two that divide the width and are not likely, the largest first."""
    powers = (1 << exponent for exponent in reversed(range(width.bit_length())))
    return [
        group for group in powers if group >= _FINEST and width % group == 0 and group not in likely
    ]


def _is_quantised(latent: torch.Tensor, rows: Rows, contract: KVContract) -> bool:
    """Whether neighbouring features of even rows hold no more magnitudes than e4m3 has."""
    group = min(contract.norm.width, _FINEST)
    whole = contract.norm.width // group * group  # what is left over is not looked at
    groups = latent[:, :whole].float().abs().unflatten(-1, (-1, group))
    source = rows.latent[:, :whole].float().abs().unflatten(-1, (-1, group)).mean(dim=-1)
    even = groups[source > source.max() / 4]
    ordered = even.sort(dim=-1).values
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(dim=-1)
    return bool(distinct.double().mean() < group * (1 - _HIDDEN * (group - 1)))
