r"""LaTeX as MathML, which browsers draw by themselves.

latex2mathml has no ``aligned``: its rows and columns are laid out here, each cell converted alone.
"""

from __future__ import annotations

import re
from functools import cache
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markupsafe import Markup, escape

_ALIGNED = re.compile(r"\\begin\{aligned\}(.*)\\end\{aligned\}", re.DOTALL)
_TOKEN = re.compile(r"\\begin\{|\\end\{|\\\\|\\.|&|[^\\&]+|\\", re.DOTALL)
# LaTeX sets a thin space before a function's name, MathML none.
_FUNCTION, _SPACED = re.compile(r"<mi>(?:cos|sin|ln)</mi>"), r'<mspace width="0.167em"/>\g<0>'
# Powers in a sentence, as a terminal has them, and the m of one that is explained.
_POWER = re.compile(r"(\w+)\^(?:\(([^()]*)\)|(-?[\d.]*\d))|\bm(?= =)")
_NAMESPACE = "http://www.w3.org/1998/Math/MathML"


@cache
def mathml(latex: str, block: bool = False) -> Markup:
    """A ``math`` element, with the LaTeX as its alternative text.

    Raises ValueError for LaTeX that latex2mathml leaves partly unconverted.
    """
    display = "block" if block else "inline"
    aligned = _ALIGNED.fullmatch(latex)
    inner = _table(aligned[1]) if aligned else _row(latex, display)
    return Markup(
        f'<math xmlns="{_NAMESPACE}" display="{display}" alttext="{escape(latex)}">{inner}</math>'
    )


def powers(text: str) -> Markup:
    """The text, its powers (192^-0.5, theta^(2i/64)) as mathematics."""
    pieces, at = [], 0
    for found in _POWER.finditer(text):
        base, *exponents = found.groups()
        exponent = next(filter(None, exponents), "")
        base = r"\theta" if base == "theta" else base
        latex = f"{base}^{{{exponent}}}" if exponent else found[0]
        pieces += [escape(text[at : found.start()]), mathml(latex)]
        at = found.end()
    return Markup("").join([*pieces, escape(text[at:])])


def _table(rows: str) -> str:
    cells = "".join(f"<mtr>{''.join(map(_cell, row))}</mtr>" for row in _cells(rows))
    return f'<mtable class="aligned" displaystyle="true">{cells}</mtable>'


def _cell(latex: str) -> str:
    return f"<mtd>{_row(latex, 'block')}</mtd>"


def _cells(text: str) -> list[list[str]]:
    r"""Split at the \\ and & that stand in no inner environment."""
    rows, depth = [[""]], 0
    for token in _TOKEN.findall(text):
        depth += {"\\begin{": 1, "\\end{": -1}.get(token, 0)
        if token == r"\\" and not depth:
            rows.append([""])
        elif token == "&" and not depth:
            rows[-1].append("")
        else:
            rows[-1][-1] += token
    return [row for row in rows if any(map(str.strip, row))]


def _row(latex: str, display: str) -> str:
    if not latex.strip():
        return "<mrow></mrow>"
    text = convert(latex, display=display)
    try:
        math = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:  # an & or a < that it passed on as it was
        raise ValueError(f"latex2mathml can't convert {latex!r}: {error}") from None
    for element in math.iter():
        name = (element.text or "").strip()
        if name.startswith("\\"):
            raise ValueError(f"latex2mathml doesn't know {name} in {latex!r}")
    return _FUNCTION.sub(_SPACED, text[text.index(">") + 1 : text.rindex("<")])
