"""What holds for every page of the atlas: links, markup, size, and what screen readers are told."""

from __future__ import annotations

import html
import os
import posixpath
import re
import subprocess
import sys
import time
from urllib.parse import unquote, urlsplit

import pytest
import seeds
from built_atlas import files, pages

from latentkv import models
from latentkv.atlas import build
from latentkv.describe import component, components
from latentkv.models.hosts import address, ranges

PAGES = sorted(name for name in files() if name.endswith(".html"))
LARGEST = 200_000  # bytes


def test_the_pages_that_there_are():
    general = "index compare check rounding records context search".split()
    wanted = {f"{name}.html" for name in general}
    for name in models.names():
        parts = ("index", *components(models.get(name)))
        wanted |= {f"models/{name}/{part}.html" for part in parts}
    assert set(PAGES) == wanted
    static = {f"static/{name}" for name in "base.css content.css models.css adapt.css".split()}
    assert set(files()) - wanted == static | {"static/search.js"}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_inside_the_atlas_leads_somewhere(name):
    links = [link.attributes["href"] for link in pages()[name].all("a")]
    inside = [link for link in links if not link.startswith("https://")]
    assert len(inside) > 5
    for link in inside:
        parts = urlsplit(link)
        assert not parts.scheme and not parts.netloc and not parts.path.startswith("/"), link
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
        target = name if not parts.path else path
        assert target in files(), link
        if parts.fragment:
            assert pages()[target].all(f"#{unquote(parts.fragment)}"), link


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_requested_from_elsewhere(name):
    page = pages()[name]
    loaded = [
        one.attributes[attribute]
        for one in page.walk()
        for attribute in ("src", "href", "srcset", "data", "poster", "action")
        if one.tag != "a" and attribute in one.attributes
    ]
    for target in loaded:
        assert target == "data:," or not urlsplit(target).scheme, target
        assert not target.startswith("//")
    assert not [one for one in page.walk() if one.tag in ("iframe", "object", "embed", "base")]
    assert not [one for one in page.walk() if one.tag == "style" or "style" in one.attributes]


def test_the_stylesheet_and_the_script_request_nothing():
    for name, text in files().items():
        if name.endswith(".css"):
            assert "url(" not in text and "@import" not in text
        if name.endswith(".js"):
            assert not re.search(r"fetch|XMLHttpRequest|import\b|https?:", text)


@pytest.mark.parametrize("name", PAGES)
def test_every_id_is_unique_and_every_reference_has_one(name):
    page = pages()[name]
    ids = [one.attributes["id"] for one in page.walk() if "id" in one.attributes]
    assert len(set(ids)) == len(ids)
    assert not [one for one in ids if re.search(r"\s", one) or not one]
    for one in page.walk():
        for attribute in ("aria-labelledby", "aria-describedby", "for"):
            for reference in one.attributes.get(attribute, "").split():
                assert reference in ids, (one.tag, reference)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_small(name):
    assert len(files()[name].encode()) < LARGEST


