"""Which model's key-value path do these outputs follow?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...bits import differing, ulp_distance
from ...contracts import KVContract
from ..identify import FOLLOWS_SHARE, FOLLOWS_ULP, Report, judge
from ..observe import Observation
from .implementation import PathImplementation
from .key import TABLE_SHARE
from .latent import expected_latent, step_of
from .observe import PathObservation, observe_norm, observe_path


@dataclass(frozen=True)
class PathReport(Report):
    """One implementation of the path held against one model's contract.

    What `Report` says is said of the latent and its norm; for a quantised latent, eps, residual
    and special values are not measured. Beyond it:

    ``key`` is "rotated", "not rotated" or "unknown"; ``layout`` and ``roundings`` ("each_step",
    "result", or "table": cos and sin, then the result) are None where there are none to tell.
    ``table`` is whether cos and sin were the contract's ("given"), "its own" or "none".
    ``key_differs`` is the share of differing key features.

    ``latent`` is "as it is", "quantised", or "unknown"; ``rules`` are the scale rules that explain
    it, by `LatentQuant`'s names, and ``group`` how many features share a scale.

    ``faults`` are what makes it deviate, of which ``reason`` is made.

    ``slot_minus_1`` is "skipped", "written to slot 0", "written to the last slot", "writes
    elsewhere", "spoils other rows" (the fault is in those that have slots), "raises", "no slots"
    (it takes none) or "not tested"; ``duplicates`` is who wins of rows with equal slots: "last",
    "first", "one of them", "neither", "spoils other rows", "raises", "not tested", or "" where it
    takes no slots. Both are "not tested" where already the write of rows with a slot each fails.
    """

    key: str
    layout: str | None
    roundings: str | None
    table: str
    key_differs: float
    latent: str
    rules: tuple[str, ...]
    group: int | None
    slot_minus_1: str
    duplicates: str
    faults: tuple[str, ...]


def identify_path(implementation: Any, contract: KVContract, name: str | None = None) -> PathReport:
    """Identify a key-value path from its outputs alone and grade it by a contract.

    Arguments:
        implementation: a `PathImplementation`, or a function as ``latentkv check --help`` has it:
            ``f(down, gain, eps, positions) -> (latent, key)``.
        contract: such as ``models.get("kimi-k2").kv``; its eps is what is passed.
        name: for the report.

    Raises ImplementationError where it can't be run, mutates its input, returns another shape.
    """
    if not isinstance(contract, KVContract):
        raise TypeError(f"contract must be a KVContract, got {type(contract).__name__}")
    if contract.key_width == 0:
        raise ValueError("the contract has no shared key, so there is no path to identify")
    if not isinstance(implementation, PathImplementation):
        label = getattr(implementation, "__name__", type(implementation).__name__)
        implementation = PathImplementation(name or str(label), implementation)
    seen = observe_path(implementation, contract)
    norm = None if seen.of_latent.quantised else observe_norm(implementation, contract)
    return judge_path(name or implementation.name, seen, norm, contract)


def judge_path(
    name: str, seen: PathObservation, norm: Observation | None, contract: KVContract
) -> PathReport:
    """Grade what was observed. ``norm`` is that of a latent which is not quantised."""
    of_norm = None if norm is None else judge(name, norm, contract.norm)
    latent, key, slots = seen.of_latent, seen.of_key, seen.slots
    expected = expected_latent(contract)
    differs = float(differing(seen.latent, expected).double().mean())
    faults = _of_latent(seen, of_norm, contract, expected, differs)
    faults += [*_of_key(seen), *slots.faults]
    for part, dtype in seen.dtypes.items():
        if dtype != torch.bfloat16:
            faults.append(f"returns the {part} in {str(dtype).removeprefix('torch.')}")
    if not seen.batch_invariant:
        faults.append("a row's bits depend on the other rows")
    elif not seen.repeatable:
        faults.append("gives other bits when it is called again")
    if seen.strided not in ("same", "refused"):
        faults.append(seen.strided)
    faults = list(dict.fromkeys(faults))  # the norm's may say the same
    exact = differs == key.differs == 0 and (of_norm is None or of_norm.grade == "identical")
    if faults:
        grade, reason = "deviates", "; ".join(faults)
    elif exact:
        grade, reason = "identical", "every bit equal"
    else:
        grade, reason = "follows", _how_it_follows(key.differs, differs, of_norm)
    order, eps, placement = latent.order, None, "unknown"
    if of_norm is not None:
        order, eps, placement = of_norm.order, of_norm.eps, of_norm.eps_placement
    return PathReport(
        implementation=name,
        follows=not faults,
        grade=grade,
        order=order,
        eps=eps,
        eps_placement=placement,
        residual="none",
        out_dtype=str(seen.dtypes["latent"]).removeprefix("torch."),
        special="not measured" if of_norm is None else of_norm.special,
        differs=differs,
        ulp=int(ulp_distance(seen.latent, expected).max()),
        batch_invariant=seen.batch_invariant,
        strided=seen.strided,
        reason=reason,
        key=key.how.rotated,
        layout=key.how.layout,
        roundings=key.how.roundings,
        table=_table(seen),
        key_differs=key.differs,
        latent="quantised" if latent.quantised else "as it is" if order else "unknown",
        rules=latent.rules,
        group=latent.group,
        slot_minus_1=slots.negative,
        duplicates=slots.duplicates,
        faults=tuple(faults),
    )


def _of_latent(
    seen: PathObservation,
    of_norm: Report | None,
    contract: KVContract,
    expected: torch.Tensor,
    differs: float,
) -> list[str]:
    latent, quant = seen.of_latent, contract.quant
    if of_norm is not None:
        faults = [] if of_norm.follows else of_norm.reason.split("; ")
        if quant is not None:
            return [
                f"does not quantise the latent ({quant.rule}, groups of {quant.group})",
                *faults,
            ]
        far = int(ulp_distance(seen.latent, expected).max()) > FOLLOWS_ULP[contract.norm.order]
        if not faults and (far or differs > FOLLOWS_SHARE):
            faults.append(f"{differs:.2%} of latent features differ")
        return faults
    if quant is None:
        by = " or ".join(latent.rules) or "an unknown rule"
        return [f"quantises the latent (by {by}), which has to stay as it is"]
    if not latent.rules:
        return [
            f"no known scale rule explains its latents ({latent.off:.1%} of the features "
            f"are not those of the nearest, {latent.nearest})"
        ]
    faults = []
    if quant.rule not in latent.rules:
        faults.append(f"quantises the latent by {' or '.join(latent.rules)}, not {quant.rule}")
    if latent.group != quant.group:
        faults.append(f"quantises groups of {latent.group} features, not {quant.group}")
    if latent.order != contract.norm.order:
        faults.append(f"normalises in the order {latent.order}, not {contract.norm.order}")
    if latent.eps_differs:
        faults.append(f"applies another eps than {contract.norm.eps:g}")
    if not faults:
        step = step_of(expected, quant.group)
        far = bool(((seen.latent.double() - expected.double()).abs() > step).any())
        if far or differs > FOLLOWS_SHARE:
            faults.append(f"{differs:.2%} of latent features differ")
    return faults


def _table(seen: PathObservation) -> str:
    if seen.of_key.how.rotated == "not rotated":
        return "none"
    return "given" if seen.took_table else "its own"


def _of_key(seen: PathObservation) -> list[str]:
    key = seen.of_key
    if key.how.faults or key.differs == 0:
        return list(key.how.faults)
    if seen.took_table:
        return [f"{key.differs:.2%} of key features differ, though it was given cos and sin"]
    if key.near:
        return []
    return [
        f"{key.differs:.2%} of key features differ, more or further than the last bits of another "
        f"table explain ({TABLE_SHARE:.0%}, by an ulp or two)"
    ]


def _how_it_follows(key: float, latent: float, of_norm: Report | None) -> str:
    another = []
    if latent > 0 or (of_norm is not None and of_norm.grade != "identical"):
        another.append("order of summation")
    if key > 0:
        another.append("table of cos and sin")
    return f"as another {' and another '.join(another)} would"
