"""The atlas's pages against the seed pages, field by field."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import seeds
from built_atlas import Element, pages, read

from latentkv import accounting, atlas, models
from latentkv.describe import component, components

NAMES = {"Kimi K2": "kimi-k2", "Kimi K3": "kimi-k3", "DeepSeek-V3.2-Exp": "deepseek-v3.2-exp"}
SEEDS = seeds.load() if seeds.SHARED.exists() else {}


def norm_page(name: str) -> str:
    return f"models/{name}/norm.html"


@pytest.fixture(params=NAMES, ids=NAMES.values())
def seed(request) -> seeds.Seed:
    if not SEEDS:
        pytest.skip(seeds.MISSING)
    return SEEDS[request.param]


def check(seed: seeds.Seed, page: Element) -> None:
    """Every field of a seed page stands on the built page."""
    _check_head(seed, page)
    _check_parameters(seed, page)
    _check_code(seed, page)
    _check_sources(seed, page)


def _check_head(seed: seeds.Seed, page: Element) -> None:
    assert page.one("head").one("title").text == f"{seed.model} · {seed.title} · latentkv atlas"
    assert page.one("h1").text == seed.title
    crumbs = [step.text for step in page.one(".crumbs").all("li")]
    assert crumbs == [seed.model, *seed.path]
    call = page.one(".call")
    assert call.one(".pill").text == "learned"
    assert call.one("code").text == seed.call
    file, number = call.one(".place").text.split(" ")
    line = int(number)
    assert file == seed.code_file
    assert line == seed.call_line or seed.call in (seed.line(line) or "")
    summary = page.one(".summary").text
    assert seeds.terms(summary) >= seeds.terms(seed.summary)
    assert page.one(".formula").one("math").attributes["alttext"] == seed.formula
    for name, (symbol, axes) in (("#input", seed.input), ("#output", seed.output)):
        shown = page.one(name)
        assert shown.one("math").attributes["alttext"] == symbol
        assert shown.one(".shape").text == f"[{', '.join(map(' '.join, axes))}]"


def _check_parameters(seed: seeds.Seed, page: Element) -> None:
    width, instances, counted, total = seed.totals
    assert page.one("#totals").text == f"{width} × {instances} {counted} = {total:,}"
    table = page.one("#accounting")
    assert table.one("caption").text == "Exact per-instance accounting"
    rows = [[cell.text for cell in row.children if cell != "\n"] for row in table.all("tr")]
    assert rows == [
        ["Component", "Calculation", "Parameters"],
        ["Learned gain", seed.calculation, str(seed.per_instance)],
        ["Per-instance total", str(seed.per_instance)],
    ]
    assert seeds.terms(page.one("#owner").text) >= seeds.terms(seed.owner)
    assert page.one("#across").text == (
        f"Across {instances} independent {counted}: {width} × {instances} = {total:,} parameters."
    )
    assert page.one("#verdict").text == seed.verdict.replace("’", "'")


def _check_code(seed: seeds.Seed, page: Element) -> None:
    heading = page.one("#code")
    assert heading.text == f"Code {seed.code_file} {seed.code_heading}"
    section = next(one for one in page.all("section") if heading in one.children)
    ranges = [one.text for one in section.all(".place")]
    assert ranges == [f"{seed.code_file} {lines}" for lines in seed.excerpts]
    # Kimi K3's page tells where eps comes from where the others tell the arithmetic.
    told = "#eps" if "default" in seed.sentence else "#arithmetic-told"
    sentence = page.one(told)
    assert sentence.one(".place").text == f"{seed.sentence_file} {seed.sentence_lines}"
    assert seeds.terms(sentence.text) >= seeds.terms(seed.sentence)


def _check_sources(seed: seeds.Seed, page: Element) -> None:
    assert page.one("#sources").text == f"Sources {len(seed.sources)}"
    shown = page.all("article")
    assert len(shown) == len(seed.sources)
    for ours, theirs in zip(shown, seed.sources, strict=True):
        assert ours.one("h3").text == f"{theirs.id} {theirs.grade}"
        assert seeds.terms(ours.one(".claim").text) >= seeds.terms(theirs.claim)
        assert ours.one(".where").text == (
            f"{theirs.repository} / {theirs.file} revision {theirs.revision}, lines {theirs.lines}"
        )
        address = ours.one("a").attributes["href"]
        first, last = theirs.lines.split("–")
        assert re.fullmatch(
            rf"https://(huggingface\.co|github\.com)/{re.escape(theirs.repository)}/blob/"
            rf"{theirs.revision}[0-9a-f]*/{re.escape(theirs.file)}#L{first}-L{last}",
            address,
        )


def test_every_field_of_the_seed_page_stands_on_the_built_page(seed):
    check(seed, pages()[norm_page(NAMES[seed.model])])


def _norm(**changed):
    return lambda model: replace(model, kv_latent_norm=replace(model.kv_latent_norm, **changed))


def _moved(place, by=1):
    return replace(place, lines=tuple(type(one)(one.first, one.last + by) for one in place.lines))


def _first_source(**changed):
    def change(model):
        first, *rest = model.kv_latent_norm.sources
        sources = (replace(first, **changed), *rest)
        return replace(model, kv_latent_norm=replace(model.kv_latent_norm, sources=sources))

    return change


WRONG = {
    "title": _norm(title="Latent LayerNorm"),
    "container": _norm(container="stages"),
    "breadcrumb": _norm(path=("Attention",)),
    "call": lambda m: _norm(call=replace(m.kv_latent_norm.call, value="self.norm(x)"))(m),
    "gain's symbol": _norm(gain="g"),
    "input's symbol": _norm(input="c"),
    "positions": _norm(positions=2),
    "lines of the arithmetic": lambda m: _norm(
        arithmetic=_moved(m.kv_latent_norm.arithmetic), eps=_moved(m.kv_latent_norm.eps)
    )(m),
    "lines of the code": lambda m: _norm(code=_moved(m.kv_latent_norm.code))(m),
    "lines of a source": lambda m: _first_source(place=_moved(m.kv_latent_norm.sources[0].place))(
        m
    ),
    "revision": lambda m: _first_source(
        place=replace(
            m.kv_latent_norm.sources[0].place,
            file=replace(m.kv_latent_norm.sources[0].place.file, revision="0123456789ab"),
        )
    )(m),
    "grade": _first_source(grade="Hearsay"),
    "claim": _first_source(claim="It exists."),
    "a source": lambda m: _norm(sources=m.kv_latent_norm.sources[1:])(m),
    "layers": lambda m: replace(m, layers=replace(m.layers, value=m.layers.value + 1)),
    "counted layers": lambda m: replace(
        m,
        dense_layers=replace(m.dense_layers, value=m.dense_layers.value + 1),
        mla_layers=replace(m.mla_layers, value=m.mla_layers.value + 1),
    ),
    "verdict": lambda m: _norm(tensors_match=not m.kv_latent_norm.tensors_match)(m),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_fact_in_a_models_file_is_noticed(seed, wrong, monkeypatch):
    name = NAMES[seed.model]
    built = _built_with(monkeypatch, name, WRONG[wrong])
    with pytest.raises(AssertionError):
        check(seed, read(built[norm_page(name)]))


def _built_with(monkeypatch, name, change) -> dict[str, str]:
    changed = change(models.get(name))
    get = models.get
    monkeypatch.setattr(models, "get", lambda one: changed if one == name else get(one))
    return atlas.build()


@pytest.mark.parametrize("name", models.names())
def test_every_component_has_a_page_with_all_that_it_says(name):
    model = models.get(name)
    for one in components(model):
        page, shown = pages()[f"models/{name}/{one}.html"], component(model, one)
        text = page.text
        assert page.one("h1").text == shown.title
        assert page.one(".formula").one("math").attributes["alttext"] == shown.formula
        assert page.one(".call").one(".pill").text == (
            "learned" if shown.learned else "nothing learned"
        )
        assert page.one("#arithmetic-told").text.startswith(shown.arithmetic.sentence.rstrip("."))
        for said in (shown.summary, shown.verdict, shown.code.note, shown.call.expression):
            assert " ".join(said.split()) in text
        for source in shown.sources:
            assert " ".join(source.claim.split()) in text
        for row in shown.accounting:
            cells = [cell.text for cell in page.one("#accounting").all("td")]
            assert row.calculation in cells and f"{row.parameters:,}" in cells
        if shown.code.definition:
            assert page.all("pre")[-1].raw == shown.code.definition.source
        if shown.parameters:
            assert shown.parameters.calculation.whole_model_total in page.one("#whole").text


@pytest.mark.parametrize("name", models.names())
def test_the_tree_has_every_component_with_its_numbers(name):
    tree = pages()[f"models/{name}/index.html"].one(".tree")
    nodes = list(accounting.tree(models.get(name)).root.walk())
    items = tree.all("li")
    assert len(items) == len(nodes) > 30
    for item, node in zip(items, nodes, strict=True):
        shown, numbers = item.all(".name")[0].text, item.all(".counted")[0].text
        assert shown == node.title
        product = f"{node.per_instance:,} × {node.instances:,} = "
        assert numbers.startswith((product if node.instances > 1 else "") + f"{node.total:,} ")
        assert numbers.endswith("%")


@pytest.mark.parametrize("name", models.names())
def test_what_is_learned_on_the_path_is_reached_from_the_tree(name):
    model = models.get(name)
    tree = pages()[f"models/{name}/index.html"].one(".tree")
    reached = {link.attributes["href"] for link in tree.all("a")}
    learned = {one for one in components(model) if component(model, one).learned}
    assert reached == {f"{one}.html" for one in learned} and len(learned) == 4


@pytest.mark.parametrize("name", models.names())
def test_the_tree_folds_without_script_and_leads_to_the_norm_at_once(name):
    tree = pages()[f"models/{name}/index.html"].one(".tree")

    def links(element: Element, hidden: bool) -> list[tuple[str, bool]]:
        found = []
        for child in element.children:
            if isinstance(child, Element):
                closed = child.tag == "details" and "open" not in child.attributes
                if child.tag == "a":
                    found.append((child.attributes["href"], hidden))
                found += links(child, hidden or closed)
        return found

    assert [hidden for href, hidden in links(tree, False) if href == "norm.html"].count(False) == 1


def test_the_comparison_marks_what_differs():
    from latentkv.compare import compare

    compared = compare([models.get(name) for name in models.names()])
    rows = pages()["compare.html"].one(".compare").one("tbody").all("tr")
    assert len(rows) == len(compared.rows)
    for shown, row in zip(rows, compared.rows, strict=True):
        marked = f"{row.field} ≠, differs" if row.differs else row.field
        assert shown.one("th").text == marked
        assert bool(shown.all(".differs")) is row.differs
        cells = shown.all("td")
        for column, (cell, ours) in enumerate(zip(cells, row.cells, strict=True)):
            assert cell.text.startswith(" ".join(ours.value.split()))
            assert cell.text.endswith(ours.place)
            assert bool(cell.all(".alone")) is row.stands_alone(column)
    for consequence in compared.consequences:
        words = re.sub(r"\S+\^\S+", "", consequence)  # powers are mathematics, no text
        assert " ".join(words.split()) in pages()["compare.html"].text


def test_powers_are_written_as_mathematics():
    from latentkv.atlas.formula import powers

    def formulas(page: str) -> list[str]:
        return [one.attributes["alttext"] for one in pages()[page].all("math")]

    assert formulas("compare.html") == ["192^{-0.5}"] * 3
    rotation = formulas("models/kimi-k2/rotation.html")
    assert {"192^{-0.5}", "m^{2}", "m", r"\theta^{2i/64}"} <= set(rotation)
    for page in pages().values():
        assert not [p.text for p in page.all("p") + page.all("dd") if "^" in p.text]
    assert powers("<b> 1e-4, m squared") == "&lt;b&gt; 1e-4, m squared"


def test_the_first_page_says_of_each_step_what_differs():
    table = pages()["index.html"].one(".steps-by-model")
    rows = {row.one("th").text: row.all("td") for row in table.one("tbody").all("tr")}
    assert [[cell.text for cell in cells] for cells in rows.values()] == [
        ["7,168 → 576"] * 3,
        ["512 + 64"] * 3,
        ["512, cast then gain", "512, cast then gain", "512, gain then cast"],
        ["half", "not rotated", "interleaved"],
        ["none", "none", "e4m3, groups of 128"],
        ["512 → 64 × 256", "512 → 96 × 256", "512 → 128 × 256"],
        ["1,152 bytes", "1,152 bytes", "1,152 or 656 bytes"],
        ["1,536, cast then gain", "1,536, cast then gain", "1,536, gain then cast"],
    ]
    for name, cells in zip(models.names(), zip(*rows.values(), strict=True), strict=True):
        linked = [one.attributes["href"] for cell in cells for one in cell.all("a")]
        assert sorted(linked) == sorted(
            f"models/{name}/{one}.html" for one in components(models.get(name))
        )


def test_pictures_stand_where_they_belong():
    def pictures(page: str) -> int:
        return sum(figure.tag == "figure" for figure in pages()[page].all(".picture"))

    for name in models.names():
        assert pictures(norm_page(name)) == 1
        records = 1 if models.get(name).kv.quant is None else 2
        assert pictures(f"models/{name}/cache.html") == records
    assert pictures("rounding.html") == pictures("context.html") == 1
    assert pictures("records.html") == 2


def test_search_lists_every_page_and_every_component():
    items = pages()["search.html"].one("#entries").all("li")
    listed = [item.one("a").attributes["href"] for item in items]
    assert len(set(listed)) == len(listed)
    for name in models.names():
        model = models.get(name)
        assert {f"models/{name}/{one}.html" for one in components(model)} <= set(listed)
        shown = {
            item.one("a").text
            for item in items
            if item.one(".where").text.split(" › ")[0] == model.display
        }
        (_, *nodes) = accounting.tree(model).root.walk()
        assert shown >= {node.title for node in nodes}


def test_what_is_shown_is_text_and_never_markup(monkeypatch):
    evil = "<script>alert(1)</script><b x='\"&amp;'>"
    built = _built_with(
        monkeypatch,
        "kimi-k3",
        lambda m: _first_source(claim=evil)(_norm(title=evil, class_name=evil, module=evil)(m)),
    )
    page = read(built[norm_page("kimi-k3")])
    assert page.one("h1").text == " ".join(evil.split())
    assert page.all("article")[0].one(".claim").raw == evil
    for name, text in built.items():
        if name.endswith(".html"):
            assert "<script>alert" not in text
            scripts = read(text).all("script")
            assert len(scripts) == (1 if name == "search.html" else 0)