@pytest.mark.parametrize("name", PAGES)
def test_headings_and_landmarks_are_in_order(name):
    page = pages()[name]
    assert page.one("html").attributes["lang"] == "en"
    for landmark in ("main", "header", "footer", "h1"):
        page.one(landmark)
    levels = [int(one.tag[1]) for one in page.walk() if re.fullmatch("h[1-6]", one.tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    labels = [one.attributes["aria-label"] for one in page.all("nav")]
    assert len(set(labels)) == len(labels)
    first = page.one("body").all("a")[0]
    assert "skip" in first.classes and first.attributes["href"] == "#content"


@pytest.mark.parametrize("name", PAGES)
def test_tables_fields_and_pictures_are_told_to_screen_readers(name):
    page = pages()[name]
    for table in page.all("table"):
        heads = table.all("th")
        assert heads and all("scope" in head.attributes for head in heads)
        assert all(head.text for head in heads)
    for field in page.all("input"):
        assert page.one("label").attributes["for"] == field.attributes["id"]
        assert page.one("label").text
    for picture in page.all("svg"):
        named = "aria-labelledby" in picture.attributes or "aria-label" in picture.attributes
        assert named or picture.attributes.get("aria-hidden") == "true"
    for math in page.all("math"):
        assert math.attributes["alttext"]
    for box in page.walk():
        if box.attributes.get("tabindex") == "0":  # reached to be scrolled, so it has a name
            assert box.attributes["aria-label"]
    for link in page.all("a"):
        assert link.text
        label = link.attributes.get("aria-label", link.text)
        assert label.startswith(link.text)  # what is seen can be spoken


@pytest.mark.parametrize("name", PAGES)
def test_formulas_are_converted_to_the_last_command(name):
    for math in pages()[name].all("math"):
        assert "\\" not in math.raw and "&" not in math.raw
        assert math.raw.strip()


def test_formulas_have_the_rows_that_their_latex_has():
    page = pages()["models/kimi-k3/norm.html"]
    math = page.one(".formula").one("math")
    assert len(math.all("mtr")) == 3
    assert [len(row.all("mtd")) for row in math.all("mtr")] == [2, 2, 2]
    assert math.attributes["alttext"].count(r"\\") == 2


@pytest.mark.parametrize("name", models.names())
def test_every_passage_leads_to_its_lines_at_the_pinned_revision(name):
    for part in components(models.get(name)):
        page, shown = pages()[f"models/{name}/{part}.html"], component(models.get(name), part)
        links = [one.attributes["href"] for one in page.all("a")]
        for source in shown.sources:
            for lines in ranges(source.lines):
                wanted = address(source.repository, source.file, source.revision, lines)
                assert wanted in links
        for file in shown.files:
            assert f"{file.repository} / {file.path}, revision {file.revision}" in page.text


def test_a_link_names_the_host_the_whole_revision_and_the_lines():
    lines = next(iter(ranges("94–111")))
    assert address(
        "moonshotai/Kimi-K2-Instruct", "modeling_deepseek.py", "fd1984e2b7a3", lines
    ) == (
        "https://huggingface.co/moonshotai/Kimi-K2-Instruct/blob/"
        "fd1984e2b7a3350dbf7305fe73a4ede25c14de50/modeling_deepseek.py#L94-L111"
    )
    lines = next(iter(ranges("567")))
    assert address(
        "deepseek-ai/DeepSeek-V3.2-Exp", "inference/model.py", "87e509a2e5a1", lines
    ) == (
        "https://github.com/deepseek-ai/DeepSeek-V3.2-Exp/blob/87e509a2e5a1/inference/model.py#L567"
    )


def test_three_models_are_built_in_less_than_five_seconds():
    before = time.process_time()
    build()
    assert time.process_time() - before < 5


def test_two_runs_write_the_same_bytes_without_torch():
    code = (
        "import sys, hashlib; from latentkv.atlas import build; "
        "print(hashlib.sha256(repr(build()).encode()).hexdigest()); "
        "assert 'torch' not in sys.modules"
    )
    digests = set()
    for seed in ("1", "2"):
        result = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
            timeout=120,
        )
        assert result.returncode == 0, result.stderr
        digests.add(result.stdout)
    assert len(digests) == 1


def _contrast(one: str, other: str) -> float:
    lighter, darker = sorted(map(_luminance, (one, other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    def linear(channel: int) -> float:
        part = channel / 255
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(scheme):
    blocks = re.findall(r":root \{(.*?)\}", files()["static/base.css"], re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", blocks[scheme == "dark"]))
    for text in ("ink", "muted", "accent", "link", "good", "bad"):
        for ground in ("paper", "raised"):
            assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for ground in ("area-a", "area-b", "area-c", "area-d"):
        assert _contrast(colours["ink"], colours[ground]) >= 4.5, ground


@pytest.mark.skipif(not seeds.SHARED.exists(), reason=seeds.MISSING)
def test_no_page_holds_a_line_of_a_models_code():
    """Without the reader's own copies; a call's expression alone is a fact, and is shown."""
    text = "\n".join(html.unescape(text) for text in files().values())
    for model in map(models.get, models.names()):
        for part in components(model):
            text = text.replace(component(model, part).call.expression, "")
    for seed in seeds.load().values():
        for lines in seed.excerpts.values():
            for line in map(str.strip, lines):
                if len(line) > 30:
                    assert line not in text
