"""Many implementations against many contracts: what ``latentkv check`` runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..contracts import NormContract
from .identify import Report, judge
from .implementation import Implementation, ImplementationError, load
from .known import Known, Skipped, found
from .observe import Observation, observe


@dataclass(frozen=True)
class Result:
    """A report with the name of the model whose contract it was held against."""

    model: str
    report: Report
    ours: bool


def survey(
    contracts: Mapping[str, NormContract], say: Callable[[str], None]
) -> Iterator[Result | Skipped]:
    """Everything found here, against the contracts by model name; ``say`` hears what is next."""
    entries = found()
    while True:
        with warnings.catch_warnings():  # other people's deprecations
            warnings.simplefilter("ignore")
            entry = next(entries, None)
            if entry is None:
                return
            if isinstance(entry, Skipped):
                yield entry
                continue
            say(entry.name)
            try:
                results = list(_results(entry, contracts))
            except ImplementationError as error:
                yield Skipped(entry.name, str(error))
                continue
        yield from results


def survey_given(
    specs: Iterable[str], contracts: Mapping[str, NormContract], say: Callable[[str], None]
) -> Iterator[Result]:
    """The user's implementations. Raises ImplementationError."""
    for spec in specs:
        say(spec)
        implementation = load(spec)
        yield from _results(Known(spec, _always(implementation)), contracts)


def _always(implementation: Implementation) -> Callable[[NormContract], Implementation]:
    return lambda _: implementation


def _results(entry: Known, contracts: Mapping[str, NormContract]) -> Iterator[Result]:
    """One observation serves all contracts that ask the same of the implementation."""
    seen: dict[tuple[int, float, str], Observation] = {}
    for model, contract in contracts.items():
        key = (contract.width, contract.eps, contract.order if entry.ours else "")
        if key not in seen:
            implementation: Implementation = entry.build(contract)
            seen[key] = observe(implementation, contract.width, contract.eps)
        yield Result(model, judge(entry.name, seen[key], contract), entry.ours)
