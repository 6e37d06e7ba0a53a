"""Digests of passages in the models' own files: what a reader's copy is held against. No torch.

A digest is the SHA-256, in hexadecimal, of the passage's lines in UTF-8, each without the blanks at
its end, with a line feed between two of them and none after the last. The text itself isn't here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from .spec import File, Lines, Place

_K2 = File("moonshotai/Kimi-K2-Instruct", "modeling_deepseek.py", "fd1984e2b7a3")
_K3 = File("moonshotai/Kimi-K3", "modeling_kimi_linear.py", "f831ab668142")
_V32 = File("deepseek-ai/DeepSeek-V3.2-Exp", "inference/model.py", "87e509a2e5a1")

DIGESTS: dict[Place, str] = {
    _K2.at((94, 111)): "c265146d53130a5fad06e79358f6e9ba727a88690f6f6d58d8de5797427ee3c2",
    _K2.at((662, 688)): "622160c40f54ce9521b3f8521d1589a1e90929bac24ef98067677d61a8b1c75b",
    _K2.at((776, 789)): "0947244a57c96c56a2409baf000e5cfcb5b3b98816aa41830ed7208e4437f86d",
    _K3.at((226, 236)): "86bfb276e147461ae8f65ed381997d71522bcbaf9e796b94e2d1d7a9cf7016c0",
    _K3.at((340, 403)): "d918c0f7e0da7822cb15247436e8773a54fb538a172fe2e8f6bacbb657d0dcd4",
    _V32.at((280, 306)): "748d6cc55456fff8c3a6a870c548ca59cf979d98574f79a2116abf7333b630ac",
    _V32.at((523, 539)): "b5651938b320c6481fb77424c464d5a34645f8fcee1b14331c2fbfa9f5eb24ea",
    _V32.at((565, 568)): "cdc21b1843ff6f6031163dbad6f96f559fab32b2c9fc0c5ce199160e21828c4c",
}


def digest(lines: Iterable[str]) -> str:
    """What `DIGESTS` has for a passage of these lines."""
    return hashlib.sha256("\n".join(line.rstrip() for line in lines).encode()).hexdigest()


def covering(repository: str, path: str, revision: str, lines: Lines) -> tuple[Lines, str] | None:
    """The shortest passage with a digest that holds ``lines``, and its digest."""
    found = [
        (passage, known)
        for place, known in DIGESTS.items()
        if (place.file.repository, place.file.path, place.file.revision)
        == (repository, path, revision)
        for passage in place.lines
        if passage.first <= lines.first and lines.last <= passage.last
    ]
    return min(found, key=lambda one: one[0].last - one[0].first, default=None)
