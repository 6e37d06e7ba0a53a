"""What ``latentkv check path`` prints: implementations down, models across; or one in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table

from .check_table import _STYLES, _by_implementation, _indent, percent
from .conformance.path import PathReport
from .conformance.survey import Result, Survey
from .terminal import Screen

_LEGEND = (
    "identical: no bit of latent or key differs. follows: at most 0.01% of the latent's features "
    "do, as another order of summation moves them, and at most 1% of the key's, as the last bits "
    "of another table of cos and sin do."
)
_SLOTS = {
    "written to slot 0": "slot 0",
    "written to the last slot": "last slot",
    "writes elsewhere": "elsewhere",
}
_OWN, _OTHERS = "contract's", "varies"  # latentkv computes what it is asked for


def print_path_survey(survey: Survey, titles: Mapping[str, str]) -> None:
    """All results: a table over the models, or with one model everything that was measured."""
    screen, results = Screen(), survey.results
    width = screen.console.width
    # With a column for each property of the key, or one for all; where neither fits, each
    # implementation becomes a paragraph.
    tables = (_table(screen, results, titles, full) for full in (True, False))
    unlimited = screen.console.options.update(max_width=10_000)
    fitting = [
        table
        for table in tables
        if screen.console.measure(table, options=unlimited).maximum <= width
    ]
    legend = screen.text(_LEGEND, "dim")
    parts: list[RenderableType]
    if len(titles) > 1 and fitting:
        parts = [fitting[0], "", legend, *_faults(screen, results, titles)]
    else:
        parts = [*_details(screen, results, titles), "", legend]
    if survey.skipped:
        lines = [f"skipped: {entry.name}: {entry.reason}" for entry in survey.skipped]
        parts += ["", *(screen.text(line, "dim") for line in lines)]
    screen.write([(part, width) for part in parts])


def _table(
    screen: Screen, results: Sequence[Result], titles: Mapping[str, str], full: bool
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2 if full else 1, 0, 0))
    models_ = titles.values() if full else (title.split("-")[0] for title in titles.values())
    key = ("key", "layout", "roundings") if full else ("key",)
    for heading in ("implementation", *key, "latent", "slot -1", *models_):
        table.add_column(screen.text(heading, "bold"), no_wrap=True)
    for name, row in _by_implementation(results).items():
        properties = [_properties(_path_report(result), full) for result in row.values()]
        several = _OWN if any(result.origin == "ours" for result in row.values()) else _OTHERS
        table.add_row(
            screen.text(name),
            *(
                screen.text(values[0] if len(set(values)) == 1 else several)
                for values in zip(*properties, strict=True)
            ),
            *(
                screen.text(row[model].report.grade, _STYLES[row[model].report.grade])
                for model in titles
            ),
        )
    return table


def _properties(report: PathReport, full: bool) -> tuple[str, ...]:
    layout, roundings = report.layout or "-", report.roundings or "-"
    if full:
        key: tuple[str, ...] = (report.key, layout, roundings)
    elif report.key == "rotated" and report.layout:
        key = (f"{layout}, {report.roundings or 'unknown'}",)
    else:
        key = (report.key,)
    negative = report.slot_minus_1
    return (*key, _latent(report), _SLOTS.get(negative, negative))


def _latent(report: PathReport) -> str:
    if report.latent != "quantised":
        return report.latent
    return " or ".join(report.rules) or "unknown rule"


def _faults(
    screen: Screen, results: Sequence[Result], titles: Mapping[str, str]
) -> list[RenderableType]:
    """Each fault once, with the models and the implementations that it is about."""
    grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, row in _by_implementation(results).items():
        models: dict[str, list[str]] = {}
        for model, result in row.items():
            for fault in _path_report(result).faults:
                models.setdefault(fault, []).append(titles[model])
        for fault, deviated in models.items():
            grouped.setdefault((fault, tuple(deviated)), []).append(name)
    lines: list[RenderableType] = [screen.text("deviates:", "dim")] if grouped else []
    for (fault, against), names in grouped.items():
        who = f" (against {', '.join(against)}): {'; '.join(names)}"
        lines.append(_indent(screen.text(fault, "bold") + screen.text(who)))
    return lines


def _details(
    screen: Screen, results: Sequence[Result], titles: Mapping[str, str]
) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for model, title in titles.items():
        lines += ["", screen.text(title, "bold underline")] if len(titles) > 1 else []
        for result in results:
            if result.model == model:
                lines += ["", *_detail(screen, _path_report(result))]
    return lines[1:]


def _detail(screen: Screen, report: PathReport) -> list[RenderableType]:
    key = report.key
    key += f", {report.layout} layout" if report.layout else ""
    key += f", rounded: {report.roundings}" if report.roundings else ""
    latent = report.latent
    if latent == "quantised":
        latent += f" by {_latent(report)}"
        latent += f" in groups of {report.group}" if report.group else ""
    facts = {
        "key": key,
        "cos and sin": report.table,
        "latent": latent,
        "order of its norm": report.order or "unknown",
        "slot -1": report.slot_minus_1,
        "rows": "independent" if report.batch_invariant else "depend on their neighbours",
        "strided input": report.strided,
    }
    if report.duplicates:
        facts["of equal slots is left"] = report.duplicates
    head = screen.text(report.implementation, "bold") + screen.text("  ")
    head += screen.text(report.grade, _STYLES[report.grade])
    if report.grade != "identical":
        head += screen.text(
            f"  {percent(report.differs)} of the latent's features, "
            f"{percent(report.key_differs)} of the key's"
        )
    body = "; ".join(f"{name}: {value}" for name, value in facts.items())
    return [head, _indent(screen.text(report.reason)), _indent(screen.text(body, "dim"))]


def _path_report(result: Result) -> PathReport:
    assert isinstance(result.report, PathReport)
    return result.report
