"""Many implementations against many contracts: what ``latentkv check`` runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from ..contracts import NormContract
from .apart import Apart
from .identify import Report, judge
from .implementation import Implementation, ImplementationError, load
from .known import Known, Skipped, found, under_compile
from .observe import Observation, observe

Origin = Literal["ours", "found", "given"]


@dataclass(frozen=True)
class Result:
    """A report with the name of the model whose contract it was held against."""

    model: str
    report: Report
    origin: Origin


@dataclass
class Survey:
    """All results, and what could not be tested here, in the order in which they came."""

    results: list[Result] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


def survey_found(contracts: Mapping[str, NormContract], say: Callable[[str], None]) -> Survey:
    """Everything found here, against the contracts by model name; ``say`` hears what is next."""
    survey = Survey()
    rows: dict[str, list[Result]] = {}
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's deprecations
        names = {one.apart: one.name for one in under_compile() if isinstance(one, Known)}
        apart = stack.enter_context(Apart(tuple(names), tuple(contracts))) if names else None
        if apart:  # one thread each: with two on two cores, both wait for each other, 12 s for 9
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        for entry in found():
            if isinstance(entry, Skipped):
                survey.skipped.append(entry)
                continue
            rows[entry.name] = []
            if entry.apart:
                continue  # its place in the table; it is on its way
            say(entry.name)
            try:
                origin: Origin = "ours" if entry.ours else "found"
                rows[entry.name] += _results(entry, contracts, origin)
            except ImplementationError as error:
                survey.skipped.append(Skipped(entry.name, str(error)))
        if apart:
            say(" and ".join(names.values()))
            try:
                for model, report in apart.reports():
                    name = names[report.implementation]
                    rows[name].append(Result(model, replace(report, implementation=name), "found"))
            except ImplementationError as error:
                survey.skipped += (Skipped(name, str(error)) for name in names.values())
    survey.results = [result for results in rows.values() for result in results]
    return survey


def survey_given(
    specs: Sequence[str], contracts: Mapping[str, NormContract], say: Callable[[str], None]
) -> Survey:
    """The user's implementations, by ``MODULE:NAME``. Raises ImplementationError."""
    survey = Survey()
    for spec in specs:
        say(spec)
        survey.results += _results(Known(spec, _always(load(spec))), contracts, "given")
    return survey


def accepted(survey: Survey, strict: bool) -> bool:
    """Whether what was asked of the implementations holds.

    latentkv's own have to be identical under every contract. Of what else is found here nothing
    is asked. The user's have to follow (``strict``: be identical under) at least one contract:
    the models ask for different orders, so to hold yours to one, survey that one alone.
    """
    if not all(one.report.grade == "identical" for one in survey.results if one.origin == "ours"):
        return False
    given: dict[str, bool] = {}
    for one in survey.results:
        if one.origin == "given":
            good = one.report.grade == "identical" if strict else one.report.follows
            name = one.report.implementation
            given[name] = given.get(name, False) or good
    return all(given.values())


def _always(implementation: Implementation) -> Callable[[NormContract], Implementation]:
    return lambda _: implementation


def _results(
    entry: Known, contracts: Mapping[str, NormContract], origin: Origin
) -> Iterator[Result]:
    """One observation serves all contracts that ask the same of the implementation."""
    seen: dict[tuple[int, float, str], Observation] = {}
    for model, contract in contracts.items():
        key = (contract.width, contract.eps, contract.order if entry.ours else "")
        if key not in seen:
            implementation: Implementation = entry.build(contract)
            seen[key] = observe(implementation, contract.width, contract.eps)
        yield Result(model, judge(entry.name, seen[key], contract), origin)
