"""Pages of single components on a terminal: any width, with or without colour and Unicode."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding

from .compare import cite, shape
from .pages import CachePage, MatrixPage, Page, RmsNormPage, RotationPage, Tensor
from .screen import PAGE_WIDTH
from .terminal import Pages
from .terminal_compression import record_section, rotation_fields, setting_text, softmax_text
from .terminal_formulas import as_lines


class ComponentPages(Pages):
    """Prints the page of any component."""

    def component(self, page: Page) -> None:
        if isinstance(page, RmsNormPage):
            self.page(page)
            return
        width = min(self.console.width, PAGE_WIDTH)
        formula = self.text("\n".join(as_lines(page.formula, self.unicode)), "bold")
        arithmetic = page.arithmetic
        parts = (
            *self._head(page, Padding(formula, (0, 0, 0, 2))),
            self.fields(
                {
                    "in": "\n".join(map(self._tensor, page.inputs)),
                    "out": "\n".join(map(self._tensor, page.outputs)),
                    "arithmetic": cite(arithmetic.sentence, arithmetic.file, arithmetic.lines),
                    "roundings": f"{arithmetic.roundings} a feature",
                }
            ),
            "",
            *self._own(page, width),
            *self._evidence(page, width),
        )
        self.write([(part, width) for part in parts])

    def _tensor(self, tensor: Tensor) -> str:
        note = f"{tensor.note}; " if tensor.note else ""
        return f"{self._symbol(tensor.symbol)} {shape(tensor)}\n{note}dtype: {tensor.dtype}"

    def _own(self, page: Page, width: int) -> list[RenderableType]:
        """The section that only this kind of component has."""
        if isinstance(page, MatrixPage):
            return self._counted(page)
        if isinstance(page, RotationPage):
            settings = rotation_fields(page.rotation) if page.rotation else {"rotation": "none"}
            fields = settings | {"softmax scale": softmax_text(page.softmax)}
            return [self.text("Rotation", "bold"), self.fields(fields), ""]
        if isinstance(page, CachePage):
            return [
                self.text("Cache", "bold"),
                self.fields({"positions": f"up to {setting_text(page.max_positions)}"}),
                "",
                *(part for one in page.records for part in record_section(self, one, width)),
            ]
        return []

    def _counted(self, page: MatrixPage) -> list[RenderableType]:
        numbers = page.parameters
        lines = [f"{row.calculation} = {row.parameters:,}" for row in page.accounting]
        names = [row.component for row in page.accounting]
        return [
            self.text("Parameters", "bold"),
            self.fields(
                {
                    "tensor": page.weight.tensor,
                    **dict(zip(names, lines, strict=True)),
                    "per instance": numbers.calculation.per_instance,
                    numbers.counts.instances: numbers.calculation.total,
                    "whole model": f"{numbers.calculation.whole_model_total}, counting "
                    f"{numbers.counts.whole_model_instances}",
                    "verdict": page.verdict,
                }
            ),
            "",
        ]
