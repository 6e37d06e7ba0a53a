"""``latentkv count``: parameters, exactly, and whether the checkpoint agrees. No torch."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from . import models
from .command import JsonOption, bar, fail, print_json


def count(
    what: Annotated[
        str,
        typer.Argument(
            help="A model's name ("
            + ", ".join(models.names())
            + "), a folder, a .safetensors file, an index file or config.json alone, or a "
            "repository of the Hugging Face hub (owner/name).",
            metavar="MODEL|PATH|REPO",
            show_default=False,
        ),
    ],
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth", min=0, metavar="N", help="Levels of the tree (3).", show_default=False
        ),
    ] = None,
    wanted: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="TEXT",
            help="Only components with TEXT in their title or name, at any level.",
            show_default=False,
        ),
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Compare the checkpoint with this model instead of its config.json's.",
            show_default=False,
        ),
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(
            "--revision",
            metavar="REV",
            help="A branch, tag or commit of the repository.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Count parameters exactly; does the checkpoint agree?

    A name gives the model's components, derived from its sizes. A checkpoint, on disk or on the
    hub, is compared with what its config.json says, tensor by tensor; of its files only the headers
    are read. A 4-bit code counts as one parameter, a scale as none. An index file alone has names
    and a total size, and no shapes.

    --json prints everything, whatever --depth and --filter say.

    \b
    Examples
      latentkv count kimi-k3 --filter "latent rmsnorm"
      latentkv count deepseek-ai/DeepSeek-V3.2-Exp
      latentkv count path/to/folder

    \b
    Exit codes
      0  counted; the checkpoint, if one was read, agrees
      1  the checkpoint differs, or there is nothing to compare it with
      2  misuse, or something that can't be read; nothing is counted then
    """
    from .counting import count as counted

    try:
        with bar() as progress:
            result = counted(what, model=model, revision=revision, progress=progress)
    except ValueError as error:  # each of those that `counting.count` names is one
        fail(str(error))
    if as_json:
        print_json(asdict(result))
    else:
        from .terminal_count import print_count

        print_count(result, depth, wanted)
    read = result.found is not None
    if read and (result.report is None or not result.report.matches):
        raise typer.Exit(1)
