"""The atlas for every reader: in the dark, by keyboard, with a screen reader, without script."""

from __future__ import annotations

import re

import pytest
import seeds
from browser import SCHEMES, Browser, Seen, axe, listed

pytest_plugins = ("browser_session",)
Pages = dict[str, Seen]
MODELS = {"Kimi K2": "kimi-k2", "Kimi K3": "kimi-k3", "DeepSeek-V3.2-Exp": "deepseek-v3.2-exp"}
LEAST = 4.5  # WCAG 2.2, level AA: the contrast of text below 24 pixels
TAB, ENTER = "\ue004", "\ue007"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_stands_out_from_what_is_behind_it(every_page: Pages, scheme):
    faint: dict[str, list[tuple[float, str, str]]] = {}
    links, pictures = 0, 0
    for name, seen in every_page.items():
        for one in seen.contrasts[scheme]["found"]:
            links, pictures = links + one["link"], pictures + one["picture"]
            if one["ratio"] < LEAST:
                said = (round(one["ratio"], 2), one["text"], one["of"])
                faint.setdefault(name, []).append(said)
    assert links > 500 and pictures > 300
    assert not faint, listed(faint)


def test_dark_is_dark_and_light_is_light(every_page: Pages):
    for name, seen in every_page.items():
        light, dark = (seen.contrasts[scheme] for scheme in SCHEMES)
        assert min(light["paper"][:3]) > 200 > 100 > max(light["ink"][:3]), name
        assert max(dark["paper"][:3]) < 60 < 180 < min(dark["ink"][:3]), name


def test_axe_finds_no_violation(every_page: Pages, browser: Browser):
    """One page of each kind, on a phone, where tables scroll."""
    carried = axe()
    if carried is None:
        pytest.skip("no axe-core: pip install axe-playwright-python")
    script = carried.read_text(encoding="utf-8")
    assert int(re.search(r"axe v4\.(\d+)", script)[1]) >= 7
    browser.window(360)
    kinds = {(name.rpartition("/")[2], name.count("/")): name for name in every_page}
    found = {}
    for name in kinds.values():
        browser.open(name)
        browser.driver.execute_script(script)
        result = browser.driver.execute_async_script(
            "axe.run(document, {resultTypes: ['violations']}).then(arguments[0])"
        )
        assert len(result["passes"]) > 10, name
        if result["violations"]:
            found[name] = [
                (one["id"], one["help"], one["nodes"][0]["html"][:200])
                for one in result["violations"]
            ]
    assert not found, listed(found)


def test_the_first_tab_offers_to_skip_to_the_content(browser: Browser):
    browser.open("models/kimi-k2/norm.html")
    browser.press(TAB)
    skip = browser.look("focus()")
    assert skip["text"] == "Skip to the content"
    assert skip["inside"] and min(skip["area"]) > 20
    browser.press(ENTER, TAB)
    assert browser.look("focus()")["text"] == "Kimi K2"  # the breadcrumb, past the navigation


def test_tab_goes_through_the_navigation_and_shows_where_it_is(browser: Browser):
    browser.open("models/deepseek-v3.2-exp/cache.html")
    passed = []
    for _ in range(14):
        browser.press(TAB)
        at = browser.look("focus()")
        assert at["outline"] >= 1 and at["inside"] and min(at["area"]) > 5, at
        passed.append(at["text"] or at["id"])
    assert passed[1:7] == ["latentkv atlas", "Compare", "Rounding", "Records", "Context", "Check"]
    assert passed[7:9] == ["find", "DeepSeek-V3.2-Exp"]
    assert len(set(passed)) == len(passed)  # no trap


def test_the_tree_opens_and_closes_by_key(browser: Browser):
    browser.open("models/kimi-k3/index.html")
    closed = browser.all(".tree details:not([open]) > summary")[0]
    browser.driver.execute_script("arguments[0].focus()", closed)
    inner = closed.find_element("xpath", "../ul/li")
    assert not inner.is_displayed()
    browser.press(ENTER)
    assert inner.is_displayed()
    browser.press(" ")
    assert not inner.is_displayed()


