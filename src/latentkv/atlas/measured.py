"""What ``latentkv check --json`` measured, read back for the page about implementations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .. import models
from ..reading.files import short
from ..screen import printable
from .errors import AtlasError

_LARGEST = 4 << 20  # bytes; all implementations found make some 40,000
_LONGEST = 2000  # characters of a reason
_GRADES = ("identical", "follows", "deviates")

# What each row must have, and what may be in it.
_FIELDS: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "implementation": (str,),
    "grade": (str,),
    "order": (str, type(None)),
    "eps": (float, int, type(None)),
    "eps_placement": (str, type(None)),
    "residual": (str, type(None)),
    "out_dtype": (str, type(None)),
    "special": (str, type(None)),
    "differs": (float, int),
    "ulp": (int,),
    "strided": (str, type(None)),
    "batch_invariant": (bool, type(None)),
    "reason": (str,),
    "date": (str,),
    "versions": (dict,),
}
_PATH_FIELDS: dict[str, tuple[type, ...]] = {
    "key": (str,),
    "layout": (str, type(None)),
    "roundings": (str, type(None)),
    "key_differs": (float, int, type(None)),
    "latent": (str,),
    "rules": (list,),
    "group": (int, type(None)),
    "slot_minus_1": (str,),
}


@dataclass(frozen=True)
class Reason:
    """Why ``implementations`` deviate from what ``models`` do."""

    text: str
    models: tuple[str, ...]
    implementations: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """One file: the rows of one run of ``check``.

    Arguments:
        component: "norm" or "path".
        date: when it was measured, in UTC.
        versions: of the packages it was measured with.
        rows: as they were printed.
        models: the names of the models held against, in the order of `models.names`.
        implementations: in the order in which they were measured.
    """

    component: str
    file: str
    date: str
    versions: tuple[tuple[str, str], ...]
    rows: tuple[dict[str, Any], ...]
    models: tuple[str, ...]
    implementations: tuple[str, ...]

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why some deviate: each reason once for the models that it is about."""
        found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for name in self.implementations:
            against: dict[str, list[str]] = {}
            for model in self.models:
                row = self.row(name, model)
                if row is not None and row["grade"] == "deviates":
                    against.setdefault(row["reason"], []).append(model)
            for text, deviated in against.items():
                found.setdefault((text, tuple(deviated)), []).append(name)
        return tuple(Reason(*key, tuple(names)) for key, names in found.items())

    def row(self, implementation: str, model: str) -> dict[str, Any] | None:
        for row in self.rows:
            if (row["implementation"], row["model"]) == (implementation, model):
                return row
        return None


def measured(files: Sequence[str | Path]) -> tuple[Measured, ...]:
    """Each file's results, the norm's first.

    Raises AtlasError for a file that isn't what ``latentkv check --json`` prints.
    """
    read = [_measured(Path(file)) for file in files]
    for component in {one.component for one in read}:
        if sum(one.component == component for one in read) > 1:
            raise AtlasError(f"--check is given twice for {component}: give one file for each")
    return tuple(sorted(read, key=lambda one: one.component))


def _measured(path: Path) -> Measured:
    rows = _rows(path)
    component = "path" if "key" in rows[0] else "norm"
    if any(("key" in row) != (component == "path") for row in rows):
        raise _refused(path, "its results are of norms and of paths")
    wanted = _FIELDS | (_PATH_FIELDS if component == "path" else {})
    for number, row in enumerate(rows):
        _check(path, number, row, wanted)
    measured = {(row["date"], tuple(row["versions"].items())) for row in rows}
    if len(measured) > 1:
        raise _refused(path, "its results are of several runs")
    ((date, versions),) = measured
    found = {row["model"] for row in rows}
    return Measured(
        component,
        path.name,
        date,
        versions,
        tuple(rows),
        tuple(name for name in models.names() if name in found),
        _unique(row["implementation"] for row in rows),
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        if path.exists() and not path.is_file():
            raise _refused(path, "it can't be read: it is no file")
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
        if len(raw) > _LARGEST:
            raise _refused(path, f"it has more than {_LARGEST:,} bytes")
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refused(path, "it is not UTF-8 text") from None
    except OSError as error:
        raise _refused(path, f"it can't be read: {error.strerror}") from None
    try:
        rows = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"it is not JSON: {error}") from None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise _refused(path, "it is not a list of results")
    return rows


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON's")


def _check(path: Path, number: int, row: dict[str, Any], wanted: dict[str, Any]) -> None:
    def refuse(what: str, value: object) -> NoReturn:
        raise _refused(path, f"result {number} {what} {short(value)}")

    for name, types in wanted.items():
        if name not in row:
            refuse("has no", name)
        value = row[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            refuse(f"has {name}", value)
        if isinstance(value, str):
            row[name] = _text(value)
    versions, rules = row["versions"], row.get("rules", [])
    if not versions or not all(isinstance(one, str) for one in versions.values()):
        refuse("has versions", versions)
    if not all(isinstance(rule, str) for rule in rules) or (rules and row.get("group") is None):
        refuse("has rules", rules)
    row["versions"] = {_text(name): _text(value) for name, value in versions.items()}
    for name in ("differs", "key_differs"):
        value = row.get(name)
        if value is not None and not 0 <= value <= 1:
            refuse(f"has {name}", value)
    if row["ulp"] < 0:
        refuse("has ulp", row["ulp"])
    if row["eps"] is not None and not 0 <= row["eps"] < 1e30:
        refuse("has eps", row["eps"])
    if row["model"] not in models.names():
        refuse("is not about a model of this atlas:", row["model"])
    if row["grade"] not in _GRADES:
        refuse("has grade", row["grade"])


def _text(value: str) -> str:
    """What a page can show: no control characters, no half pairs, and not without end."""
    return printable(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}...", keep="\n")


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _refused(path: Path, what: str) -> AtlasError:
    return AtlasError(
        f"--check {path}: {what}; give what `latentkv check --json` or `latentkv check path "
        "--json` prints"
    )
