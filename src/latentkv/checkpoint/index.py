"""Index files: which file of a checkpoint holds which tensor. No torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from ..reading.errors import CheckpointError
from ..reading.files import read_text, short
from ..reading.strict_json import read_object

LIMIT = 512 << 20  # bytes of an index, gunzipped; Kimi K3's, of 497,220 tensors, has 57 MiB
SUFFIX = ".safetensors"
_DRIVE = re.compile("[A-Za-z]:")


class Index(NamedTuple):
    """What an index says: each tensor's name and file, and the totals it declares, if it does."""

    files: dict[str, str]
    total_size: int | None
    total_parameters: int | None


def read_index(path: Path) -> Index:
    """An index file, as JSON or gzipped.

    Raises:
        CheckpointError: it can't be read, is no index, or names files outside its folder.
    """
    # Nothing here holds the text: with it, Kimi K3's would take 60 MB more.
    return _index(read_object(read_text(path, LIMIT), str(path)), str(path))


def parse_index(raw: bytes, file: str) -> Index:
    """An index from its text, ``file`` being its name for messages; raises as `read_index`."""
    return _index(read_object(raw, file), file)


def _index(content: dict[str, Any], file: str) -> Index:
    files, metadata = content.get("weight_map"), content.get("metadata", {})
    if not isinstance(files, dict):
        found = f"its weight_map is {short(files)}" if "weight_map" in content else "no weight_map"
        raise CheckpointError(
            f"{file} is no index of a checkpoint: {found}; an object that gives each tensor's "
            "file is expected"
        )
    if not files:
        raise CheckpointError(f"{file} lists no tensor; its weight_map is empty")
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{file}: metadata is {short(metadata)}; an object is expected")
    # One string for each file in place of one for each tensor.
    known: dict[str, str] = {}
    for name, target in files.items():
        held = known.get(target) if isinstance(target, str) else None
        if held is None:
            try:
                held = known[target] = _plain(target)
            except ValueError as error:
                raise CheckpointError(
                    f"{file} places tensor {short(name)} in {short(target)}, {error}"
                ) from None
        files[name] = held
    return Index(
        files, _total(metadata, "total_size", file), _total(metadata, "total_parameters", file)
    )


def _plain(target: Any) -> str:
    """A file's name, if it stays in the index's folder as it is written, on any system.

    This is about the text alone. A link in the folder may lead out of it: whoever owns the folder
    put it there, and the hub's cache has nothing else (snapshots/REVISION/model.safetensors leads
    to ../../blobs/DIGEST). An index comes from elsewhere, and chooses only among what is there.
    """
    if not isinstance(target, str):
        raise ValueError("which is not a string; the name of a file is expected")
    if not target.isprintable() or "\\" in target or "://" in target or _DRIVE.match(target):
        raise ValueError(
            "which is not a plain file name; no scheme, drive, backslash or unprintable character "
            "is allowed"
        )
    if not all(part not in ("", ".", "..") for part in target.split("/")):
        raise ValueError(
            "a path that leaves the index's folder or is not in its plain form; only a path within "
            "it is allowed, without '..', '.', '//' or a leading '/'"
        )
    if not target.endswith(SUFFIX):
        raise ValueError(
            f"which is no {SUFFIX} file: nothing else is read, and pickle files never; convert the "
            "checkpoint to safetensors"
        )
    return target


def _total(metadata: dict[str, Any], name: str, file: str) -> int | None:
    if name not in metadata:
        return None
    value = metadata[name]
    # Some writers sum in floating point; below 2^53 an integral value is still exact.
    if isinstance(value, float) and value.is_integer() and 0 <= value < 1 << 53:
        value = int(value)
    if type(value) is not int or value < 0:
        raise CheckpointError(
            f"{file}: metadata has {short(value)} as {name}; an integer from 0 on is expected"
        )
    return value
