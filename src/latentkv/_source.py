"""The definition's own source text, read as a file: nothing is imported, so no torch either."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Definition:
    """A function and the functions of its file that it computes with, docstrings left out."""

    file: str
    function: str
    source: str


def definition(path: str, function: str) -> Definition:
    """``function`` of the package's file ``path``, then what it calls there, callers first.

    Functions annotated ``-> None`` only check: they compute nothing, and are left out.
    """
    package = Path(__file__).parent
    text = (package / path).read_text(encoding="utf-8")
    functions = {
        node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)
    }
    if function not in functions:
        raise LookupError(f"{path} has no function {function}, it has {', '.join(functions)}")
    wanted = [function]
    for name in wanted:  # grows while it is walked
        for node in ast.walk(functions[name]):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            called = node.func.id
            if called in functions and called not in wanted and not _checks(functions[called]):
                wanted.append(called)
    lines = text.splitlines()
    source = "\n\n\n".join(_without_docstring(functions[name], lines) for name in wanted)
    return Definition(f"{package.name}/{path}", function, source)


def _checks(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Constant) and function.returns.value is None


def _without_docstring(function: ast.FunctionDef, lines: list[str]) -> str:
    first, last = function.lineno - 1, function.end_lineno
    if ast.get_docstring(function) is None:
        kept = lines[first:last]
    else:
        docstring = function.body[0]
        kept = lines[first : docstring.lineno - 1] + lines[docstring.end_lineno : last]
    return textwrap.dedent("\n".join(kept))
