"""A configuration's object, and where in its file each key stands. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...reading.errors import CheckpointError
from ...reading.files import CONFIG, CONFIG_LIMIT, read_text
from ...reading.strict_json import read_object

Lines = Mapping[tuple[str, ...], int]


class ConfigError(CheckpointError):
    """A configuration that no contract follows from; the message names file, key and value."""


@dataclass(frozen=True)
class ConfigFile:
    """A configuration as it was read: ``file`` and ``lines`` are empty for a mere object.

    ``label`` is what messages and origins call the file, ``name`` that of its folder or repository.
    """

    content: Mapping[str, Any]
    file: str = ""
    label: str = ""
    name: str = ""
    lines: Lines | None = None

    def at(self, path: tuple[str, ...]) -> str:
        """A key with its place: ``config.json 12: text_config.kv_lora_rank``."""
        dotted = ".".join(path)
        line = self.lines.get(path) if self.lines else None
        place = " ".join(filter(None, (self.label, str(line or ""))))
        return f"{place}: {dotted}" if place else dotted


def read(where: str | os.PathLike[str] | Mapping[str, Any], file: str) -> ConfigFile:
    """A path's, folder's or object's configuration.

    Raises:
        TypeError: ``where`` is neither.
        ConfigError: there is nothing to read, or it is no JSON object.
    """
    if isinstance(where, Mapping):
        folder = file.replace("\\", "/").rpartition("/")[0].rpartition("/")[2]
        return ConfigFile(where, file, Path(file).name, folder.partition("@")[0])
    if not isinstance(where, (str, os.PathLike)):
        raise TypeError(
            "where must be the path of a config.json or of its folder, or the object in it, got "
            f"{type(where).__name__}"
        )
    path = _path(where)
    try:
        raw = read_text(path, CONFIG_LIMIT)
        content = read_object(raw, str(path))
        lines = _lines(raw.decode("utf-8-sig"))
    except CheckpointError as error:
        raise ConfigError(str(error)) from None
    return ConfigFile(content, str(path), path.name, _name(path), lines)


def _name(path: Path) -> str:
    """What to call the model: its folder, or the file where that says more."""
    if path.name != CONFIG:
        return path.stem
    folder = path.absolute().parent.resolve()
    if not _COMMIT.fullmatch(folder.name):
        return folder.name
    # the hub's cache: models--owner--name/snapshots/COMMIT
    return folder.parent.parent.name.rpartition("--")[2]


def _path(where: str | os.PathLike[str]) -> Path:
    path = Path(os.fsdecode(where))
    try:
        is_folder, is_there = path.is_dir(), path.exists()
    except (OSError, ValueError):  # too long, or with a NUL
        is_folder = is_there = False
    if not is_there:
        raise ConfigError(
            f"{str(path)[:200]!r} is not there; the path of a {CONFIG} or of a folder that holds "
            "one is expected"
        )
    if not is_folder:
        return path
    if not (path / CONFIG).exists():
        hint = ""
        if (path / "params.json").exists():
            hint = "; its params.json is of Mistral's own format, which no contract here describes"
        raise ConfigError(f"{path} is a folder without a {CONFIG}{hint}")
    return path / CONFIG


_DEEPEST = 32
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)


def _lines(text: str) -> Lines:
    """The line of each key, by the keys that lead to it; ``text`` is JSON already."""
    found: dict[tuple[str, ...], int] = {}
    path: list[str] = []
    open_, expects_key, line, last = [], False, 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", last, token.start())
        last, mark = token.start(), token.group()
        if mark[0] == '"':
            if expects_key:
                path[-1] = mark[1:-1]
                found[tuple(path)] = line
                expects_key = False
        elif mark in "{[":
            if len(path) == _DEEPEST:
                raise CheckpointError(
                    f"line {line} nests objects or lists deeper than {_DEEPEST} levels; published "
                    "configurations have 5"
                )
            open_.append(mark)
            path.append("")
            expects_key = mark == "{"
        elif mark in "}]":
            open_.pop()
            path.pop()
            expects_key = False
        else:
            expects_key = open_[-1] == "{"
    return found
