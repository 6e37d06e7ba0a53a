"""Where a cited revision can be looked at: on the Hugging Face hub, or else on GitHub. No torch.

The hub serves a file only by a commit's full name, so those are here; GitHub takes a short one.
"""

from __future__ import annotations

from collections.abc import Iterable

from .spec import Lines

# (repository, revision as cited) -> the commit's full name, for repositories of the hub.
_HUB = {
    ("moonshotai/Kimi-K2-Instruct", "fd1984e2b7a3"): "fd1984e2b7a3350dbf7305fe73a4ede25c14de50",
    ("moonshotai/Kimi-K3", "f831ab668142"): "f831ab66814297da540d832a5235f8e904f29d06",
}


def address(repository: str, path: str, revision: str, lines: Lines | None = None) -> str:
    """The URL of a file at a revision, and of lines in it."""
    full = _HUB.get((repository, revision))
    host = "https://github.com" if full is None else "https://huggingface.co"
    url = f"{host}/{repository}/blob/{full or revision}/{path}"
    if lines is None:
        return url
    ends = dict.fromkeys((lines.first, lines.last))
    return f"{url}#{'-'.join(f'L{end}' for end in ends)}"


def ranges(label: str) -> Iterable[Lines]:
    """The lines that a page writes as ``94–111`` or ``227, 383``."""
    for part in label.split(", "):
        yield Lines(*map(int, part.split("–")))
