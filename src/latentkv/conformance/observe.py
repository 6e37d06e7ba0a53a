"""What an implementation's outputs tell, before any contract judges them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..bits import differing, same_bits
from ..contracts import ORDERS
from . import probes
from .eps import Eps, measure_eps
from .implementation import Implementation, ImplementationError
from .variants import variant

# Rows of the sample that the variants are held against; 131,072 outputs at width 512.
_IDENTIFYING_ROWS = 256
# The two orders differ in 26% of outputs, one order summed differently in under 0.01%.
_EXPLAINED = 0.02


@dataclass(frozen=True)
class Observation:
    """Everything is measured; None and "unknown" mean that no known variant gives the outputs."""

    y: torch.Tensor  # of the whole sample, on the CPU
    eps: Eps
    order: str | None
    nearest: float  # share of outputs in which the best variant differs
    store: str  # "nearest" or "truncated"
    rstd: str  # "fp32" or "rounded"
    residual: str  # "unrounded", "rounded", "unknown", or "none": no such form
    sum_right: bool
    batch_invariant: bool
    strided: str  # "same", "refused" or what is wrong
    special: tuple[str, ...]  # the cases that come out otherwise than defined


def observe(implementation: Implementation, width: int, eps: float) -> Observation:
    """Run every probe. Raises ImplementationError if a plain call fails.

    Strided rows come first: code compiled for any stride also serves packed rows, while the other
    way round it is compiled again (1.4 s each under torch.compile).
    """
    strided = _strided(implementation, width, eps)
    x, gain = probes.sample(width, implementation.device)
    y = implementation(x, gain, eps).cpu()
    batch_invariant = _is_batch_invariant(implementation, y, eps)
    measured = measure_eps(implementation, width, eps, row_by_row=not batch_invariant)
    few = x[:_IDENTIFYING_ROWS]
    if batch_invariant:
        outputs = y[:_IDENTIFYING_ROWS]
    else:  # a row's own arithmetic shows where the others are not there
        outputs = torch.cat([implementation(row.unsqueeze(0), gain, eps) for row in few]).cpu()
    few, gain = few.cpu(), gain.cpu()
    order, store, rstd, nearest = _explain(few, gain, outputs, measured)
    used = measured.value if measured.value is not None else eps
    residual, sum_right = _residual(implementation, gain, eps, used, order, measured.placement)
    return Observation(
        y=y,
        eps=measured,
        order=order,
        nearest=nearest,
        store=store,
        rstd=rstd,
        residual=residual,
        sum_right=sum_right,
        batch_invariant=batch_invariant,
        strided=strided,
        special=_special(implementation, width, eps, measured, order),
    )


def _explain(
    x: torch.Tensor, gain: torch.Tensor, y: torch.Tensor, eps: Eps
) -> tuple[str | None, str, str, float]:
    """The order, store and rstd of the variant with the fewest differing outputs."""
    y = y.to(x.dtype)
    if eps.value is None:
        return None, "nearest", "fp32", 1.0
    gain = _applied(gain, eps)
    placement = "inside" if eps.placement == "none" else eps.placement
    best = (1.0, "", "nearest", "fp32")
    for store, rstd in (("nearest", "fp32"), ("truncated", "fp32"), ("nearest", "rounded")):
        for order in ORDERS:
            expected = variant(
                x, gain, eps.value, order, store=store, rstd=rstd, placement=placement
            )
            share = float(differing(y, expected).double().mean())
            best = min(best, (share, order, store, rstd))
        if best[0] <= _EXPLAINED:
            break
    share, order, store, rstd = best
    if share > _EXPLAINED:
        return None, "nearest", "fp32", share
    return order, store, rstd, share


def _residual(
    implementation: Implementation,
    gain: torch.Tensor,
    passed: float,
    used: float,
    order: str | None,
    placement: str,
) -> tuple[str, bool]:
    if not implementation.has_residual:
        return "none", True
    device = implementation.device
    x, residual = probes.residual_sample(len(gain), device)
    y, total = implementation.with_residual(x, residual, gain.to(device), passed)
    x, residual, y, total = x.cpu(), residual.cpu(), y.cpu(), total.cpu()
    right = same_bits(total, (x.float() + residual.float()).to(x.dtype))
    placement = "inside" if placement in ("none", "unknown") else placement
    shares: dict[str, float] = {}
    for summed in ("unrounded", "rounded"):
        for candidate in ORDERS if order is None else (order,):
            expected = variant(
                x, gain, used, candidate, placement=placement, residual=residual, summed=summed
            )
            share = float(differing(y.to(x.dtype), expected).double().mean())
            shares[summed] = min(share, shares.get(summed, 1.0))
    best = min(shares, key=lambda summed: shares[summed])
    return (best if shares[best] <= _EXPLAINED else "unknown"), right


def _is_batch_invariant(implementation: Implementation, y: torch.Tensor, eps: float) -> bool:
    """Whether a row keeps its bits alone, in other batches and positions, and beside NaNs.

    255, 256 and 257 rows: a kernel that changed its launch there changed the bits.
    """
    x, gain = probes.sample(y.shape[-1], implementation.device)
    beside_nan = torch.full_like(x[:257], float("nan"))
    for row in (0, 128, 256):
        alone = implementation(x[row : row + 1], gain, eps)[0].cpu()
        beside_nan[row] = x[row]
        if not same_bits(alone, y[row]):
            return False
    for rows in (255, 256, 257):
        if not same_bits(implementation(x[:rows], gain, eps).cpu(), y[:rows]):
            return False
    moved = implementation(x[:257].flip(0), gain, eps).cpu().flip(0)
    isolated = implementation(beside_nan, gain, eps).cpu()
    return same_bits(moved, y[:257]) and all(
        same_bits(isolated[row], y[row]) for row in (0, 128, 256)
    )


def _strided(implementation: Implementation, width: int, eps: float) -> str:
    x, gain = probes.sample(width, implementation.device)
    results: dict[str, torch.Tensor] = {}
    for name, view in probes.strided_views(x[:64]).items():
        try:
            results[name] = implementation(view, gain, eps).cpu().flatten(0, -2)
        except ImplementationError as error:
            if not error.raised:
                raise
            implementation(x[:64], gain, eps)  # does it take packed rows?
            return "refused"
    packed = implementation(x[:64], gain, eps).cpu()
    wrong = [name for name, result in results.items() if not same_bits(result, packed)]
    return f"wrong on {' and '.join(wrong)}" if wrong else "same"


def _special(
    implementation: Implementation, width: int, passed: float, eps: Eps, order: str | None
) -> tuple[str, ...]:
    """The special rows whose zeros, signs, infinities, NaNs or magnitudes are not as defined.

    Each is held against the implementation's own order and eps: what differs here is the case,
    not the contract.
    """
    if eps.value is None:
        return ()
    gain = torch.full((width,), 0.75, dtype=torch.bfloat16)
    placement = "inside" if eps.placement == "none" else eps.placement
    wrong = []
    for name, row in probes.special_rows(width, implementation.device).items():
        if eps.value == 0 and name in ("zeros", "negative zeros"):
            continue  # 0/0 follows from the eps, which is reported
        y = implementation(row, gain.to(implementation.device), passed).cpu().to(torch.bfloat16)
        expected = variant(
            row.cpu(), _applied(gain, eps), eps.value, order or ORDERS[0], placement=placement
        )
        if not _alike(y, expected):
            wrong.append(name)
    return tuple(wrong)


def _applied(gain: torch.Tensor, eps: Eps) -> torch.Tensor:
    """The gain as it is, or 1 + gain in fp32 where a gain of 1 doubles the output."""
    return gain if eps.scale == 1 else 1 + gain.float()


def _alike(y: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal where the value is special; elsewhere within 1/64, which leaves the order its ulp."""
    plain = expected.isfinite() & (expected != 0)
    if bool(differing(y, expected)[~plain].any()):
        return False
    y, expected = y.double()[plain], expected.double()[plain]
    return bool(((y - expected).abs() <= expected.abs() / 64).all())
