"""A model's tree as a page shows it: each node with an anchor, and the page that it leads to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..accounting import Node
from ..models import Model
from ..pages import Page

_OPEN = 2  # levels of the tree that are open when the page is


@dataclass(frozen=True)
class Branch:
    """A node of the tree.

    Arguments:
        node: what is counted.
        anchor: its id on the model's page, made of the titles that lead to it.
        page: the component's name, if it has a page of its own; else "".
        open: whether its parts are shown at first.
        parts: its children.
    """

    node: Node
    anchor: str
    page: str
    open: bool
    parts: tuple[Branch, ...]


@dataclass(frozen=True)
class Entry:
    """Something to be found: where it is, what it is called, and what is said of it."""

    href: str
    title: str
    where: str
    said: str


def walk(root: Node, pages: Sequence[Page]) -> Branch:
    """The whole tree, the components that have a page among ``pages`` leading to it.

    Node and page are known to be the same by their title. What leads to a page is open at first,
    among branches of one kind in the last.
    """
    titles = {page.title: page.component for page in pages if page.learned}
    return _branch(root, "", 0, titles, True)


def pages(model: Model, shown: Sequence[Page]) -> Iterator[Entry]:
    """A model's page, and those of its components."""
    said = "the key–value path step by step, and the whole model as a tree"
    yield Entry(f"models/{model.name}/index.html", model.display, model.repository, said)
    for page in shown:
        href = f"models/{model.name}/{page.component}.html"
        yield Entry(href, page.title, model.display, page.summary)


def nodes(model: Model, root: Branch) -> Iterator[Entry]:
    """The nodes of its tree that have no page of their own."""
    for part in root.parts:
        yield from _nodes(part, f"models/{model.name}/index.html", model.display)


def _nodes(branch: Branch, file: str, where: str) -> Iterator[Entry]:
    """``where`` is what leads to it."""
    node = branch.node
    if not branch.page:
        each = f"{node.per_instance:,} × {node.instances:,} = " if node.instances > 1 else ""
        said = f"{node.name}: {each}{node.total:,}"
        yield Entry(f"{file}#{branch.anchor}", node.title, where, said)
    for part in branch.parts:
        yield from _nodes(part, file, f"{where} › {node.title}")


def _branch(node: Node, above: str, level: int, titles: dict[str, str], shown: bool) -> Branch:
    """``shown``: whether what leads to a page is to be open."""
    anchor = f"{above}.{_slug(node.title)}" if above else _slug(node.title)
    leading = [child for child in node.children if child.kind != "apart" and _leads(child, titles)]
    parts = tuple(
        _branch(child, anchor, level + 1, titles, shown and child is leading[-1])
        if leading
        else _branch(child, anchor, level + 1, titles, False)
        for child in node.children
    )
    opened = node.kind != "apart" and (level < _OPEN or shown)
    return Branch(node, anchor, "" if parts else titles.get(node.title, ""), opened, parts)


def _leads(node: Node, titles: dict[str, str]) -> bool:
    return any(not one.children and one.title in titles for one in node.walk())


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
