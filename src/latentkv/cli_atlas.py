"""``latentkv atlas``: static pages of the models. No torch."""

from __future__ import annotations

from typing import Annotated

import typer

from .command import fail


def atlas(
    out: Annotated[
        str,
        typer.Argument(
            help="The folder to write: a new one, an empty one, or one with an earlier atlas, "
            "which is replaced.",
            metavar="OUT",
            show_default=False,
        ),
    ],
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check",
            metavar="FILE",
            help="What `latentkv check --json` or `latentkv check path --json` printed, for the "
            "page about implementations. May be repeated.",
        ),
    ] = None,
    sources: Annotated[
        str | None,
        typer.Option(
            "--sources",
            metavar="DIR",
            help="Your own copies of the models' files, at DIR/REPOSITORY/PATH, DIR/PATH or under "
            "the file's name. A passage is shown where it is the pinned revision's.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the atlas: a page for every component, from the objects that run.

    Static pages, readable without script and from the disk: each model's whole tree with its
    counts, each component of the key-value path with formula, shapes, parameters, arithmetic, code
    and sources, the rounding chain and the cache records as pictures, the models side by side.

    \b
    Examples
      latentkv atlas pages
      latentkv check --json > norm.json
      latentkv atlas pages --check norm.json --sources ~/models

    \b
    Exit codes
      0  written
      2  misuse, or something that can't be read or written
    """
    try:
        import jinja2  # noqa: F401
        import latex2mathml  # noqa: F401
    except ImportError as error:
        fail(f"{error.name} is not installed: pip install jinja2 latex2mathml")
    from .atlas import AtlasError, build, write

    try:
        files = build(checks=check or (), sources=sources)
        write(files, out)
    except AtlasError as error:
        fail(str(error))
    print(f"{len(files)} files in {out}; open {out.rstrip('/')}/index.html")
