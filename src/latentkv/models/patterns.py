"""The regular expressions of a configuration's lists of modules. No torch.

A configuration comes from whoever published the model, and some regular expressions take longer
than the age of the universe. So only those are run that lists of modules need: literal text, dots,
digits, sets, alternatives, and at most three parts of any length, which take at most the cube of a
name's length.
"""

from __future__ import annotations

import re

_LONGEST = 300  # characters
_REPEATS = 3

_LITERAL = r"[A-Za-z0-9_\- /]|\\[.\-_/]"
_SET = r"\[\^?(?:[A-Za-z0-9_\-.]|\\[.dw])+\]"
_EACH = rf"(?:{_LITERAL}|{_SET}|\.|\\d|\\w)(?:[*+]|\{{\d{{1,2}}\}}|\?)?"
_CHOICE = rf"\((?:\?:)?(?:{_LITERAL}|{_SET}|\.|\\d|\|)*\)\??"
_PATTERN = re.compile(rf"\^?(?:{_EACH}|{_CHOICE})*\$?")
_ENDLESS = re.compile(r"(?<!\\)[*+]")


def compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression, if it is of the kind above.

    Raises:
        ValueError: it is of another kind, or none; says which kind is taken.
    """
    if (
        len(pattern) <= _LONGEST
        and _PATTERN.fullmatch(pattern)
        and len(_ENDLESS.findall(pattern)) <= _REPEATS
    ):
        try:
            return re.compile(pattern)
        except re.error:
            pass
    shown = pattern if len(pattern) <= 60 else f"{pattern[:57]}..."
    raise ValueError(
        f"{shown!r} is not run: only literal text, '.', digits, sets and alternatives are, and at "
        f"most {_REPEATS} of '*' and '+'"
    )
