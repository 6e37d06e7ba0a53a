"""What ``latentkv check`` prints: implementations down, models across; or one model in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .conformance.survey import Result, Survey
from .screen import Screen

_STYLES = {"identical": "bold green", "follows": "green", "deviates": "bold red"}

_LEGEND = (
    "identical: no bit of a million bf16 outputs differs. follows: at most 0.01% do, by an ulp or "
    "two, since another order of summation moves a rare rounding."
)


def print_survey(survey: Survey, titles: Mapping[str, str]) -> None:
    """All results: a table over the models, or with one model everything that was measured."""
    screen, results = Screen(), survey.results
    width = screen.console.width
    # With everything in it, or without the eps and the small shares; where neither fits, each
    # implementation becomes a paragraph.
    tables = (_table(screen, results, titles, full) for full in (True, False))
    unlimited = screen.console.options.update(max_width=10_000)
    fitting = [
        table
        for table in tables
        if screen.console.measure(table, options=unlimited).maximum <= width
    ]
    parts: list[RenderableType]
    if len(titles) > 1 and fitting:
        parts = [fitting[0], "", *_reasons(screen, results, titles)]
    else:
        parts = [*_details(screen, results, titles), "", screen.text(_LEGEND, "dim")]
    if survey.skipped:
        lines = [f"skipped: {entry.name}: {entry.reason}" for entry in survey.skipped]
        parts += ["", *(screen.text(line, "dim") for line in lines)]
    screen.write([(part, width) for part in parts])


def _table(
    screen: Screen, results: Sequence[Result], titles: Mapping[str, str], full: bool
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2 if full else 1, 0, 0))
    models_ = titles.values() if full else (title.split("-")[0] for title in titles.values())
    for heading in ("implementation", "order", *(["eps"] if full else []), *models_):
        table.add_column(screen.text(heading, "bold"), no_wrap=True)
    for name, row in _by_implementation(results).items():
        orders = {result.report.order or "unknown" for result in row.values()}
        epsilons = {_eps(result) for result in row.values()}
        table.add_row(
            screen.text(name),
            orders.pop() if len(orders) == 1 else "the contract's",
            *([epsilons.pop() if len(epsilons) == 1 else "its own"] if full else []),
            *(_grade(screen, row[model], full) for model in titles),
        )
    return table


def _grade(screen: Screen, result: Result, full: bool) -> Text:
    report = result.report
    shown = report.grade == "deviates" or (full and report.grade == "follows")
    share = f" {percent(report.differs)}" if shown else ""
    return screen.text(report.grade, _STYLES[report.grade]) + screen.text(share)


def _reasons(
    screen: Screen, results: Sequence[Result], titles: Mapping[str, str]
) -> list[RenderableType]:
    """Each reason once, with the models and the implementations that it is about."""
    grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, row in _by_implementation(results).items():
        models: dict[str, list[str]] = {}
        for model, result in row.items():
            if result.report.grade == "deviates":
                models.setdefault(result.report.reason, []).append(titles[model])
        for reason, deviated in models.items():
            grouped.setdefault((reason, tuple(deviated)), []).append(name)
    lines: list[RenderableType] = [screen.text(_LEGEND + (" deviates:" if grouped else ""), "dim")]
    for (reason, against), names in grouped.items():
        who = f" (against {', '.join(against)}): {'; '.join(names)}"
        lines.append(_indent(screen.text(reason, "bold") + screen.text(who)))
    return lines


def _details(
    screen: Screen, results: Sequence[Result], titles: Mapping[str, str]
) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for model, title in titles.items():
        lines += ["", screen.text(title, "bold underline")] if len(titles) > 1 else []
        for result in results:
            if result.model == model:
                lines += ["", *_detail(screen, result)]
    return lines[1:]


def _detail(screen: Screen, result: Result) -> list[RenderableType]:
    report = result.report
    eps = _eps(result)
    if report.eps is not None and report.eps_placement in ("inside", "outside"):
        eps += f" {report.eps_placement} the root"
    elif report.eps_placement == "floor":
        eps += " as a lower bound"
    facts = {
        "order": report.order or "unknown",
        "eps": eps,
        "residual sum": "no such form" if report.residual == "none" else report.residual,
        "output": report.out_dtype,
        "rows": "independent" if report.batch_invariant else "depend on their neighbours",
        "strided input": report.strided,
        "special values": report.special,
    }
    head = screen.text(report.implementation, "bold") + screen.text("  ")
    head += screen.text(report.grade, _STYLES[report.grade])
    if report.grade != "identical":
        far = "a NaN apart" if report.ulp > 2**32 else f"by up to {report.ulp} ulp"
        head += screen.text(f"  {percent(report.differs)} of outputs, {far}")
    body = "; ".join(f"{name}: {value}" for name, value in facts.items())
    return [head, _indent(screen.text(report.reason)), _indent(screen.text(body, "dim"))]


def _indent(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2))


def _by_implementation(results: Sequence[Result]) -> dict[str, dict[str, Result]]:
    rows: dict[str, dict[str, Result]] = {}
    for result in results:
        rows.setdefault(result.report.implementation, {})[result.model] = result
    return rows


def _eps(result: Result) -> str:
    eps = result.report.eps
    return "unknown" if eps is None else f"{eps:g}"


def percent(share: float) -> str:
    """26%, 1.4%, 0.0008%: two digits, one below 0.001%."""
    if share >= 0.095:
        return f"{share:.0%}"
    return f"{100 * share:.2g}%" if share >= 1e-5 else f"{100 * share:.1g}%"
