"""What ``latentkv count`` prints: the tree of components, the totals, the verdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from .accounting import Difference, Node, Report, Side, Total
from .counting import Count
from .screen import PAGE_WIDTH, Screen, Wrapped

DEPTH = 3  # levels below the model that are shown unless asked
_NARROW = 84  # below, the columns of one instance give way
_LISTED = 8  # differing names, after those that only numbers tell apart are put together


def print_count(count: Count, depth: int | None = None, wanted: str = "") -> None:
    """The tree down to a depth, or what ``wanted`` is found in; then totals and verdict."""
    screen = Screen()
    width = min(screen.console.width, PAGE_WIDTH)
    parts: list[RenderableType] = [screen.text(count.model, "bold"), ""]
    if count.tree is not None:
        rows = list(chosen(count.tree.root, depth, wanted))
        parts += [_table(screen, rows, width >= _NARROW), ""]
        if wanted and len(rows) == 1:
            parts += [screen.text(f"nothing below it has {wanted!r} in its title or name"), ""]
        parts += [_totals(screen, count.tree.totals), ""]
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
    if under or not level or wanted.casefold() in f"{node.title}\n{node.name}".casefold():
        yield level, node
        yield from under


def _table(screen: Screen, rows: Sequence[tuple[int, Node]], wide: bool) -> Table:
    table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=False, show_edge=False)
    table.add_column(screen.text("component", "dim"), overflow="fold", ratio=1)
    for name in ("each", "×") if wide else ():
        table.add_column(screen.text(name, "dim"), justify="right", no_wrap=True)
    for name in ("parameters", "share"):
        table.add_column(screen.text(name, "dim"), justify="right", no_wrap=True)
    for level, node in rows:
        each = (f"{node.per_instance:,}", f"{node.instances:,}") if wide else ()
        table.add_row(
            screen.text("  " * level + node.title, "bold" if level == 0 else ""),
            *each,
            f"{node.total:,}",
            _share(node.share),
        )
    return table


def _share(share: float) -> str:
    percent = 100 * share
    return "< 0.01%" if 0 < percent < 0.005 else f"{percent:.2f}%"


def _totals(screen: Screen, totals: Iterable[Total]) -> RenderableType:
    return screen.fields({total.name: f"{total.parameters:,}  {total.counts}" for total in totals})


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
    if side.parameters is not None:
        told.append(f"{side.parameters:,} parameters")
    if side.bytes is not None:
        told.append(f"{side.bytes:,} bytes")
    return ", ".join(told)


def _patterns(names: Sequence[str]) -> Iterator[str]:
    """Names that only their numbers tell apart, put together, the most frequent first."""
    counts: dict[str, list[str]] = {}
    for name in names:
        counts.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "N", name), []).append(name)
    ordered = sorted(counts.items(), key=lambda item: -len(item[1]))
    for pattern, found in ordered[:_LISTED]:
        yield f"{pattern} × {len(found):,}" if len(found) > 1 else found[0]
    if rest := sum(len(found) for _, found in ordered[_LISTED:]):
        yield f"and {rest:,} more (--json lists all)"


def _different(differences: Sequence[Difference]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for one in differences:
        groups.setdefault((one.derived, one.found), []).append(one.name)
    for (derived, found), names in list(groups.items())[:_LISTED]:
        yield f"{found} instead of {derived}: {next(_patterns(names))}"
    if len(groups) > _LISTED:
        yield f"and {len(groups) - _LISTED:,} more kinds (--json lists all)"


def _colour(report: Report) -> str:
    return "bold green" if report.matches else "bold red"
