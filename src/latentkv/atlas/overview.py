"""The models' paths beside one another: of each step a few symbols, which say what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..models import Model
from ..models.spec import COMPONENTS
from ..pages import CachePage, MatrixPage, Page, RmsNormPage, RotationPage, SplitPage, Tensor


@dataclass(frozen=True)
class Cell:
    """A page, and what it says in a few symbols."""

    href: str
    said: str


@dataclass(frozen=True)
class Step:
    """A step of the path; ``cells`` has None for a model without it."""

    title: str
    cells: tuple[Cell | None, ...]


def overview(models: Sequence[Model], components: Mapping[str, Sequence[Page]]) -> list[Step]:
    """Each step, with a cell for each model.

    Arguments:
        components: the pages of each model's path, by its name.
    """
    steps = []
    for name in COMPONENTS:
        found = {
            model.name: page
            for model in models
            for page in components[model.name]
            if page.component == name
        }
        cells = [
            Cell(f"models/{model.name}/{name}.html", _said(model, found[model.name]))
            if model.name in found
            else None
            for model in models
        ]
        # Where titles differ, by what the tree above it says already: the first model's.
        steps.append(Step(next(iter(found.values())).title, tuple(cells)))
    return steps


def _said(model: Model, page: Page) -> str:
    if isinstance(page, MatrixPage):
        return f"{_sizes(page.input)} → {_sizes(page.output)}"
    if isinstance(page, SplitPage):
        return " + ".join(map(_sizes, page.outputs))
    if isinstance(page, RmsNormPage):
        return f"{page.parameters.per_instance:,}, {page.order.replace('_', ' ')}"
    if isinstance(page, RotationPage):
        return "not rotated" if page.rotation is None else page.rotation.layout
    if isinstance(page, CachePage):
        return f"{' or '.join(f'{record.bytes:,}' for record in page.records)} bytes"
    assert model.kv.quant is not None  # the quantisation's page is there only then
    return f"e4m3, groups of {model.kv.quant.group}"


def _sizes(tensor: Tensor) -> str:
    """Those that are fixed: 512, or 64 × 256."""
    return " × ".join(f"{axis.size:,}" for axis in tensor.shape if axis.size is not None)
