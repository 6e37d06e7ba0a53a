"""Hostile and broken checkpoints, each refused by name and reason.

    python tests/attacks            all of them
    python tests/attacks NAME...    those, with the message that a user sees

Each other file here is one attack. ``build`` makes it in an empty folder and returns the path to
read; ``REFUSED`` is what the message must say.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # where the attacks find forge

from latentkv.checkpoint import CheckpointError  # noqa: E402 - after the path
from latentkv.checkpoint.local import read_local  # noqa: E402

LONGEST = 1000  # characters of a message; a hostile file's names and values are cut in it


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("[!_]*.py"))


def attempt(name: str) -> str:
    """Run an attack; returns the refusal. AssertionError if it is none, or says too little."""
    attack = runpy.run_path(str(HERE / f"{name}.py"))
    with tempfile.TemporaryDirectory() as folder:
        where = attack["build"](Path(folder))
        try:
            read = read_local(where)
        except CheckpointError as error:
            message = str(error)
        else:
            raise AssertionError(f"{name} was read: {len(read.files)} tensors")
        assert folder in message, f"{name}: the file is not named: {message}"
        message = message.replace(folder, "FOLDER")
    for words in attack["REFUSED"]:
        assert words in message, f"{name}: {words!r} is not said: {message}"
    assert message.isprintable() and len(message) <= LONGEST, f"{name}: {message!r}"
    return message


if __name__ == "__main__":
    for chosen in sys.argv[1:] or names():
        print(f"{chosen}\n    {attempt(chosen)}")
