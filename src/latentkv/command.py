"""What all commands share: misuse, JSON, and saying what is going on. No torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a page.")]


def fail(message: str) -> NoReturn:
    """Misuse: the message on standard error, exit code 2."""
    print(f"latentkv: {message}", file=sys.stderr)
    raise typer.Exit(2)


def print_json(value: Any) -> None:
    """Readable where the stream carries Unicode, escaped where it doesn't."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    try:
        text.encode()  # half of a surrogate pair: a path's byte that is no UTF-8
    except UnicodeEncodeError:
        unicode = False
    print(text if unicode else json.dumps(value, indent=2))


@contextmanager
def status(first: str) -> Iterator[Callable[[str], None]]:
    """What is going on, on a terminal's standard error; elsewhere, nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(first) as shown:
        yield lambda name: shown.update(name)


@contextmanager
def bar() -> Iterator[Callable[[int, int, str], None]]:
    """How many files are read, of how many, on a terminal's standard error; elsewhere, nothing."""
    if not sys.stderr.isatty():
        yield lambda done, total, name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("headers"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[file]}"),
    )
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    task = shown.add_task("", total=None, file="")

    def update(done: int, total: int, file: str) -> None:
        shown.start()  # with the first file: a name alone reads none
        shown.update(task, completed=done, total=total, file=file)

    try:
        yield update
    finally:
        shown.stop()
