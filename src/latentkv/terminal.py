"""Pages and comparisons on a terminal: any width, with or without colour and Unicode."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .compare import Comparison, Row, cite, config_place, shape
from .describe_formulas import scientific
from .pages import Card, CitedFile, Config, NormPage, Page, RmsNormPage
from .screen import PAGE_WIDTH, Screen, Wrapped
from .terminal_compression import compression_section
from .terminal_formulas import as_text

_TABLE_WIDTH = 160
_STACK_BELOW = 100  # below, three columns break the names that they show

_DIFFERS, _ALONE = "≠", "◂"


class Pages(Screen):
    """Prints pages, and models side by side."""

    def page(self, page: RmsNormPage) -> None:
        width = min(self.console.width, PAGE_WIDTH)
        around = page.compression if isinstance(page, NormPage) else None
        parts = (
            *self._head(page, self._formula(page)),
            *self._arithmetic(page),
            *self._parameters(page),
            *(compression_section(self, around, width) if around else ()),
            *self._evidence(page, width),
        )
        self.write([(part, width) for part in parts])

    def comparison(self, comparison: Comparison, pages: Sequence[NormPage]) -> None:
        width = min(self.console.width, _TABLE_WIDTH)
        words = min(width, PAGE_WIDTH)
        parts: list[tuple[RenderableType, int]] = []
        if len({page.formula for page in pages}) == 1:
            parts += [(self._formula(pages[0]), words), ("", words)]
        layout = self._stacked if width < _STACK_BELOW else self._table
        legend = f"{_DIFFERS} the models differ   {_ALONE} this one alone"
        parts += [(layout(comparison), width), ("", words), (self.text(legend, "dim"), words)]
        for consequence in comparison.consequences:
            topic, _, rest = consequence.partition(": ")
            parts += [("", words), (self.text(f"{topic}: ", "bold") + self.text(rest), words)]
        hint = self.text("latentkv show MODEL: one model, in full, with the files cited", "dim")
        self.write([*parts, ("", words), (hint, words)])

    def _head(self, page: Page, formula: RenderableType) -> list[RenderableType]:
        learned = self.text("learned  " if page.learned else "", "green")
        call = self.text(page.call.expression, "bold cyan")
        place = self.text(f"  {page.call.file} {page.call.line}", "dim")
        return [
            self.text(" › ".join(page.path), "dim"),
            "",
            self.text(f"{page.model} · ", "bold") + self.text(page.title, "bold"),
            Wrapped(learned + call + place),
            "",
            self.text(page.summary),
            "",
            formula,
            "",
        ]

    def _formula(self, page: RmsNormPage) -> RenderableType:
        return self.norm_formula(self._symbol(page.module.gain.symbol), page.eps.value)

    def norm_formula(self, gain: str, eps: float) -> RenderableType:
        """The norm's equations, with the gain's symbol and the eps."""
        value = scientific(eps)
        if not self.unicode:
            lines = [
                "m₂(x) = (1/d) ∑(j=1..d) xⱼ²",
                f"y = {gain} ⊙ x / √(m₂(x) + ε)",
                f"ε = {value}",
            ]
            return Padding(self.text("\n".join(lines)), (0, 0, 0, 2))
        root = "√(m₂(x) + ε)"
        lead = f"y     = {gain} ⊙ "
        lines = [
            "        1  d",
            "m₂(x) = ─  ∑  xⱼ²",
            "        d j=1",
            " " * len(lead) + "x".center(len(root)).rstrip(),
            lead + "─" * len(root),
            " " * len(lead) + root,
            f"ε     = {value}",
        ]
        return Padding(self.text("\n".join(lines), "bold"), (0, 0, 0, 2))

    def _arithmetic(self, page: RmsNormPage) -> list[RenderableType]:
        eps, arithmetic, gain = page.eps, page.arithmetic, page.module.gain
        return [
            self.fields(
                {
                    "in": f"{self._symbol(page.input.symbol)} {shape(page.input)}\n"
                    f"{page.input.note}; dtype: {page.input.dtype}",
                    "out": f"{self._symbol(page.output.symbol)} {shape(page.output)}\n"
                    f"dtype: {page.output.dtype}",
                    "order": page.order,
                    "arithmetic": cite(arithmetic.sentence, arithmetic.file, arithmetic.lines),
                    "eps": cite(eps.origin, eps.file, eps.lines),
                    "eps in config": _config(eps.config),
                    "module": f"{page.module.name}, of class {page.module.class_}; its {gain.name} "
                    f"is {self._symbol(gain.symbol)}, [{gain.size}], {gain.dtype} "
                    f"({gain.dtype_note})",
                }
            ),
            "",
        ]

    def _parameters(self, page: RmsNormPage) -> list[RenderableType]:
        numbers = page.parameters
        counts, products = numbers.counts, numbers.calculation
        return [
            self.text("Parameters", "bold"),
            self.fields(
                {
                    "per instance": f"learned gain: {products.per_instance}; "
                    f"{page.module.gain.owner}",
                    counts.instances: products.total,
                    "whole model": f"{products.whole_model_total}, counting "
                    f"{counts.whole_model_instances}",
                    "verdict": page.verdict,
                }
            ),
            "",
        ]

    def _evidence(self, page: Page, width: int) -> list[RenderableType]:
        return [*self._code(page, width), *self._sources(page), *self._files(page)]

    def _code(self, page: Page, width: int) -> list[RenderableType]:
        code, shown = page.code, page.code.definition
        ranges = ", ".join(code.ranges)
        told = {
            "passages": "" if ranges == code.heading else ranges,
            "shown": f"{shown.file}, {shown.function}" if shown else "",
            "definition": code.note,
        }
        parts: list[RenderableType] = [
            self.text("Code  ", "bold") + self.text(f"{code.file} {code.heading}"),
            self.fields({name: value for name, value in told.items() if value}),
            "",
        ]
        if shown:
            source = self.text(_wrap_code(shown.source, width - 2))
            parts += [Padding(source, (0, 0, 0, 2)), ""]
        return parts

    def _sources(self, page: Page) -> list[RenderableType]:
        parts: list[RenderableType] = [self.text(f"Sources  {len(page.sources)}", "bold")]
        for source in page.sources:
            parts += [Padding(self._source(source), (0, 0, 0, 2)), ""]
        return parts[:-1]

    def _source(self, source: Card) -> RenderableType:
        return Group(
            self.text(source.id, "bold") + self.text(f"  {source.grade}", "green"),
            self.text(source.claim),
            Wrapped(
                self.text(
                    f"{source.repository} / {source.file}, revision {source.revision}, "
                    f"lines {source.lines}",
                    "dim",
                )
            ),
        )

    def _files(self, page: Page) -> list[RenderableType]:
        parts: list[RenderableType] = ["", self.text(f"Files cited  {len(page.files)}", "bold")]
        return parts + [Padding(self._file(file), (0, 0, 0, 2)) for file in page.files]

    def _file(self, file: CitedFile) -> RenderableType:
        copy = f", a copy of {file.copy_of}'s" if file.copy_of else ""
        place = f"{file.repository} / {file.path}, revision {file.revision}{copy}"
        return Group(Wrapped(self.text(file.name, "bold")), Wrapped(self.text(place, "dim")))

    def _symbol(self, latex: str) -> str:
        return as_text(latex, self.unicode)

    def _table(self, comparison: Comparison) -> Table:
        table = Table(show_edge=False, pad_edge=False, show_lines=True, border_style="dim")
        table.add_column("", overflow="fold", max_width=14)
        table.add_column("", width=1 if self.unicode else 2)
        for model in comparison.models:
            table.add_column(self.text(model, "bold"), overflow="fold", ratio=1)
        for row in comparison.rows:
            cells = [Wrapped(self._cell(row, column, "\n{}")) for column in range(len(row.cells))]
            mark = self.text(_DIFFERS if row.differs else "", "bold yellow")
            table.add_row(self.text(row.field), mark, *cells)
        return table

    def _stacked(self, comparison: Comparison) -> Group:
        parts: list[RenderableType] = []
        for row in comparison.rows:
            mark = f" {_DIFFERS}" if row.differs else ""
            parts.append(self.text(row.field, "bold") + self.text(mark, "bold yellow"))
            for column, model in enumerate(comparison.models):
                line = self.text(f"{model}: ") + self._cell(row, column)
                parts.append(Padding(Wrapped(line), (0, 0, 0, 2)))
        return Group(*parts)

    def _cell(self, row: Row, column: int, place: str = " ({})") -> Text:
        cell = row.cells[column]
        alone = row.stands_alone(column)
        value = self.text(cell.value, "bold" if alone else "")
        if alone:
            value += self.text(f" {_ALONE}", "bold yellow")
        return value + self.text(place.format(cell.place) if cell.place else "", "dim")


def _config(config: Config) -> str:
    verdict = "differs from the eps applied" if config.differs else "the same"
    copy = f", as copied in {config.repository}" if config.copy_of else ""
    place = f"{config_place(config)}{copy}"
    return f"{scientific(config.value)} ({place}), {verdict}: {config.note}"


def _wrap_code(source: str, width: int) -> str:
    """Lines longer than the page, broken at blanks and indented further."""
    lines = []
    for line in source.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        comment = line.lstrip().startswith("#")
        lines += textwrap.wrap(
            line,
            max(width, 20),
            subsequent_indent=indent + ("# " if comment else " " * 8),
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines)
