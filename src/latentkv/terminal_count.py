"""What ``latentkv count`` prints: the tree of components, the totals, the verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from .accounting import Difference, Node, Report, Side, Total
from .counting import Count
from .screen import PAGE_WIDTH, Screen, Wrapped, printable

DEPTH = 3  # levels below the model that are shown unless asked
_NARROW = 84  # below, the columns of one instance give way
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_LISTED = 8  # differing names, after those that only numbers tell apart are put together


def print_count(count: Count, depth: int | None = None, wanted: str = "") -> None:
    """The tree down to a depth, or what ``wanted`` is found in; then totals and verdict."""
    screen = Screen()
    width = min(screen.console.width, PAGE_WIDTH)
    parts: list[RenderableType] = [screen.text(count.model, "bold"), ""]
    if count.tree is not None:
        rows = list(chosen(count.tree.root, depth, wanted))
        parts += [_table(screen, rows, width >= _NARROW), ""]
        if wanted:
            parts += [_found(screen, count.tree.root, wanted), ""]
        parts += [_totals(screen, count.tree.totals, width >= _NARROW), ""]
    if count.report is not None:
        parts += _report(screen, count.report)
    elif count.found is not None:
        parts += [screen.fields({"checkpoint": _side(count.found)}), ""]
    parts.append(
        Wrapped(
            screen.text(count.verdict, "bold" if count.report is None else _colour(count.report))
        )
    )
    for note in count.notes:
        parts.append(Padding(Wrapped(screen.text(note, "dim")), (1, 0, 0, 2)))
    screen.write([(part, width) for part in parts])


def chosen(root: Node, depth: int | None, wanted: str) -> Iterator[tuple[int, Node]]:
    """The nodes to show, each with its level.

    With ``wanted``, those in whose title or name it is found, in any case, and what leads to them.
    Without a depth, they are looked for at every level; without either, three levels are shown,
    and of what the language model runs without only the first.
    """
    asked = depth is not None or bool(wanted)
    levels = DEPTH if depth is None else depth
    yield from _below(root, 0, 99 if wanted and depth is None else levels, wanted, asked)


def _below(
    node: Node, level: int, depth: int, wanted: str, asked: bool
) -> Iterator[tuple[int, Node]]:
    opened = level < depth and (asked or node.kind != "apart")
    under = [
        row
        for child in (node.children if opened else ())
        for row in _below(child, level + 1, depth, wanted, asked)
    ]
    if under or not level or _has(node, wanted):
        yield level, node
        yield from under


def _has(node: Node, wanted: str) -> bool:
    return wanted.casefold() in "\n".join((node.title, node.name, *node.weights)).casefold()


def _found(screen: Screen, root: Node, wanted: str) -> RenderableType:
    found = list(_outermost(root, wanted))
    if not found:
        return screen.text(f"no component has {wanted!r} in its title or name")
    total = sum(node.total for node in found)
    return screen.text(f"{total:,} parameters in what has {wanted!r} in its title or name")


def _outermost(node: Node, wanted: str) -> Iterator[Node]:
    """What matches, and not what is inside it."""
    if _has(node, wanted):
        yield node
    else:
        for child in node.children:
            yield from _outermost(child, wanted)


def _table(screen: Screen, rows: Sequence[tuple[int, Node]], wide: bool) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=False, show_edge=False)
    table.add_column(screen.text("component", "dim"), overflow="fold", ratio=1)
    for name in ("each", "×") if wide else ():
        table.add_column(screen.text(name, "dim"), justify="right", no_wrap=True)
    for name in ("parameters", "share"):
        table.add_column(screen.text(name, "dim"), justify="right", no_wrap=True)
    for level, node in rows:
        each = (f"{node.per_instance:,}", f"{node.instances:,}") if wide else ()
        title = screen.text(node.title, "bold" if level == 0 else "")
        table.add_row(
            Padding(title, (0, 0, 0, 2 * level)),
            *each,
            f"{node.total:,}",
            share(node.share),
        )
    return table


def share(part: float) -> str:
    """A part of the whole in percent, and never 0 for something."""
    percent = 100 * part
    return "< 0.01%" if 0 < percent < 0.005 else f"{percent:.2f}%"


def _totals(screen: Screen, totals: Iterable[Total], wide: bool) -> RenderableType:
    if not wide:
        return screen.fields(
            {total.name: f"{total.parameters:,}\n{total.counts}" for total in totals}
        )
    grid = Table.grid(padding=(0, 2), pad_edge=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for total in totals:
        grid.add_row(total.name, f"{total.parameters:,}", screen.text(total.counts))
    return grid


def _report(screen: Screen, report: Report) -> list[RenderableType]:
    where = report.where + (f" at {report.revision}" if report.revision else "")
    told = {
        "checkpoint": where,
        "derived": _side(report.derived),
        "found": _side(report.found),
    }
    for name, missing in (("missing", report.missing), ("extra", report.extra)):
        if missing:
            told[name] = "\n".join(_patterns(missing))
    for name, differences in (("shapes", report.shapes), ("dtypes", report.dtypes)):
        if differences:
            told[name] = "\n".join(_different(differences))
    return [screen.fields(told), ""]


def _side(side: Side) -> str:
    told = [f"{side.tensors:,} tensors"]
    declared = " declared" if side.declared else ""
    if side.parameters is not None:
        told.append(f"{side.parameters:,} parameters{declared}")
    if side.bytes is not None:
        told.append(f"{side.bytes:,} bytes{declared}")
    return ", ".join(told)


def _patterns(names: Sequence[str]) -> Iterator[str]:
    """Names that only their numbers tell apart, put together, the most frequent first."""
    groups: dict[str, list[str]] = {}
    for name in map(printable, names):
        groups.setdefault(_NUMBER.sub("N", name), []).append(name)
    ordered = sorted(groups.values(), key=lambda group: -len(group))
    for group in ordered[:_LISTED]:
        yield f"{_together(group)} × {len(group):,}" if len(group) > 1 else group[0]
    if rest := sum(map(len, ordered[_LISTED:])):
        yield f"and {rest:,} more (--json lists all)"


def _together(names: Sequence[str]) -> str:
    """One name for several, N where their numbers differ."""
    numbers = zip(*map(_NUMBER.findall, names), strict=True)
    shown = iter([found[0] if len(set(found)) == 1 else "N" for found in numbers])
    return _NUMBER.sub(lambda _: next(shown), names[0])


def _different(differences: Sequence[Difference]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for one in differences:
        groups.setdefault((one.derived, one.found), []).append(one.name)
    for (derived, found), names in list(groups.items())[:_LISTED]:
        yield f"{found} instead of {derived}:"
        yield from (f"  {line}" for line in _patterns(names))
    if len(groups) > _LISTED:
        yield f"and {len(groups) - _LISTED:,} more kinds (--json lists all)"


def _colour(report: Report) -> str:
    return "bold green" if report.matches else "bold red"
