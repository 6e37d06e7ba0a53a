"""Standard output as pages see it: its width, its encoding, and how words are set on it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PAGE_WIDTH = 100  # longer lines are hard to read
_NARROWEST, _WIDEST = 30, 1000  # whatever COLUMNS says

# For streams that can't carry Unicode. Longer names come first.
_ASCII = {
    "ĉᴷⱽ": "hat c^KV",
    "cᴷⱽ": "c^KV",
    "m₂": "m2",
    "xⱼ²": "x_j^2",
    "γ": "gamma",
    "ε": "eps",
    "√": "sqrt",
    "∑": "sum",
    "⊙": "*",
    "×": "x",
    "·": "-",
    "–": "-",
    "›": ">",
    "→": "->",
    "─": "-",
    "│": "|",
    **dict.fromkeys("┌┬┐├┤└┴┘", "+"),
    "≠": "!=",
    "◂": "<",
}
_POWERS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


class Screen:
    """Where everything goes that is printed for a person."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, emoji=False, markup=False)
        if not self.console.is_terminal and "COLUMNS" not in os.environ:
            self.console.width = PAGE_WIDTH  # a pipe has no width; rich would take 80
        self.console.width = min(max(self.console.width, _NARROWEST), _WIDEST)
        self.unicode = self.console.encoding.lower().startswith("utf")

    def text(self, content: str, style: str = "") -> Text:
        content = printable(content, keep="\n")
        return Text(content if self.unicode else to_ascii(content), style=style)

    def write(self, parts: Sequence[tuple[RenderableType, int]]) -> None:
        """Print each part at its width."""
        with self.console.capture() as capture:
            for part, width in parts:
                self.console.print(part, width=width)
        # rich fills cells with blanks up to their width, which piped output has no use for
        for line in capture.get().splitlines():
            print(line.rstrip(), file=self.console.file)

    def fields(self, fields: dict[str, str], *, stacked: bool = False) -> RenderableType:
        """Names to the left, values beside them or, stacked, below."""
        if stacked:
            return Group(
                *(
                    Padding(part, (0, 0, 0, indent))
                    for name, value in fields.items()
                    for part, indent in (
                        (self.text(name, "dim"), 2),
                        (Wrapped(self.text(value)), 4),
                    )
                )
            )
        grid = Table.grid(padding=(0, 2), pad_edge=True)
        grid.add_column(style="dim", min_width=min(13, self.console.width // 3), overflow="fold")
        grid.add_column(overflow="fold")
        for name, value in fields.items():
            grid.add_row(self.text(name), Wrapped(self.text(value)))
        return grid


class Wrapped:
    """Text in which a name that no line holds is broken between its parts, as rich doesn't."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        cuts = [
            word.start() + cut
            for word in re.finditer(r"\S+", self.text.plain)
            for cut in _cuts(word.group(), options.max_width)
        ]
        yield Text("\n").join(self.text.divide(cuts))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.text)


def _cuts(word: str, width: int) -> list[int]:
    """Where a word is broken so that every part fits: after a dot or the like, an underscore."""
    cuts, start = [], 0
    while len(word) - start > width:
        window = word[start : start + width]
        found = re.match(r".*[./(,]", window) or re.match(r".*_", window)
        start += found.end() if found else width
        cuts.append(start)
    return cuts


def printable(content: str, keep: str = "") -> str:
    """Escape what a terminal would obey instead of showing: names come from strangers' files."""
    if content.isprintable():
        return content
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii")
        for one in content
    )


def to_ascii(content: str) -> str:
    """The nearest that ASCII has."""
    for given, plain in _ASCII.items():
        content = content.replace(given, plain)
    if not content.isascii():
        content = content.replace("10⁻", "10^⁻").translate(_POWERS)
    return content.encode("ascii", "replace").decode("ascii")
