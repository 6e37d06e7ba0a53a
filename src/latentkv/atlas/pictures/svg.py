"""A drawing, element by element, and the text of its ``<svg>``."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

WIDTH = 340  # units; a phone of 320 px shows text of 12 units at 11 px
SANS = "system-ui, sans-serif"
MONO = "ui-monospace, monospace"


def number(value: float) -> str:
    """At most two decimals, none that says nothing."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Drawing:
    """Collects elements; `render` gives the whole.

    Each element has a class and, for pages without a stylesheet, an attribute that any rule
    overrides: text in the current colour, areas empty, lines in the current colour.

    Arguments:
        name: of the picture, unique on a page: the ids of title and description begin with it.
    """

    def __init__(self, name: str) -> None:
        self._name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        self._elements: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        kind: str = "ink",
        size: float = 12,
        anchor: str = "start",
        mono: bool = False,
        bold: bool = False,
        length: float = 0,
    ) -> None:
        """Text with its baseline at ``y``; ``length`` makes it that wide in any font."""
        more = "" if anchor == "start" else f' text-anchor="{anchor}"'
        if mono:
            more += f' font-family="{MONO}"'
        if bold:
            more += ' font-weight="bold"'
        if length:
            more += f' textLength="{number(length)}"'
        self._elements.append(
            f'<text class="{kind}" fill="currentColor" x="{number(x)}" y="{number(y)}" '
            f'font-size="{number(size)}"{more}>{escape(text)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        kind: str,
        radius: float = 0,
        dash: str = "",
    ) -> None:
        more = f' rx="{number(radius)}"' if radius else ""
        if dash:
            more += f' stroke-dasharray="{dash}"'
        self._elements.append(
            f'<rect class="{kind}" stroke="currentColor" x="{number(x)}" y="{number(y)}" '
            f'width="{number(width)}" height="{number(height)}"{more}/>'
        )

    def path(self, data: str, *, kind: str = "line", width: float = 1, dash: str = "") -> None:
        """A line without an area."""
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self._elements.append(
            f'<path class="{kind}" stroke="currentColor" stroke-width="{number(width)}"{more} '
            f'd="{data}"/>'
        )

    def shape(self, data: str, *, kind: str = "ink") -> None:
        """A filled area, such as an arrow's head or a marker."""
        self._elements.append(f'<path class="{kind}" fill="currentColor" d="{data}"/>')

    def arrow(self, x: float, top: float, bottom: float) -> None:
        """Downwards, its tip at ``bottom``."""
        at = number(x)
        self.path(f"M{at} {number(top)}V{number(bottom - 3)}")
        self.shape(f"M{at} {number(bottom)}l-3.5-5h7z", kind="muted")

    def render(self, height: float, title: str, description: str) -> str:
        """The picture, with the name and the description that a screen reader reads."""
        name = self._name
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="img" '
            f'aria-labelledby="{name}-title" aria-describedby="{name}-desc" '
            f'viewBox="0 0 {WIDTH} {number(height)}" font-family="{SANS}" fill="none">\n'
            f'<title id="{name}-title">{escape(title)}</title>\n'
            f'<desc id="{name}-desc">{escape(description)}</desc>\n'
            + "\n".join(self._elements)
            + "\n</svg>\n"
        )
