"""The command line: it chooses an object and hands it to the terminal or prints it as JSON.

Nothing here imports torch; a command that needs it imports it when it runs.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, TypeVar

import typer

from . import __version__, models
from .chosen import check_path_known, model_or_config
from .circumstances import today, versions
from .cli_atlas import atlas
from .cli_count import count
from .cli_show import show
from .command import JsonOption, fail, print_json, status

app = typer.Typer(
    name="latentkv",
    help="The key-value latent of multi-head latent attention, exact to the bit.",
    epilog="Models: " + ", ".join(models.names()) + ".",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # brackets in the help are shapes, not markup
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMPONENTS = ("norm", "path")  # what `check` and `bench` know, the default first

T = TypeVar("T", bound="models.Model | models.Configured")


def _version(wanted: bool) -> None:
    if not wanted:
        return
    import torch

    with _environment():
        from . import _library

    print(f"latentkv {__version__}")
    print(f"torch {torch.__version__}")
    print(f"backend {_library.backend()}")
    print(f"instruction set {_library.instruction_set()}")
    raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the versions of latentkv and torch, the backend and its instruction set.",
        ),
    ] = False,
) -> None:
    pass


app.command()(show)
app.command()(count)


@app.command()
def check(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Hold them to this model's contract alone, and print all that was measured. A "
            "name, or the path of a config.json or of its folder.",
            metavar="MODEL",
            show_default=False,
        ),
    ] = None,
    component: Annotated[
        str | None,
        typer.Argument(
            help="What of it: norm, the latent's RMSNorm (the default), or path, from the "
            "down-projection to the cache. It may stand alone.",
            metavar="COMPONENT",
            show_default=False,
        ),
    ] = None,
    impl: Annotated[
        list[str] | None,
        typer.Option(
            "--impl",
            metavar="SPEC",
            help="Test yours, and only it: MODULE:NAME or FILE.py:NAME. May be repeated.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Accept only implementations with identical bits.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Find out who follows the models' latent norm, or key-value path, from outputs alone.

    Every implementation found here is run and identified. Of a norm: the order of gain and cast,
    the eps that it really applies, residual sum, output dtype, batch dependence, strided input,
    special values. Of a path: is the key rotated, into which layout, with which roundings; is the
    latent quantised, by which scale rule; what happens at slot -1. Without MODEL, each is held
    against each model's contract.

    \b
    --impl tests yours instead: MODULE:NAME or FILE.py:NAME, where the working
    directory is importable and NAME is one of
      a function      f(x, gain, eps) -> y
                      with a parameter named residual, also
                      f(x, gain, eps, residual=r) -> (y, sum)
      a module class  C(width) or C(width, eps=...), with a parameter weight
                      [width]; forward(x) -> y, or with a parameter named
                      residual, also forward(x, residual=r) -> (y, sum)
      a module        an object of such a class: its weight is replaced in a
                      copy, its eps is kept
    x is bf16 [..., width], gain and weight are bf16 [width], eps is a float.

    \b
    For path, NAME is
      a function      f(down, gain, eps, positions) -> (latent, key)
                      with parameters named cos and sin, it is given the rows
                      of the contract's rotary table, fp32 [N, key_width / 2];
                      with cache=None and slots=None, it is also called to
                      write latent, then key, into cache, bf16
                      [blocks, block_size, width + key_width], at slots,
                      int64 [N], some of them -1 or equal
    One that writes must also be callable without cache and slots, and then
    return (latent, key); what it returns when it writes is not looked at. An fp8
    writer returns the latent after its round trip; 656-byte records are not
    looked at.

    \b
    down is bf16 [N, width + key_width] (512 + 64: latent, then key, its pairs
    side by side), gain is bf16 [width], eps is a float, positions int64 [N].
    Nothing may write to its inputs, other than cache.

    \b
    Grades
      identical  no bit differs in a million outputs
      follows    at most 1e-4 of them do, by an ulp or two: another order of
                 summation; of a key turned by its own table, at most 1e-2
      deviates   anything else, with the reason

    \b
    Exit codes
      0  accepted: each --impl follows MODEL (without MODEL: at least one of
         the models); with --strict, is identical
      1  an --impl deviates; without any, latentkv's own kernels do
      2  misuse: an unknown model or component, an --impl that can't be
         imported, raises, returns another shape or writes to its inputs
    """
    named, component = _chosen(model, component, model_or_config)
    every = [models.get(name) for name in models.names()] if named is None else [named]
    # A configuration is called what it was given as: so the child process finds it again.
    names = [one.name if isinstance(one, models.Model) else str(model) for one in every]
    with status("importing torch") as say:
        with _environment():
            from .conformance import survey as norm
            from .conformance.implementation import ImplementationError
            from .conformance.path import survey as path

        contracts = {name: one.norms.kv_latent for name, one in zip(names, every, strict=True)}
        try:
            if component == "path":
                chosen = [path.subject(name, one) for name, one in zip(names, every, strict=True)]
                survey = (
                    path.survey_given(impl, chosen, say) if impl else path.survey_found(chosen, say)
                )
            elif impl:
                survey = norm.survey_given(impl, contracts, say)
            else:
                survey = norm.survey_found(contracts, say)
        except ImplementationError as error:
            hint = ""
            if component == "norm" and path.resembles_path(impl or ()):
                command = " ".join(["latentkv check", *(names if named else []), "path"])
                hint = f"; did you mean `{command}`?"
            fail(f"{error}{hint}")
    if as_json:
        measured = {"versions": versions(), "date": today()}
        print_json(
            [{"model": one.model, **one.report.as_json(), **measured} for one in survey.results]
        )
        for entry in survey.skipped:
            print(f"skipped: {entry.name}: {entry.reason}", file=sys.stderr)
    else:
        from .check_path_table import print_path_survey
        from .check_table import print_survey

        show_survey = print_path_survey if component == "path" else print_survey
        show_survey(survey, {name: one.display for name, one in zip(names, every, strict=True)})
    if not norm.accepted(survey, strict):
        raise typer.Exit(1)


