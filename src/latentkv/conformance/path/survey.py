"""Many paths against many models: what ``latentkv check path`` runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ...models import Configured, Model
from ..implementation import ImplementationError, load_object, parameters
from ..known import Skipped
from ..observe import Observation
from ..survey import Origin, Result, Survey
from .identify import judge_path
from .implementation import PathImplementation
from .known import KnownPath, Subject, found
from .observe import observe_norm, observe_path


def subject(name: str, model: Model | Configured) -> Subject:
    """What a path is held against, under this name; a configuration must give a key-value path."""
    if isinstance(model, Model):
        yarn = None if model.rotation is None else model.rotation.yarn
        return Subject(name, model.kv, yarn)
    assert model.kv is not None  # the command line has refused it, with the reason
    return Subject(name, model.kv, model.yarn)


def survey_found(chosen: Sequence[Subject], say: Callable[[str], None]) -> Survey:
    """Everything found here, against these models; ``say`` hears what is next."""
    survey = Survey()
    with warnings.catch_warnings(), _one_thread():
        warnings.simplefilter("ignore")  # other people's deprecations
        for entry in found():
            if isinstance(entry, Skipped):
                survey.skipped.append(entry)
                continue
            say(entry.name)
            try:
                survey.results += _results(entry, chosen, "ours" if entry.ours else "found")
            except ImplementationError as error:
                survey.skipped.append(Skipped(entry.name, str(error)))
    return survey


def survey_given(
    specs: Sequence[str], chosen: Sequence[Subject], say: Callable[[str], None]
) -> Survey:
    """The user's paths, by ``MODULE:NAME``. Raises ImplementationError."""
    survey = Survey()
    for spec in specs:
        say(spec)
        survey.results += _results(KnownPath(spec, _loaded(spec)), chosen, "given")
    return survey


def resembles_path(specs: Sequence[str]) -> bool:
    """Whether one of these takes a path's arguments."""
    for spec in specs:
        try:
            function = load_object(spec)
        except ImplementationError:
            continue
        if {"down", "positions"} <= set(parameters(getattr(function, "forward", function))):
            return True
    return False


@contextmanager
def _one_thread() -> Iterator[None]:
    """Many small operations: where others use the cores as well, threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _loaded(spec: str) -> Callable[[Subject], PathImplementation]:
    implementation = PathImplementation(spec, load_object(spec))
    return lambda _: implementation


def _results(entry: KnownPath, chosen: Sequence[Subject], origin: Origin) -> Iterator[Result]:
    """One observation of the norm, the slowest part, serves all models whose norms are alike."""
    norms: dict[tuple[int, float, str], Observation] = {}
    for model in chosen:
        contract, implementation = model.kv, entry.build(model)
        seen, norm = observe_path(implementation, contract), None
        if not seen.of_latent.quantised:
            asked = contract.norm
            alike = (asked.width, asked.eps, asked.order if entry.ours else "")
            if alike not in norms:
                norms[alike] = observe_norm(implementation, contract)
            norm = norms[alike]
        yield Result(model.name, judge_path(entry.name, seen, norm, contract), origin)
