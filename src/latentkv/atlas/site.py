"""What pages an atlas has, and what each is made of. No torch.

Everything shown is a page of `describe`, a tree of `accounting`, a comparison of `compare` or a
picture; here it is only put into files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import groupby
from pathlib import Path

from .. import layouts, models
from ..accounting import tree
from ..compare import compare
from ..counting import count
from ..describe import component, components, page
from ..layouts import Record
from ..models import Model
from ..pages import CachePage, MatrixPage, NormPage, Page, RmsNormPage, RotationPage
from . import pictures
from .copies import Copies
from .measured import Measured, measured
from .overview import overview
from .render import ACROSS, Templates
from .walk import Entry, nodes, pages, walk

_TEMPLATES = {
    NormPage: "norm.html",
    RmsNormPage: "norm.html",
    MatrixPage: "matrix.html",
    RotationPage: "rotation.html",
    CachePage: "cache.html",
}


def build(
    *, checks: Sequence[str | Path] = (), sources: str | Path | None = None
) -> dict[str, str]:
    """Every file of the atlas: its path below the folder, and its text.

    Arguments:
        checks: files with what ``latentkv check --json`` printed.
        sources: a folder with the reader's own copies of the models' files.

    Raises AtlasError for a file of results or a folder that can't be used.
    """
    results = measured(checks)
    copies = None if sources is None else Copies(sources)
    every = [models.get(name) for name in models.names()]
    site = _Site(every, results, copies)
    files = dict(_static())
    files.update(site.pages())
    return files


def records(model: Model) -> tuple[Record, ...]:
    """What a cache may keep of a token: plain values, and fp8 codes where the model has them."""
    plain = layouts.plain(model.kv)
    return (plain,) if model.kv.quant is None else (plain, layouts.fp8_ds_mla(model.kv))


class _Site:
    def __init__(
        self, every: Sequence[Model], results: tuple[Measured, ...], copies: Copies | None
    ) -> None:
        self._models, self._results = every, results
        self._components = {
            model.name: [component(model, name) for name in components(model)] for model in every
        }
        self._trees = {
            model.name: walk(tree(model).root, self._components[model.name]) for model in every
        }
        self._templates = Templates(copies, every)

    def pages(self) -> Iterator[tuple[str, str]]:
        draw, every = self._templates.draw, self._models
        comparison = compare(every)
        shown = [page(model) for model in every]
        yield draw(
            "index.html",
            models=every,
            steps=overview(every, self._components),
            trees=self._trees,
        )
        for model in every:
            yield self._model(model)
            yield from (self._component(model, one) for one in self._components[model.name])
        yield draw("compare.html", comparison=comparison, pages=shown, models=every)
        yield draw("check.html", results=self._results)
        yield draw("rounding.html", chains=self._chains(shown), pages=shown)
        yield draw("records.html", records=self._records())
        rows = groupby(pictures.table(every), key=lambda row: (row.model, row.what))
        groups = [list(group) for _, group in rows]
        yield draw("context.html", plot=pictures.plot(every), groups=groups)
        yield draw("search.html", entries=[*self._entries()])

    def _model(self, model: Model) -> tuple[str, str]:
        return self._templates.draw(
            f"models/{model.name}/index.html",
            "model.html",
            model=model,
            branch=self._trees[model.name],
            count=count(model.name),
            components=self._components[model.name],
        )

    def _component(self, model: Model, shown: Page) -> tuple[str, str]:
        every = self._components[model.name]
        at = every.index(shown)
        return self._templates.draw(
            f"models/{model.name}/{shown.component}.html",
            _TEMPLATES.get(type(shown), "component.html"),
            page=shown,
            earlier=every[at - 1] if at else None,
            later=every[at + 1] if at + 1 < len(every) else None,
            pictures=self._pictures(model, shown),
        )

    def _pictures(self, model: Model, shown: Page) -> list[str]:
        if isinstance(shown, NormPage):
            return [pictures.chain(model.norms.kv_latent, model.display)]
        if isinstance(shown, CachePage):
            return [pictures.diagram(record) for record in records(model)]
        return []

    def _chains(self, shown: Sequence[NormPage]) -> list[tuple[str, list[str]]]:
        """One chain for all models with one contract but for the order."""
        drawn: dict[str, list[str]] = {}
        for model in self._models:
            drawn.setdefault(pictures.chain(model.norms.kv_latent), []).append(model.display)
        return list(drawn.items())

    def _records(self) -> list[tuple[str, Record, list[Model]]]:
        """Each record once, with the models whose caches hold it."""
        drawn: dict[Record, list[Model]] = {}
        for model in self._models:
            for record in records(model):
                drawn.setdefault(record, []).append(model)
        return [(pictures.diagram(record), record, whose) for record, whose in drawn.items()]

    def _entries(self) -> Iterator[Entry]:
        for address, title, said in ACROSS:
            if address != "search.html":
                yield Entry(address, title, "all models", said)
        for model in self._models:
            yield from pages(model, self._components[model.name])
        for model in self._models:
            yield from nodes(model, self._trees[model.name])


def _static() -> Iterator[tuple[str, str]]:
    folder = resources.files(__package__) / "static"
    for name in sorted(file.name for file in folder.iterdir()):
        if name.endswith((".css", ".js")):
            yield f"static/{name}", (folder / name).read_text(encoding="utf-8")
