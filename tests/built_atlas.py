"""The atlas as tests read it: built once, each page a tree of elements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from typer.testing import CliRunner

from latentkv.atlas import build
from latentkv.cli import app

VOID = {"meta", "link", "br", "input"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.walk()

    @property
    def text(self) -> str:
        """What is read, with single blanks; of formulas nothing, of what is hidden as well."""
        return " ".join("".join(self._pieces()).split())

    @property
    def raw(self) -> str:
        return "".join(one if isinstance(one, str) else one.raw for one in self.children)

    def _pieces(self) -> Iterator[str]:
        for child in self.children:
            if isinstance(child, str):
                yield child
            elif child.tag == "br":
                yield "\n"
            elif child.tag != "math" and "out" not in child.classes:
                yield from child._pieces()

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    def all(self, wanted: str) -> list[Element]:
        """By tag, .class or #id."""
        return [one for one in self.walk() if one._is(wanted)]

    def one(self, wanted: str) -> Element:
        found = self.all(wanted)
        assert len(found) == 1, f"{len(found)} of {wanted}"
        return found[0]

    def _is(self, wanted: str) -> bool:
        if wanted.startswith("."):
            return wanted[1:] in self.classes
        if wanted.startswith("#"):
            return self.attributes.get("id") == wanted[1:]
        return self.tag == wanted


class _Reader(HTMLParser):
    """Refuses what browsers mend in silence: a tag that isn't closed, an attribute given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = self._element(tag, attrs)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element(tag, attrs)

    def _element(self, tag: str, attrs: list[tuple[str, str | None]]) -> Element:
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> has an attribute twice: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        return element

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"line {self.getpos()[0]}: </{tag}> in {self._open[-1]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def read(self, text: str) -> Element:
        self.feed(text)
        self.close()
        assert self._open == [self.root], f"not closed: {[one.tag for one in self._open[1:]]}"
        return self.root


def read(text: str) -> Element:
    return _Reader().read(text)


@cache
def files() -> dict[str, str]:
    """Without results and without copies."""
    return build()


@cache
def pages() -> dict[str, Element]:
    return {name: read(text) for name, text in files().items() if name.endswith(".html")}


def atlas(*arguments: str):
    return CliRunner().invoke(app, ["atlas", *map(str, arguments)])


def refused(*arguments: str) -> str:
    result = atlas(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    return line


# What `check --json` prints of the norm, and what it adds for the path.
ROW = {
    "model": "kimi-k3",
    "implementation": "Mine",
    "follows": False,
    "grade": "deviates",
    "order": None,
    "eps": None,
    "eps_placement": "unknown",
    "residual": "none",
    "out_dtype": "bfloat16",
    "special": "as defined",
    "differs": 0.2618,
    "ulp": 2**40,
    "batch_invariant": False,
    "strided": "same",
    "reason": "guesses",
    "versions": {"latentkv": "0.1.0", "torch": "2.13.0+cpu"},
    "date": "2026-11-30",
}
PATH = {
    "key": "rotated",
    "layout": "half",
    "roundings": "each_step",
    "table": "given",
    "key_differs": 0.5,
    "latent": "quantised",
    "rules": ["act_quant"],
    "group": 64,
    "slot_minus_1": "skipped",
    "duplicates": "last",
    "faults": ["guesses"],
}


def given(tmp_path: Path, content: object, name: str = "norm.json") -> Path:
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file
