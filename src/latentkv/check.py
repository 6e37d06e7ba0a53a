"""``latentkv check``: run the survey, print it, and turn it into an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer

from .check_table import print_survey
from .cli import fail, print_json
from .conformance.implementation import ImplementationError
from .conformance.known import Skipped
from .conformance.survey import Result, survey, survey_given
from .models.spec import Model


def run(models: Sequence[Model], specs: Sequence[str], *, strict: bool, as_json: bool) -> None:
    """Check what is found here, or what ``specs`` name, against the models' contracts.

    Exits with 1 if a given implementation is not accepted under any of the models asked about
    (without any given: if latentkv's own are not identical), with 2 if one can't be tested.
    """
    contracts = {model.name: model.norms.kv_latent for model in models}
    results: list[Result] = []
    skipped: list[Skipped] = []
    with _progress() as say:
        try:
            entries = survey_given(specs, contracts, say) if specs else survey(contracts, say)
            for entry in entries:
                if isinstance(entry, Skipped):
                    skipped.append(entry)
                else:
                    results.append(entry)
        except ImplementationError as error:
            fail(str(error))
    if as_json:
        print_json([{"model": one.model, **one.report.as_json()} for one in results])
        for entry in skipped:
            print(f"skipped: {entry.name}: {entry.reason}", file=sys.stderr)
    else:
        print_survey(results, skipped, {model.name: model.display for model in models})
    judged = [one for one in results if specs or one.ours]
    if not _accepted(judged, strict or not specs):
        raise typer.Exit(1)


def _accepted(results: Sequence[Result], strict: bool) -> bool:
    """Whether each implementation is accepted under at least one of the contracts.

    The models ask for different orders, so none follows them all: to hold yours to one, name it.
    latentkv's own take the order from the contract and so have to be identical under each.
    """
    accepted: dict[str, bool] = {}
    for one in results:
        good = one.report.grade == "identical" if strict else one.report.follows
        name = one.report.implementation
        either = accepted.get(name, one.ours)
        accepted[name] = (either and good) if one.ours else (either or good)
    return all(accepted.values())


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is being checked, on a terminal's standard error; elsewhere, nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("importing torch") as status:
        yield lambda name: status.update(f"checking {name}")
