"""The atlas in headless Chromium: what the tests of what a reader sees ask of it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WIDTHS = (360, 800, 1280)  # a phone, a tablet, a desk
SCHEMES = ("light", "dark")
_LOOK = (Path(__file__).parent / "browser.js").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Seen:
    """A page as the browser shows it: each field is what a function of browser.js gave."""

    console: list[str]
    requests: list[str]
    widths: dict[int, dict[str, float]]
    formulas: list[dict[str, Any]]
    lettering: list[dict[str, Any]]  # at the narrowest width
    links: list[dict[str, Any]]
    ids: list[str]
    contrasts: dict[str, dict[str, Any]]  # by colour scheme


class Browser:
    """Chromium with an atlas, driven by page names such as "models/kimi-k2/norm.html"."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(self, page: str) -> None:
        self.driver.get(self.folder.as_uri() + "/" + page)

    @property
    def page(self) -> str:
        """The name of the page that is open, with its query and fragment."""
        return str(self.driver.current_url).removeprefix(self.folder.as_uri() + "/")

    def arrives(self, page: str) -> bool:
        """Whether that page opens soon; a key, unlike a click, doesn't wait for it."""
        until = time.monotonic() + 10
        while self.page != page and time.monotonic() < until:
            time.sleep(0.02)
        return self.page == page

    def look(self, call: str) -> Any:
        """What a function of browser.js says about the page, as "width()"."""
        return self.driver.execute_script(f"{_LOOK}\nreturn look.{call};")

    def text(self, selector: str = "body") -> str:
        """What can be read there, without what is hidden; any white space is one space."""
        found = self.driver.execute_script(
            "return document.querySelector(arguments[0]).innerText", selector
        )
        return " ".join(found.split())

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def window(self, width: int, height: int = 900) -> None:
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def media(self, scheme: str = "light", medium: str = "") -> None:
        # Without animation: a click or a look that comes at once finds the page at rest.
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        self._command(
            "Emulation.setEmulatedMedia",
            media=medium,
            features=[{"name": name, "value": value} for name, value in features.items()],
        )

    def scripts(self, run: bool) -> None:
        self._command("Emulation.setScriptExecutionDisabled", value=not run)

    def pdf(self, width: float, height: float) -> str:
        """The page on paper of so many inches, in base64."""
        size = {"paperWidth": width, "paperHeight": height, "preferCSSPageSize": True}
        return str(self._command("Page.printToPDF", **size)["data"])

    def console(self) -> list[str]:
        """Its lines since the last look."""
        return [f"{one['level']}: {one['message']}" for one in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses asked for since the last look."""
        events = [
            json.loads(one["message"])["message"] for one in self.driver.get_log("performance")
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def as_new(self) -> None:
        """A desk's window in light colours, scripts running, nothing logged."""
        self.scripts(True)
        self.media()
        self.window(1280)
        self.console()
        self.requests()

    def _command(self, name: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)


def axe() -> Path | None:
    """The script of axe-core: a package from PyPI carries it."""
    found = find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).with_name("axe.min.js")


def listed(faults: dict[str, Any]) -> str:
    """Every fault in full, a line each: pytest would shorten them."""
    return "".join(f"\n{name}: {fault}" for name, fault in faults.items())
