"""Every page of the atlas as a browser draws it: widths, requests, formulas, links, paper."""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote, urldefrag

import pytest
from browser import WIDTHS, Browser, Seen, listed

pytest_plugins = ("browser_session",)
Pages = dict[str, Seen]
A4 = (8.27, 11.69)  # inches
COLUMN = round((210 - 2 * 16) / 25.4 * 96)  # pixels between the margins of an A4 page


def test_every_page_is_there(every_page: Pages):
    kinds = {name.rpartition("/")[2] for name in every_page}
    assert len(every_page) >= 32
    assert {"compare.html", "rounding.html", "records.html", "context.html"} <= kinds
    assert {"norm.html", "split.html", "cache.html", "quantisation.html"} <= kinds


def test_the_console_has_no_line(every_page: Pages):
    faults = {name: seen.console for name, seen in every_page.items() if seen.console}
    assert not faults, listed(faults)


def test_nothing_is_asked_for_beyond_the_folder(every_page: Pages, browser: Browser):
    inside = browser.folder.as_uri() + "/"
    for name, seen in every_page.items():
        assert inside + name in seen.requests  # so requests are seen at all
        assert [url for url in seen.requests if not url.startswith((inside, "data:"))] == [], name


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_scrolls_sideways(every_page: Pages, width):
    measured = {name: seen.widths[width] for name, seen in every_page.items()}
    assert {one["window"] for one in measured.values()} == {width}
    faults = {name: one for name, one in measured.items() if one["page"] > width}
    assert not faults, listed(faults)


def test_a_wide_table_moves_in_its_own_box(browser: Browser):
    browser.window(360)
    browser.open("compare.html")
    before, after = browser.driver.execute_script(
        "const box = document.querySelector('.wide'), cell = box.querySelector('th:last-child');"
        "const before = cell.getBoundingClientRect().right; box.scrollLeft = 10000;"
        "return [before, cell.getBoundingClientRect().right];"
    )
    assert before > 360 >= after


def test_formulas_are_drawn_as_mathematics(every_page: Pages):
    formulas = [(name, one) for name, seen in every_page.items() for one in seen.formulas]
    shown = [(name, one) for name, one in formulas if one["fractions"]]
    assert len(formulas) >= 60 and len(shown) >= 6
    for name, one in formulas:
        said = f"{name}: {one['alttext']}"
        assert one["alttext"], name
        assert one["display"] in ("math", "block math"), said
        assert one["width"] > 0 and one["height"] >= 0.4 * one["size"], said
        assert one["height"] >= one["rows"] * one["size"], said  # rows below one another
    for name, one in shown:
        # Text in one line is some 1.2 high: numerator and denominator are stacked.
        assert all(part["height"] > 1.4 * part["size"] for part in one["fractions"]), name
        assert one["height"] > 1.4 * one["size"], name


def test_a_norm_page_has_its_formula_in_three_rows(every_page: Pages):
    for model in ("kimi-k2", "kimi-k3", "deepseek-v3.2-exp"):
        formula = every_page[f"models/{model}/norm.html"].formulas[0]
        assert (formula["display"], formula["rows"]) == ("block math", 3)
        assert formula["height"] > 5 * formula["size"]


def test_pictures_can_be_read_on_a_phone(every_page: Pages):
    letters = [(name, one) for name, seen in every_page.items() for one in seen.lettering]
    assert len(letters) > 300
    assert [(name, one) for name, one in letters if one["size"] < 8] == []


def test_every_link_inside_leads_somewhere(every_page: Pages, browser: Browser):
    root, followed = browser.folder.as_uri() + "/", 0
    for name, seen in every_page.items():
        for link in seen.links:
            if not link["href"].startswith("file:"):
                continue
            address, fragment = urldefrag(link["href"])
            target = unquote(address.removeprefix(root))
            assert target in every_page, f"{name}: {link}"
            assert not fragment or unquote(fragment) in every_page[target].ids, f"{name}: {link}"
            followed += 1
    assert followed > 500


def test_links_outside_are_marked(every_page: Pages):
    outside = [
        (name, link)
        for name, seen in every_page.items()
        for link in seen.links
        if not link["href"].startswith("file:")
    ]
    assert len(outside) > 200
    for name, link in outside:
        assert link["href"].startswith("https://"), f"{name}: {link}"
        assert {"external", "noreferrer"} <= {*link["rel"]}, f"{name}: {link}"
        assert link["text"], f"{name}: {link['href']} has no text"


def test_every_page_is_reached_from_the_first(every_page: Pages, browser: Browser):
    root, reached, left = browser.folder.as_uri() + "/", set(), ["index.html"]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            links = (urldefrag(link["href"])[0] for link in every_page[name].links)
            left += [unquote(url.removeprefix(root)) for url in links if url.startswith(root)]
    assert {*every_page} - reached == {"unmeasured.html"}  # which only these tests have


def test_a_walk_by_clicks(browser: Browser):
    browser.open("index.html")
    browser.driver.find_element("link text", "Kimi K3").click()
    assert browser.page == "models/kimi-k3/index.html"
    next(one for one in browser.all(".tree a.name") if one.is_displayed()).click()
    assert browser.page == "models/kimi-k3/down-projection.html"
    visited = []
    while following := browser.all("a[rel=next]"):
        following[0].click()
        visited.append(browser.text("h1"))
    assert len(visited) == 6 and visited[1] == "Latent RMSNorm"
    browser.all(".crumbs a")[0].click()
    assert browser.page == "models/kimi-k3/index.html"


def test_a_link_into_the_tree_opens_the_way_to_its_component(browser: Browser):
    browser.open("models/kimi-k3/index.html")
    closed = browser.driver.execute_script(
        "return Array.from(document.querySelectorAll('.tree details:not([open]) li'), x => x.id)"
    )
    assert closed
    browser.open("search.html")
    browser.open(f"models/kimi-k3/index.html#{closed[-1]}")
    names = browser.look(f"hidden('[id=\"{closed[-1]}\"] .name')")
    assert names["of"] >= 1 and not names["names"]


def test_on_paper_nothing_is_hidden_or_cut(every_page: Pages, browser: Browser):
    browser.media(medium="print")
    browser.window(COLUMN)
    faults = {}
    for name in every_page:
        browser.open(name)
        width = browser.look("width()")
        closed = browser.look("hidden('details > :not(summary)')")["names"]
        left = [one for one in browser.all("header nav, .find, nav.path, .skip") if _area(one)]
        cut = browser.look("cut()")
        if width["page"] > width["window"] or closed or left or cut:
            faults[name] = (width, closed[:3], [one.text for one in left], cut[:3])
    assert not faults, listed(faults)


@pytest.mark.parametrize("name", ["models/kimi-k3/index.html", "models/kimi-k2/norm.html"])
def test_a_page_prints_whole(browser: Browser, name):
    browser.media("dark")  # paper stays white
    browser.open(name)
    printed = base64.b64decode(browser.pdf(*A4))
    browser.media("dark", "print")
    browser.window(COLUMN)
    height = browser.driver.execute_script("return document.documentElement.scrollHeight")
    assert browser.look("contrasts()")["paper"][:3] == [255, 255, 255]
    sheets = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert sheets >= height / (A4[1] * 96)


def _area(element) -> float:
    size = element.size
    return size["width"] * size["height"] if element.is_displayed() else 0
