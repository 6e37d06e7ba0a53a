"""A model's components as a tree, each counted to the last parameter. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .component import Component
from .sizes import Sized, sizes, title
from .whole import components


@dataclass(frozen=True)
class Node:
    """A component over the whole model.

    Arguments:
        title: what pages call it.
        name: in the checkpoint, N for a number; that of the parent where it has none of its own.
        weights: the last parts of its own weights' names.
        shapes: theirs, as the model computes with them.
        per_instance: learned values in one instance, parts included.
        instances: how often the whole model has it.
        total: per_instance times instances.
        share: of all that the checkpoint holds, from 0 to 1.
        active: values that one text token is multiplied with, in all instances together.
        kind: "lookup" for an embedding, of which a token reads a row; "apart" for what the language
            model runs without; "" for anything else.
        children: its parts.
    """

    title: str
    name: str
    weights: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    per_instance: int
    instances: int
    total: int
    share: float
    active: int
    kind: str
    children: tuple[Node, ...]

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Total:
    """A number of parameters, and what it counts."""

    name: str
    parameters: int
    counts: str


@dataclass(frozen=True)
class Tree:
    """A whole model: the root of its components, and the totals that are quoted for it."""

    root: Node
    totals: tuple[Total, ...]


def tree(model: Sized) -> Tree:
    """Every component of a model with its parameters: of an instance, all instances, its share.

    Arguments:
        model: one of `models`, one of `models.from_config`, or plain sizes.

    Raises ValueError for a configuration that doesn't give all sizes.
    """
    parts = components(sizes(model))
    whole = sum(map(_each, parts))
    nodes = tuple(_node(part, "", 1, 1, True, whole) for part in parts)
    active = sum(node.active for node in nodes)
    root = Node(
        title=title(model),
        name="",
        weights=(),
        shapes=(),
        per_instance=whole,
        instances=1,
        total=whole,
        share=1.0,
        active=active,
        kind="",
        children=nodes,
    )
    return Tree(root, tuple(_totals(root, parts)))


def _node(part: Component, prefix: str, around: int, used: int, runs: bool, whole: int) -> Node:
    """``around`` instances of what holds it, of which a token uses ``used``."""
    name = ".".join(filter(None, (prefix, part.name, "N" if part.numbers else "")))
    instances = around * part.count
    used *= part.count if part.active is None else part.active
    runs = runs and part.kind == ""
    children = tuple(_node(one, name, instances, used, runs, whole) for one in part.parts)
    own = sum(weight.parameters for weight in part.weights)
    each = own + sum(map(_each, part.parts))
    unused = sum(weight.unused for weight in part.weights)
    active = (own - unused) * used if runs else 0
    active += sum(child.active for child in children)
    return Node(
        title=part.title,
        name=name,
        weights=tuple(weight.name for weight in part.weights),
        shapes=tuple(weight.shape for weight in part.weights),
        per_instance=each,
        instances=instances,
        total=each * instances,
        share=each * instances / whole,
        active=active,
        kind=part.kind,
        children=children,
    )


def _each(part: Component) -> int:
    """Values in all numbers of a component that one instance of its parent has."""
    own = sum(weight.parameters for weight in part.weights)
    return part.count * (own + sum(map(_each, part.parts)))


def _totals(root: Node, parts: tuple[Component, ...]) -> Iterator[Total]:
    yield Total("stored", root.total, "every learned value in the checkpoint")
    if unused := sum(map(_unused, parts)):
        yield Total("without padding", root.total - unused, f"{unused:,} values only pad A_log")
    apart = [part for part in parts if part.kind == "apart"]
    if apart:
        named = " and ".join(_small(part.title) for part in apart)
        rest = root.total - sum(map(_each, apart))
        yield Total("language model", rest, f"without the {named}")
    table = sum(_each(part) for part in _language(parts) if part.kind == "lookup")
    yield Total("active", root.active, "what one text token is multiplied with, head included")
    if not table:  # the embedding is the head
        return
    yield Total(
        "active, with embedding",
        root.active + table,
        "and the embedding, of which a token reads one row",
    )


def _small(title: str) -> str:
    """As it stands in a sentence; an abbreviation keeps its capitals."""
    return title if title[1].isupper() else title[0].lower() + title[1:]


def _language(parts: tuple[Component, ...]) -> Iterator[Component]:
    for part in parts:
        if part.kind != "apart":
            yield part
            yield from _language(part.parts)


def _unused(part: Component) -> int:
    own = sum(weight.unused for weight in part.weights)
    return part.count * (own + sum(map(_unused, part.parts)))
