"""Which contract do these outputs follow?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch

from ..bits import differing, same_bits, ulp_distance
from ..contracts import NormContract, Order
from ..definition import add_rms_norm, rms_norm
from . import probes
from .implementation import Implementation
from .observe import Observation, observe

# What another order of summation may change (docs/numerics.md): a share of bf16 outputs, by ulps.
FOLLOWS_SHARE = 1e-4
FOLLOWS_ULP = {"cast_then_gain": 2, "gain_then_cast": 1}

_HABITS = {
    "cast_then_gain": "rounds, then multiplies by the gain",
    "gain_then_cast": "multiplies by the gain, then rounds",
}


@dataclass(frozen=True)
class Report:
    """One implementation held against one contract.

    ``grade`` is "identical" (no bit differs), "follows" (at most 1e-4 of the outputs, by no more
    than another order of summation explains) or "deviates"; ``follows`` is whether it is one of
    the first two. ``order`` and ``eps`` are what the outputs show; None: no variant explains them.
    ``differs`` is the share of differing outputs, ``ulp`` the largest distance among them.
    """

    implementation: str
    follows: bool
    grade: str
    order: str | None
    eps: float | None
    eps_placement: str
    residual: str
    out_dtype: str
    special: str
    differs: float
    ulp: int
    batch_invariant: bool
    strided: str
    reason: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def identify(implementation: Any, contract: NormContract, name: str | None = None) -> Report:
    """Identify an implementation from its outputs alone and grade it by a contract.

    Arguments:
        implementation: an `Implementation`, or any of the forms that ``latentkv check --help``
            lists: ``f(x, gain, eps)``, a module class, a module.
        contract: such as ``models.get("kimi-k2").norms.kv_latent``; its eps is what is passed.
        name: for the report.

    Raises ImplementationError where it can't be run, mutates its input, returns another shape.
    """
    if not isinstance(contract, NormContract):
        raise TypeError(f"contract must be a NormContract, got {type(contract).__name__}")
    if not isinstance(implementation, Implementation):
        label = getattr(implementation, "__name__", type(implementation).__name__)
        implementation = Implementation(name or str(label), implementation)
    return judge(
        name or implementation.name,
        observe(implementation, contract.width, contract.eps),
        contract,
    )


def judge(name: str, seen: Observation, contract: NormContract) -> Report:
    """Grade what was observed of a norm of the contract's width."""
    expected = _expected(contract)
    plain = _distance(seen.y, expected, contract)
    faults = _faults(seen, contract, expected.dtype)
    if not faults and not plain.close:
        faults = [f"{plain.differs:.2%} of outputs differ, by up to {plain.ulp} ulp"]
    exact = plain.differs == 0
    if seen.residual.y is not None and seen.residual.total is not None:
        y, total = _expected_residual(contract)
        form = _distance(seen.residual.y, y, contract)
        exact = exact and form.differs == 0
        if not faults and (not form.close or seen.residual.y.dtype != y.dtype):
            faults = [
                f"with a residual, {form.differs:.2%} of outputs differ, by up to {form.ulp} ulp"
            ]
        if not same_bits(seen.residual.total, total):
            faults.append("its residual sum is not x + residual, rounded once")
    if faults:
        grade, reason = "deviates", "; ".join(faults)
    elif exact:
        grade, reason = "identical", "every bit equal"
    else:
        grade, reason = "follows", "as another order of summation would"
    return Report(
        implementation=name,
        follows=not faults,
        grade=grade,
        order=seen.order,
        eps=seen.eps.value,
        eps_placement=seen.eps.placement,
        residual=seen.residual.summed,
        out_dtype=_name(seen.y.dtype),
        special=", ".join(seen.special) or "as defined",
        differs=plain.differs,
        ulp=plain.ulp,
        batch_invariant=seen.batch_invariant,
        strided=seen.strided,
        reason=reason,
    )


@dataclass(frozen=True)
class _Distance:
    differs: float
    ulp: int
    close: bool


def _distance(y: torch.Tensor, expected: torch.Tensor, contract: NormContract) -> _Distance:
    y = y.to(expected.dtype)
    differs = float(differing(y, expected).double().mean())
    ulp = int(ulp_distance(y, expected).max())
    close = differs <= FOLLOWS_SHARE and ulp <= FOLLOWS_ULP[contract.order]
    return _Distance(differs, ulp, close)


@cache
def _expected(contract: NormContract) -> torch.Tensor:
    x, gain = probes.sample(contract.width, "cpu")
    return rms_norm(x, gain, contract)


@cache
def _expected_residual(contract: NormContract) -> tuple[torch.Tensor, torch.Tensor]:
    _, gain = probes.sample(contract.width, "cpu")
    return add_rms_norm(*probes.residual_sample(contract.width, "cpu"), gain, contract)


def _faults(seen: Observation, contract: NormContract, dtype: torch.dtype) -> list[str]:
    faults = _of_eps(seen, contract.eps) + _of_rounding(seen, contract.order)
    if seen.y.dtype != dtype:
        faults.append(f"returns {_name(seen.y.dtype)}, not {_name(dtype)}")
    if not seen.batch_invariant:
        faults.append("a row's bits depend on the other rows")
    elif not seen.repeatable:
        faults.append("gives other bits when it is called again")
    if seen.strided not in ("same", "refused"):
        faults.append(seen.strided)
    if seen.special:
        faults.append(f"not as defined: {', '.join(seen.special)}")
    if seen.residual.summed == "rounded":
        faults.append("normalises the rounded residual sum")
    elif seen.residual.summed == "raises":
        faults.append("raises when it is given a residual")
    elif not seen.residual.steady:
        faults.append("its residual form depends on the other rows or on strides")
    elif seen.residual.summed == "unknown" and not faults:
        faults.append("no known residual form explains its outputs")
    return faults


def _of_eps(seen: Observation, wanted: float) -> list[str]:
    eps = seen.eps
    if eps.value is None:
        if eps.scale in (1, 2):
            return ["no eps explains its outputs for rows of equal features"]
        return [f"gives {eps.scale:.3g} for a row of equal features and a gain of 1, not 1"]
    faults = ["multiplies by 1 + gain"] if eps.scale != 1 else []
    if eps.placement == "none":
        faults.append(f"applies no eps, not {wanted:g}")
    elif eps.value != wanted:
        faults.append(f"applies eps {eps.value:g}, not {wanted:g}")
    if eps.placement == "outside":
        faults.append("adds eps outside the root")
    elif eps.placement == "floor":
        faults.append("takes eps as a lower bound of the mean square")
    return faults


def _of_rounding(seen: Observation, wanted: Order) -> list[str]:
    if seen.eps.value is None:
        return []  # said of the eps
    if seen.order is None:
        return [f"no known rounding explains its outputs ({seen.nearest:.0%} off the nearest)"]
    faults = []
    if seen.order != wanted:
        faults.append(_HABITS[seen.order])
    if seen.store == "truncated":
        faults.append("truncates instead of rounding")
    if seen.rstd == "rounded":
        faults.append("rounds 1/rms before using it")
    return faults


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