def test_search_filters_the_list_and_says_how_many(browser: Browser):
    browser.open("search.html")
    found = browser.all("#found")[0]
    assert found.get_attribute("aria-live") == "polite"
    every = len(browser.all("#entries > li"))
    assert found.text.startswith(f"{every} ")
    browser.all("#find")[0].send_keys("Rotation KEY")
    shown = [one.text for one in browser.all("#entries > li:not([hidden])")]
    assert all("rotation" in text.lower() and "key" in text.lower() for text in shown)
    assert 3 <= len(shown) < every and found.text.startswith(f"{len(shown)} of {every} ")
    browser.all("#find")[0].send_keys(" and no such thing")
    assert found.text.startswith("0 ")
    assert [one for one in browser.all("#entries > li") if one.is_displayed()] == []
    assert browser.console() == []


def test_search_takes_words_as_they_are_typed(browser: Browser):
    for typed, written in (("key-value down", "Key–value down"), ("quantization", "Quantisation")):
        browser.open("search.html")
        browser.all("#find")[0].send_keys(typed)
        shown = [one.text for one in browser.all("#entries > li:not([hidden])")]
        assert shown and any(written in text for text in shown)


def test_a_search_from_any_page_leads_to_what_was_found(browser: Browser):
    browser.open("models/kimi-k2/split.html")
    browser.all("#find")[0].send_keys("quantisation", ENTER)
    assert browser.arrives("search.html?q=quantisation"), browser.page
    assert browser.all("#find")[0].get_attribute("value") == "quantisation"
    shown = browser.all("#entries > li:not([hidden])")
    assert 0 < len(shown) < 20
    shown[0].find_element("tag name", "a").click()
    assert browser.page == "models/deepseek-v3.2-exp/quantisation.html"


def test_without_script_everything_is_there(browser: Browser):
    browser.scripts(False)
    browser.open("models/deepseek-v3.2-exp/index.html")
    for branch in browser.all(".tree details"):  # a parent comes before its parts
        if branch.get_attribute("open") is None:
            branch.find_element("tag name", "summary").click()
    parts = browser.look("hidden('.tree li')")
    assert parts["of"] > 30 and not parts["names"], parts["names"]
    browser.driver.find_element("link text", "Cache record").click()
    assert "fp8_ds_mla" in browser.text("main")


def test_without_script_search_lists_everything(browser: Browser):
    browser.open("search.html")
    with_script = browser.text("main")
    browser.scripts(False)
    browser.open("search.html?q=rotation")  # the field asks in vain, so nothing may be hidden
    assert browser.text("main") == with_script
    entries = browser.look("hidden('#entries > li')")
    assert entries["of"] > 200 and not entries["names"], entries["names"]


@pytest.mark.skipif(not seeds.SHARED.exists(), reason=seeds.MISSING)
@pytest.mark.parametrize("display", MODELS)
def test_what_a_seed_page_says_can_be_seen(browser: Browser, display):
    seed = seeds.load()[display]
    browser.open(f"models/{MODELS[display]}/norm.html")
    text = browser.text()
    width, instances, counted, total = seed.totals
    said = [seed.title, seed.call, *seed.path, seed.verdict, "learned"]
    said += [
        f"{width} × {instances} {counted} = {total:,}",
        f"{seed.code_file} {seed.code_heading}",
    ]
    for _symbol, axes in (seed.input, seed.output):
        said.append("[" + ", ".join(f"{size} {name}" for size, name in axes) + "]")
    for source in seed.sources:
        said += [source.id, source.grade, f"{source.repository} / {source.file}"]
        said += [source.revision, source.lines]
    shown = text.replace("’", "'")
    assert [one for one in said if one.replace("’", "'") not in shown] == []


@pytest.mark.skipif(not seeds.SHARED.exists(), reason=seeds.MISSING)
def test_a_readers_own_lines_open_by_key(browser: Browser):
    browser.open("models/kimi-k2/norm.html")
    summary = browser.all("details.read > summary")[0]
    browser.driver.execute_script("arguments[0].focus()", summary)
    assert "hidden_states.pow(2)" not in browser.text("details.read")
    browser.press(ENTER)
    assert "hidden_states.pow(2)" in browser.text("details.read")
