"""LaTeX as a line of text: the few commands that pages use, with or without Unicode."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.")
# Of each command: with Unicode, without.
_COMMANDS = {
    r"\gamma": ("γ", "gamma"),
    r"\omega": ("ω", "omega"),
    r"\theta": ("θ", "theta"),
    r"\varepsilon": ("ε", "eps"),
    r"\times": (" × ", " x "),
    r"\odot": (" ⊙ ", " * "),
    r"\in": (" ∈ ", " in "),
    r"\le": (" ≤ ", " <= "),
    r"\mapsto": (" ↦ ", " -> "),
    r"\lceil": ("⌈", "ceil("),
    r"\rceil": ("⌉", ")"),
    r"\left": ("", ""),
    r"\right": ("", ""),
    r"\quad": ("  ", "  "),
    r"\,": (" ", " "),
    r"\;": (" ", " "),
}
_ACCENTS = {
    (r"\hat", "c"): ("ĉ", "hat c"),
    (r"\tilde", "c"): ("c\N{COMBINING TILDE}", "tilde c"),
}
_OPERATORS = {"+": " + ", "-": " - ", "=": " = ", "<": " < ", ",": ", ", ";": "; "}
_AFTER_SCRIPT = (r"\right", r"\in", r"\le", r"\times", r"\rceil")
_FONTS = (r"\mathrm", r"\mathbb")


def as_lines(formula: str, unicode: bool) -> list[str]:
    """The lines of an aligned formula, what comes before their "&" set flush right."""
    inner = formula.removeprefix(r"\begin{aligned}").removesuffix(r"\end{aligned}")
    pairs = [line.partition("&") for line in inner.split(r"\\")]
    sides = [(as_text(left, unicode), as_text(right, unicode)) for left, _, right in pairs]
    wide = max(len(left) for left, _ in sides)
    return [f"{left:>{wide}}{_spaced(right)}" for left, right in sides]


def as_text(latex: str, unicode: bool) -> str:
    """LaTeX in one line; a fraction gets a slash, and a function its name."""
    text = _Reader(latex, unicode).group()
    return re.sub(" {2,}", " ", text).strip()


def _spaced(right: str) -> str:
    return f" = {right[1:].strip()}" if right.startswith("=") else f" {right}"


class _Reader:
    """Reads a formula's tokens from left to right."""

    def __init__(self, latex: str, unicode: bool) -> None:
        self.tokens = iter(_TOKEN.findall(latex))
        self.unicode = unicode

    def group(self, tight: bool = False) -> str:
        """Up to the brace that closes it, or the end; ``tight``: no blanks around operators."""
        text, script = "", False
        for token in self.tokens:
            if token == "}":
                break
            if script and (token == "{" or token[-1].isalnum() and token not in _AFTER_SCRIPT):
                text += " "
            script = token in "^_"
            if script:
                text += self._script(token)
            elif not tight and token in _OPERATORS:
                text += _OPERATORS[token]
            else:
                text += self._one(token)
        return text

    def _one(self, token: str, tight: bool = False) -> str:
        if token == "{":
            return self.group(tight)
        if token in _FONTS:
            return self._argument()
        if token == r"\frac":
            above, below = self._argument(), self._argument()
            return f"{_grouped(above)}/{_grouped(below)}"
        if token in (r"\hat", r"\tilde"):
            accented = self._argument()
            plain = (f"{token[1:]} {accented}",) * 2
            return _ACCENTS.get((token, accented), plain)[not self.unicode]
        if token in _COMMANDS:
            return _COMMANDS[token][not self.unicode]
        return token.removeprefix("\\")  # cos, max and the like

    def _argument(self, tight: bool = False) -> str:
        for token in self.tokens:
            if token != " ":
                return self._one(token, tight)
        return ""

    def _script(self, mark: str) -> str:
        content = self._argument(tight=True)
        if (mark, content, self.unicode) == ("^", "KV", True):
            return "ᴷⱽ"
        return mark + (content if content.isalnum() else f"({content.strip()})")


def _grouped(part: str) -> str:
    return part if re.fullmatch(r"[\w^]+|[\w^]+\([^()]*\)", part) else f"({part})"
