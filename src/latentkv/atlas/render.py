"""The templates, and what they are given to write with."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .. import __version__
from ..compare import config_place, shape
from ..describe_formulas import scientific
from ..models import Model
from ..models.hosts import address, ranges
from ..pages import Card, CitedFile, Page
from ..terminal_count import share
from .copies import Copies, Excerpt
from .formula import mathml, powers
from .pictures import bar

_OPERATOR = re.compile(" ([=×→+]) ")

# The pages across the models: address, what links call it, what it has.
ACROSS = (
    ("compare.html", "Compare", "the three side by side, their differences marked"),
    ("rounding.html", "Rounding", "one row's bits through both orders of gain and cast"),
    ("records.html", "Records", "what the cache keeps of a token, byte by byte"),
    ("context.html", "Context", "cache bytes against context length"),
    ("check.html", "Check", "who computes what the models do, measured from outputs"),
    ("search.html", "Search", "every page and every component of the three trees"),
)


class Templates:
    """Draws pages. ``copies`` is the reader's folder, or None."""

    def __init__(self, copies: Copies | None, models: Sequence[Model]) -> None:
        self._copies = copies
        self._environment = Environment(
            loader=PackageLoader(__package__),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._environment.filters.update(
            math=mathml,
            number=lambda value: f"{value:,}",
            percent=percent,
            powers=powers,
            scientific=scientific,
            setting=_setting,
            share=share,
            shape=shape,
            svg=Markup,  # pictures escape what they write
            unbroken=unbroken,
        )
        self._environment.globals.update(
            across=ACROSS,
            bar=lambda part: Markup(bar(part)),
            config_place=config_place,
            cited=cited,
            excerpts=self._excerpts,
            links=links,
            of_card=of_card,
            titles={model.name: model.display for model in models},
            version=__version__,
            zip=zip,
            with_copies=copies is not None,
        )

    def draw(self, path: str, template: str = "", **given: Any) -> tuple[str, str]:
        """A page: its path, and its text."""
        root = posixpath.relpath(".", posixpath.dirname(path) or ".")
        found = self._environment.get_template(f"{template or path}.j2")
        return path, found.render(root="" if root == "." else f"{root}/", path=path, **given)

    def _excerpts(self, file: CitedFile, label: str) -> list[Excerpt]:
        if self._copies is None:
            return []
        return [self._copies.excerpt(file, lines) for lines in ranges(label)]


def links(file: CitedFile, label: str) -> list[tuple[str, str]]:
    """Each range of lines as the page writes it, and the address where it can be read."""
    return [
        (str(lines), address(file.repository, file.path, file.revision, lines))
        for lines in ranges(label)
    ]


def cited(page: Page, name: str) -> CitedFile:
    """The file that a page's citations call ``name``."""
    return {file.name: file for file in page.files}[name]


def of_card(card: Card) -> CitedFile:
    """The file in which a source stands."""
    return CitedFile(card.file, card.repository, card.file, card.revision, "")


def percent(part: float) -> str:
    """Two digits: 26%, 1.4%, 0.00076%."""
    return f"{float(f'{100 * part:.2g}'):.10f}".rstrip("0").rstrip(".") + "%"


def unbroken(text: str) -> str:
    """Lines break before an operator, never after it, and not at all after ε."""
    return _OPERATOR.sub(" \\1\u00a0", text).replace("ε =", "ε\u00a0=")


def _setting(value: float) -> str:
    return f"{value:,.0f}" if value % 1 == 0 else f"{value:g}"
