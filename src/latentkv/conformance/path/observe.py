"""What a path's outputs tell, before they are graded."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ...bits import same_bits
from ...contracts import KVContract
from ..implementation import Implementation, ImplementationError
from ..observe import Observation, observe
from .implementation import PathImplementation
from .key import Key, observe_key
from .latent import Latent, observe_latent
from .probes import Rows, sample
from .slots import Slots, observe_slots

# Batches that kernels treat as special, and rows that are run alone and among rows of NaN.
_BATCHES = (2, 3, 4, 8, 127, 128, 129, 257)
_ALONE = (0, 1, 128, 256)


@dataclass(frozen=True)
class PathObservation:
    """Everything is measured on `probes.sample`."""

    latent: torch.Tensor  # bf16, whatever was returned
    key: torch.Tensor
    dtypes: dict[str, torch.dtype]
    of_latent: Latent
    of_key: Key
    slots: Slots
    batch_invariant: bool
    repeatable: bool
    strided: str  # "same", "refused" or what is wrong
    took_table: bool


def observe_path(implementation: PathImplementation, contract: KVContract) -> PathObservation:
    """Run every probe. Raises ImplementationError if a plain call fails."""
    with torch.device("cpu"):  # whatever the default is here, or becomes on import
        return _observe(implementation, contract)


def observe_norm(implementation: PathImplementation, contract: KVContract) -> Observation:
    """The latent's norm on its own: the path of rows without a key, at position 0."""
    rows = sample(contract)

    def norm(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
        down = x.new_zeros(x.numel() // x.shape[-1], contract.width)
        down[:, : x.shape[-1]] = x.reshape(-1, x.shape[-1])
        positions = torch.zeros(len(down), dtype=torch.int64)
        latent, _ = implementation(Rows(down, gain, positions, rows.rope), eps)
        return latent.view(x.shape)

    return observe(
        Implementation(implementation.name, norm), contract.norm.width, contract.norm.eps
    )


def _observe(implementation: PathImplementation, contract: KVContract) -> PathObservation:
    rows, eps = sample(contract), contract.norm.eps
    latent, key = implementation(rows, eps)
    dtypes = {"latent": latent.dtype, "key": key.dtype}
    strided = _strided(implementation, rows, eps, (latent, key))
    invariant = _is_batch_invariant(implementation, rows, eps, (latent, key))
    moved = replace(rows, positions=rows.positions.flip(0))
    alike = same_bits(implementation(moved, eps)[1], key)
    again = implementation(rows, eps)
    own = latent
    if not invariant:  # a row's own arithmetic shows where the others are not there
        own = torch.cat([implementation(rows.pick([row]), eps)[0] for row in range(len(latent))])
    key = key.bfloat16()
    return PathObservation(
        latent=latent.bfloat16(),
        key=key,
        dtypes=dtypes,
        of_latent=observe_latent(own.bfloat16(), rows, contract),
        of_key=observe_key(key, alike, rows, contract),
        slots=observe_slots(implementation, rows, eps),
        batch_invariant=invariant,
        repeatable=same_bits(again[0], latent) and same_bits(again[1].bfloat16(), key),
        strided=strided,
        took_table=implementation.takes_table,
    )


def _is_batch_invariant(
    implementation: PathImplementation,
    rows: Rows,
    eps: float,
    results: tuple[torch.Tensor, torch.Tensor],
) -> bool:
    """Whether a row keeps its bits alone, in other batches and places, and beside NaNs."""
    count = len(rows.down)
    picks = [torch.tensor([row]) for row in _ALONE]
    picks += [torch.arange(size) for size in _BATCHES]
    picks += [torch.arange(count).flip(0)]
    for pick in picks:
        for part, whole in zip(implementation(rows.pick(pick), eps), results, strict=True):
            if not same_bits(part, whole[pick]):
                return False
    down = torch.full_like(rows.down, float("nan"))
    alone = torch.tensor(_ALONE)
    down[alone] = rows.down[alone]
    isolated = implementation(replace(rows, down=down), eps)
    return all(
        same_bits(part[alone], whole[alone]) for part, whole in zip(isolated, results, strict=True)
    )


def _strided(
    implementation: PathImplementation,
    rows: Rows,
    eps: float,
    results: tuple[torch.Tensor, torch.Tensor],
) -> str:
    """Rows that are a slice of wider ones, as behind a fused down-projection."""
    count, width = rows.down.shape
    memory = torch.full((count, 3 * width), 7.0, dtype=rows.down.dtype)
    view = memory[:, 2 * width :]
    view.copy_(rows.down)
    before = memory.clone()
    try:
        parts = implementation(replace(rows, down=view), eps)
    except ImplementationError as error:
        if not error.raised:
            raise
        return "refused"
    if not same_bits(memory, before):
        raise ImplementationError(f"{implementation.name} writes beside its input down")
    same = all(same_bits(part, whole) for part, whole in zip(parts, results, strict=True))
    return "same" if same else f"wrong on a slice of rows {3 * width} wide"
