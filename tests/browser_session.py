"""A pytest plugin: one headless Chromium and one atlas for the whole session.

Where Chromium, its driver or selenium is missing, what needs them is skipped, and the reason says
which.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import seeds
from browser import SCHEMES, WIDTHS, Browser, Seen

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",  # it is small in containers
    "--hide-scrollbars",  # so that a window is as wide inside as it is
)


@pytest.fixture(scope="session")
def atlas_folder(
    everything_checked: tuple[list[dict[str, Any]], str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An atlas with all that one can have: results of `check`, and copies where the seeds are."""
    pytest.importorskip("jinja2", reason="the atlas needs jinja2")
    pytest.importorskip("latex2mathml", reason="the atlas needs latex2mathml")
    from latentkv.atlas import build, write

    work = tmp_path_factory.mktemp("atlas")
    rows = everything_checked[0]
    (work / "norm.json").write_text(json.dumps(rows))
    # Of the path only the columns matter here, not what was measured: a run takes a minute.
    path = {"key": "rotated", "layout": "interleaved", "roundings": "each_step", "group": 128}
    path |= {"key_differs": 0.25, "latent": "quantised", "rules": ["act_quant", "vllm_fused"]}
    path |= {"slot_minus_1": "written to the last slot"}
    (work / "path.json").write_text(json.dumps([row | path for row in rows]))
    checks = [work / "norm.json", work / "path.json"]
    write(build(checks=checks, sources=_copies(work / "copies")), work / "out")
    (work / "out/unmeasured.html").write_text(build()["check.html"], encoding="utf-8")
    return work / "out"


def _copies(folder: Path) -> Path:
    """The models' files as far as the seeds' excerpts go, each line at its number."""
    folder.mkdir()
    for seed in seeds.load().values():
        source = seed.sources[0]
        lines = [""] * 1000
        for place, text in seed.excerpts.items():
            first = int(place.split("–")[0])
            lines[first - 1 : first - 1 + len(text)] = text
        path = folder / source.repository / source.file
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    names = ("chromium", "chromium-browser", "google-chrome")
    binary = next(filter(None, map(shutil.which, names)), None)
    server = shutil.which("chromedriver")
    if binary is None:
        pytest.skip("no Chromium: apt-get install chromium chromium-driver")
    if server is None:
        pytest.skip("no chromedriver: apt-get install chromium-driver")
    reason = "no selenium: pip install selenium"
    webdriver = pytest.importorskip("selenium.webdriver", reason=reason)
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    # Loopback needs no proxy, whatever the environment has.
    kept = {name: os.environ.pop(name, None) for name in ("http_proxy", "HTTP_PROXY")}
    try:
        started = webdriver.Chrome(options=options, service=Service(server))
    finally:
        os.environ.update({name: value for name, value in kept.items() if value is not None})
    started.set_script_timeout(60)
    yield started
    started.quit()


@pytest.fixture(scope="session")
def chromium(driver: Any, atlas_folder: Path) -> Browser:
    """Use `browser`, which begins anew in each test."""
    return Browser(driver, atlas_folder)


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    chromium.as_new()
    return chromium


@pytest.fixture(scope="session")
def every_page(chromium: Browser) -> dict[str, Seen]:
    """Each page of the atlas, seen once: name -> what there is."""
    chromium.as_new()
    names = sorted(
        path.relative_to(chromium.folder).as_posix() for path in chromium.folder.rglob("*.html")
    )
    return {name: _seen(chromium, name) for name in names}


def _seen(browser: Browser, name: str) -> Seen:
    browser.open(name)
    contrasts = {}
    for scheme in reversed(SCHEMES):
        browser.media(scheme)
        contrasts[scheme] = browser.look("contrasts()")
    widths = {}
    for width in reversed(WIDTHS):
        browser.window(width)
        widths[width] = browser.look("width()")
    return Seen(
        console=browser.console(),
        requests=browser.requests(),
        widths=widths,
        formulas=browser.look("formulas()"),
        lettering=browser.look("lettering()"),
        links=browser.look("links()"),
        ids=browser.look("ids()"),
        contrasts=contrasts,
    )
