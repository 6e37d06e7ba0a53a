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
class Residual:
    """The form with a residual: x + residual, normalised before ("unrounded") or after ("rounded")
    it is rounded for storage."""

    summed: str  # or "unknown": neither explains y; "none": there is no such form; "raises"
    y: torch.Tensor | None = None
    total: torch.Tensor | None = None
    steady: bool = True  # the same bits for fewer rows and for strided ones


@dataclass(frozen=True)
class Observation:
    """Everything is measured; None and "unknown" mean that no known variant gives the outputs."""

    y: torch.Tensor  # of the whole sample, on the CPU
    eps: Eps
    order: str | None
    nearest: float  # share of outputs in which the best variant differs
    store: str  # "nearest" or "truncated"
    rstd: str  # "fp32" or "rounded"
    residual: Residual
    batch_invariant: bool
    repeatable: bool  # the first call's bits come again
    strided: str  # "same", "refused" or what is wrong
    special: tuple[str, ...]  # the cases that come out otherwise than defined


def observe(implementation: Implementation, width: int, eps: float) -> Observation:
    """Run every probe. Raises ImplementationError if a plain call fails.

    Strided rows come first: code compiled for any stride also serves packed rows, while the other
    way round it is compiled again (1.4 s each under torch.compile).
    """
    with torch.device("cpu"):  # whatever the default is here, or becomes on import
        return _observe(implementation, width, eps)


def _observe(implementation: Implementation, width: int, eps: float) -> Observation:
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
    order, store, rstd, nearest = _explain(few.cpu(), gain.cpu(), outputs, measured)
    return Observation(
        y=y,
        eps=measured,
        order=order,
        nearest=nearest,
        store=store,
        rstd=rstd,
        residual=_residual(implementation, gain, eps, measured, order),
        batch_invariant=batch_invariant,
        special=_special(implementation, width, eps, measured, order),
        strided=strided,
        repeatable=same_bits(implementation(x, gain, eps).cpu(), y),
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
    implementation: Implementation, gain: torch.Tensor, passed: float, eps: Eps, order: str | None
) -> Residual:
    if not implementation.has_residual:
        return Residual("none")
    x, residual = probes.residual_sample(len(gain), implementation.device)
    try:
        y, total = implementation.with_residual(x, residual, gain, passed)
        steady = _is_steady(implementation, x, residual, gain, passed, y, total)
    except ImplementationError as error:
        if not error.raised:
            raise
        return Residual("raises")
    x, residual, y, total = x.cpu(), residual.cpu(), y.cpu(), total.cpu()
    placement = "inside" if eps.placement in ("none", "unknown") else eps.placement
    shares: dict[str, float] = {}
    for summed in ("unrounded", "rounded"):
        for candidate in ORDERS if order is None else (order,):
            expected = variant(
                x,
                _applied(gain.cpu(), eps),
                passed if eps.value is None else eps.value,
                candidate,
                placement=placement,
                residual=residual,
                summed=summed,
            )
            share = float(differing(y.to(x.dtype), expected).double().mean())
            shares[summed] = min(share, shares.get(summed, 1.0))
    best = min(shares, key=lambda summed: shares[summed])
    return Residual(best if shares[best] <= _EXPLAINED else "unknown", y, total, steady)


def _is_steady(
    implementation: Implementation,
    x: torch.Tensor,
    residual: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    y: torch.Tensor,
    total: torch.Tensor,
) -> bool:
    wide = torch.cat([x, residual, x], dim=-1)  # both as slices of rows three times as wide
    width = x.shape[-1]
    calls = [
        (x[:1], residual[:1], y[:1], total[:1]),
        (x[:257], residual[:257], y[:257], total[:257]),
        (wide[:, :width], wide[:, width : 2 * width], y, total),
    ]
    for part, more, wanted, summed in calls:
        got, its = implementation.with_residual(part, more, gain, eps)
        if not same_bits(got, wanted) or not same_bits(its, summed):
            return False
    return True


def _is_batch_invariant(implementation: Implementation, y: torch.Tensor, eps: float) -> bool:
    """Whether a row keeps its bits alone, in other batches and positions, and beside NaNs."""
    x, gain = probes.sample(y.shape[-1], implementation.device)
    beside_nan = torch.full_like(x[:257], float("nan"))
    for row in (0, 1, 128, 256):
        alone = implementation(x[row : row + 1], gain, eps)[0].cpu()
        beside_nan[row] = x[row]
        if not same_bits(alone, y[row]):
            return False
    for rows in probes.BATCHES:
        times = -(-rows // len(x))
        batch = x.repeat(times, 1)[:rows] if times > 1 else x[:rows]
        result = implementation(batch, gain, eps).cpu()
        if not same_bits(result, y.repeat(times, 1)[:rows]):
            return False
    moved = implementation(x[:257].flip(0), gain, eps).cpu().flip(0)
    isolated = implementation(beside_nan, gain, eps).cpu()
    return same_bits(moved, y[:257]) and all(
        same_bits(isolated[row], y[row]) for row in (0, 1, 128, 256)
    )


def _strided(implementation: Implementation, width: int, eps: float) -> str:
    """Other ranks and strides, against the packed rows: "same", "refused", or what is wrong."""
    x, gain = probes.sample(width, implementation.device)
    x = x[:64]
    results: dict[str, torch.Tensor] = {}
    for name, (view, memory) in probes.views(x).items():
        before = memory.clone()
        try:
            results[name] = implementation(view, gain, eps).flatten(0, -2).cpu()
        except ImplementationError as error:
            if not error.raised:
                raise
            implementation(x, gain, eps)  # does it take packed rows?
            return "refused"
        if not same_bits(memory, before):
            raise ImplementationError(f"{implementation.name} writes beside its input x")
    packed = implementation(x, gain, eps).cpu()
    try:
        results["a single row without leading dimensions"] = implementation(x[0], gain, eps).cpu()
        results["no rows"] = implementation(x[:0], gain, eps).cpu()
    except ImplementationError as error:
        if not error.raised:
            raise
        return "refused"
    expected = {"a single row without leading dimensions": packed[0], "no rows": packed[:0]}
    wrong = [
        name
        for name, result in results.items()
        if not same_bits(result, expected.get(name, packed))
    ]
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
