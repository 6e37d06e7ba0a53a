"""What ``latentkv check path`` prints: implementations down, models across; or one in detail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table

from .check_table import _STYLES, _by_implementation, _indent, percent
from .conformance.path import PathReport
from .conformance.survey import Result, Survey
from .screen import Screen

_LEGEND = (
    "identical: no bit of latent or key differs. follows: at most 0.01% of the latent's features "
    "do, as another order of summation moves them, and at most 1% of the key's, as the last bits "
    "of another table of cos and sin do."
)
_SLOTS = {
    "written to slot 0": "slot 0",
    "written to the last slot": "last slot",
    "writes elsewhere": "elsewhere",
    "spoils other rows": "spoils others",
}
_WINNERS = {
    "last": "the last wins",
    "first": "the first wins",
    "one of them": "one of them wins",
    "neither": "none of them stays",
}
# Which columns a table has, from the widest to the narrowest.
_KEY_APART = ("key", "layout", "roundings", "latent", "slot -1")
_KEY_TOGETHER = ("key and roundings", "latent", "slot -1")
_COLUMNS = (_KEY_APART, _KEY_TOGETHER, ("key layout", "latent"), ("key layout",), ())
_OWN, _OTHERS = "contract's", "varies"  # latentkv computes what it is asked for


def print_path_survey(survey: Survey, titles: Mapping[str, str]) -> None:
    """All results: a table over the models, or with one model everything that was measured."""
    screen, results = Screen(), survey.results
    width = screen.console.width
    legend = screen.text(_LEGEND, "dim")
    parts: list[RenderableType]
    if len(titles) > 1:
        tables = (_table(screen, results, titles, columns) for columns in _COLUMNS)
        unlimited = screen.console.options.update(max_width=10_000)
        fitting = (
            [table]
            for table in tables
            if screen.console.measure(table, options=unlimited).maximum <= width
        )
        grades = next(fitting, None) or _grades(screen, results, titles)
        parts = [*grades, "", legend, *_faults(screen, results, titles)]
    else:
        parts = [*_details(screen, results), "", legend]
    if survey.skipped:
        lines = [f"skipped: {entry.name}: {entry.reason}" for entry in survey.skipped]
        parts += ["", *(screen.text(line, "dim") for line in lines)]
    screen.write([(part, width) for part in parts])


def _table(
    screen: Screen,
    results: Sequence[Result],
    titles: Mapping[str, str],
    columns: Sequence[str],
) -> Table:
    full = columns == _KEY_APART
    table = Table(box=None, pad_edge=False, padding=(0, 2 if full else 1, 0, 0))
    models_ = titles.values() if full else (title.split("-")[0] for title in titles.values())
    headings = (_HEADINGS.get(column, column) for column in columns)
    for heading in ("implementation", *headings, *models_):
        table.add_column(screen.text(heading, "bold"), no_wrap=True)
    for name, row in _by_implementation(results).items():
        reports = [_path_report(result) for result in row.values()]
        several = _OWN if any(result.origin == "ours" for result in row.values()) else _OTHERS
        cells = []
        for column in columns:
            values = {_CELLS[column](report) for report in reports}
            cells.append(values.pop() if len(values) == 1 else several)
        table.add_row(
            screen.text(name),
            *(screen.text(cell) for cell in cells),
            *(
                screen.text(row[model].report.grade, _STYLES[row[model].report.grade])
                for model in titles
            ),
        )
    return table


def _grades(
    screen: Screen, results: Sequence[Result], titles: Mapping[str, str]
) -> list[RenderableType]:
    """Each implementation's grades in a line, where no table fits."""
    lines: list[RenderableType] = []
    for name, row in _by_implementation(results).items():
        line = screen.text("")
        for model, title in titles.items():
            grade = row[model].report.grade
            line += screen.text(f"{', ' if line else ''}{title.split('-')[0]} ")
            line += screen.text(grade, _STYLES[grade])
        lines += [screen.text(name, "bold"), _indent(line)]
    return lines


def _key(report: PathReport) -> str:
    """The layout, which only a rotated key has, or why there is none."""
    return (report.key == "rotated" and report.layout) or report.key


def _key_and_roundings(report: PathReport) -> str:
    if report.key == "rotated" and report.layout:
        return f"{report.layout}, {report.roundings or 'unknown'}"
    return report.key


def _latent(report: PathReport) -> str:
    if report.latent != "quantised":
        return report.latent
    return " or ".join(report.rules) or "unknown rule"


_HEADINGS = {"key and roundings": "key", "key layout": "key"}
_CELLS: dict[str, Callable[[PathReport], str]] = {
    "key": lambda report: report.key,
    "layout": lambda report: report.layout or "-",
    "roundings": lambda report: report.roundings or "-",
    "key and roundings": _key_and_roundings,
    "key layout": _key,
    "latent": _latent,
    "slot -1": lambda report: _SLOTS.get(report.slot_minus_1, report.slot_minus_1),
}


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


def _details(screen: Screen, results: Sequence[Result]) -> list[RenderableType]:
    """One model's: of each implementation all that was measured."""
    lines: list[RenderableType] = []
    for result in results:
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
        "slot -1": _negative(report.slot_minus_1),
        "rows": "independent" if report.batch_invariant else "depend on their neighbours",
        "strided input": report.strided,
    }
    if report.duplicates:
        facts["of rows with equal slots"] = _WINNERS.get(report.duplicates, report.duplicates)
    head = screen.text(report.implementation, "bold") + screen.text("  ")
    head += screen.text(report.grade, _STYLES[report.grade])
    if report.grade != "identical":
        head += screen.text(
            f"  {percent(report.differs)} of the latent's features, "
            f"{percent(report.key_differs)} of the key's"
        )
    body = "; ".join(f"{name}: {value}" for name, value in facts.items())
    return [head, _indent(screen.text(report.reason)), _indent(screen.text(body, "dim"))]


def _negative(found: str) -> str:
    """What a slot of -1 does, in a sentence's words."""
    if found == "no slots":
        return "not tested, it takes no slots"
    return "not tested, other slots already fail" if found == "not tested" else found


def _path_report(result: Result) -> PathReport:
    assert isinstance(result.report, PathReport)
    return result.report