@app.command()
def bench(
    model: Annotated[
        str | None,
        typer.Argument(
            help=f"Whose contract and sizes; without it, {models.names()[0]}'s.",
            metavar="MODEL",
            show_default=False,
        ),
    ] = None,
    component: Annotated[
        str | None,
        typer.Argument(
            help="What of it: norm (the default) or path. It may stand alone.",
            metavar="COMPONENT",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Time the norm, or the path into a cache, against what else is installed and a copy.

    The norm, forward and with backward, against eager PyTorch, F.rms_norm, torch.compile and a copy
    of the same slice; compressing and writing into a cache against the same steps in eager PyTorch
    and a copy of the same rows into the same cache. Each function runs in a block of its own, in a
    child process on a warm heap. Takes about a minute.
    """
    named, component = _chosen(model, component, models.get)
    chosen = named or models.get(models.names()[0])
    from .bench import others_load, run

    busy = others_load()
    measurements = []
    with status("importing torch") as say:
        for heap in ("warm", "default"):
            for one in run(chosen.name, component, heap):
                say(f"{one.function}, {one.rows:,} rows {one.work}")
                measurements.append(one)
    if as_json:
        print_json([{"model": chosen.name, **asdict(one)} for one in measurements])
        return
    from .bench_table import print_bench

    print_bench(chosen, component, measurements)
    if busy:
        print(f"\n{busy}")


app.command()(atlas)


def _chosen(
    model: str | None, component: str | None, find: Callable[[str], T]
) -> tuple[T | None, str]:
    """MODEL and COMPONENT, where a component may stand alone."""
    if component is None and model is not None and _word(model) in COMPONENTS:
        model, component = None, model
    component = _word(component or COMPONENTS[0])
    listed = f"Components: {', '.join(COMPONENTS)}"
    if component not in COMPONENTS:
        fail(f"unknown component {component!r}. {listed}; the model comes first")
    try:
        found = None if model is None else find(model)
        if component == "path":
            check_path_known(found)
        return found, component
    except models.UnknownModelError as error:
        fail(f"{error}. {listed}")
    except ValueError as error:
        fail(str(error))


def _word(given: str) -> str:
    """A name as it is compared: in any case, as models' names are."""
    return given.strip().lower()


@contextmanager
def _environment() -> Iterator[None]:
    """Misuse of LATENTKV_BACKEND and its like, which importing the operators finds."""
    try:
        yield
    except (ImportError, RuntimeError, ValueError) as error:
        fail(str(error))


_GONE = 141  # as a shell reports SIGPIPE: 1 means something here


def main() -> None:
    """The entry point of the ``latentkv`` script and of ``python -m latentkv``."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    try:
        app(prog_name="latentkv")
    except SystemExit:
        # typer exits with 1 where a reader has gone away, and leaves this in stdout's place
        if "PacifyFlushWrapper" in type(sys.stdout).__name__:
            raise SystemExit(_GONE) from None
        raise
    except Exception:
        # A fault of ours: none of the exit codes that mean something.
        traceback.print_exc()
        raise SystemExit(70) from None
    finally:
        _flush()


def _flush() -> None:
    """Write what is still buffered; a reader that has gone away is no error to report."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(_GONE) from None
