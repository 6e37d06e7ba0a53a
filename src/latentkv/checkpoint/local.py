"""A checkpoint on disk, without its weights: configuration, index and headers. No torch.

What counts is what the index names. A safetensors file beside it that the index doesn't name is
no part of the checkpoint (some repositories hold a second form of it, consolidated.safetensors),
and is not looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import shards
from .contents import Checkpoint, CheckpointError, Progress, Stored
from .files import few, read_text, reason
from .header import read_header
from .index import SUFFIX, Index, read_index
from .strict_json import read_object

CONFIG = "config.json"
CONFIG_LIMIT = 8 << 20  # bytes; those with a label for each of 100,000 classes have a few MB
INDEX = f"model{SUFFIX}.index.json"
_INDICES = (f"{SUFFIX}.index.json", f"{SUFFIX}.index.json.gz")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_EXPECTED = (
    f"expected is a folder with {INDEX} or {SUFFIX} files, one {SUFFIX} file, or an index file "
    "(.json or .json.gz)"
)


def read_local(where: str | os.PathLike[str], progress: Progress | None = None) -> Checkpoint:
    """What a checkpoint on disk says of itself; config.json is read where it lies beside.

    Arguments:
        where: a folder: the files that its index names, or without an index its safetensors files;
            a safetensors file; or an index (.json or .json.gz), which is read alone, and gives
            the tensors' names without shapes.
        progress: called before each file whose header is read, and once after the last.

    Raises:
        CheckpointError: it can't be read as a whole: a file is absent, truncated, contradicts
            itself or the index, or is none of these. There is no partial result.
    """
    given = os.fsdecode(where)
    if not given or "\0" in given:
        raise CheckpointError(f"{given!r} is no path; {_EXPECTED}")
    path = Path(given)
    try:
        folder = stat.S_ISDIR(os.stat(path).st_mode)
        names = sorted(os.listdir(path)) if folder else []
    except FileNotFoundError:
        raise CheckpointError(f"there is no file or folder {given}; {_EXPECTED}") from None
    except OSError as error:
        raise CheckpointError(f"{given} can't be read: {reason(error)}") from error
    if folder:
        return _folder(given, path, names, progress)
    if path.name == CONFIG:
        raise CheckpointError(
            f"{given} is a configuration, which holds no tensors; {_EXPECTED}. {CONFIG} is read "
            "when it lies beside"
        )
    if path.name.endswith((".json", ".json.gz")):
        index = read_index(path)
        shards.check_whole(given, set(index.files.values()))
        return _checkpoint(given, path.parent, index, None)
    if path.name.endswith(SUFFIX):
        return _file(given, path, progress)
    raise CheckpointError(f"{given} is none of what is read here; {_EXPECTED}")


def _file(given: str, path: Path, progress: Progress | None) -> Checkpoint:
    if (parts := shards.part_of(path.name) or 1) > 1:
        raise CheckpointError(
            f"{given} is, by its name, one of {parts:,} files: a count of it alone would be of a "
            "part; give its folder"
        )
    if chosen := index_of(given, sorted(os.listdir(path.parent))):
        listed = set(read_index(path.parent / chosen).files.values())
        if path.name in listed and len(listed) > 1:
            raise CheckpointError(
                f"{given} is one of the {len(listed):,} files that {chosen} names: a count of it "
                "alone would be of a part; give its folder"
            )
    return _without_index(given, path.parent, [path.name], progress)


def _folder(given: str, path: Path, names: Sequence[str], progress: Progress | None) -> Checkpoint:
    if chosen := index_of(given, names):
        index = read_index(path / chosen)
        files = sorted(set(index.files.values()))
        shards.check_whole(str(path / chosen), files)
        if absent := [file for file in files if not os.path.exists(path / file)]:
            raise CheckpointError(
                f"{given} lacks {len(absent):,} of the {len(files):,} files that {chosen} names: "
                f"{few(absent)}. Finish the download; or give the index itself, {path / chosen}, "
                "which compares names only"
            )
        tensors = shards.indexed(str(path / chosen), index.files, _headers(path, files, progress))
        return _checkpoint(given, path, index, tensors)
    if found := [name for name in names if name.endswith(SUFFIX)]:
        return _without_index(given, path, shards.without_index(given, found), progress)
    if pickles := [name for name in names if name.endswith(PICKLES)]:
        raise CheckpointError(
            f"{given} has no {SUFFIX} file, but pickle files: {few(pickles)}. Those run code when "
            "they are read, so they never are: convert them to safetensors"
        )
    raise CheckpointError(f"{given} has no {SUFFIX} file and no index; {_EXPECTED}")


def index_of(given: str, names: Sequence[str]) -> str | None:
    """The folder's index: the usual name's, else the only one."""
    indices = [name for name in names if name.endswith(_INDICES)]
    for usual in (INDEX, f"{INDEX}.gz"):
        if usual in indices:
            return usual
    if len(indices) > 1:
        raise CheckpointError(
            f"{given} has {len(indices):,} indices and none is {INDEX}: {few(indices, 5)}. Put the "
            "checkpoint that is meant into a folder of its own"
        )
    return indices[0] if indices else None


def _without_index(
    given: str, folder: Path, files: Sequence[str], progress: Progress | None
) -> Checkpoint:
    shards.check_whole(given, files)
    tensors, held = shards.unindexed(given, _headers(folder, files, progress))
    return _checkpoint(given, folder, Index(held, None, None), tensors)


def _headers(
    folder: Path, files: Sequence[str], progress: Progress | None
) -> Iterator[tuple[str, dict[str, Stored]]]:
    for done, file in enumerate(files):
        if progress is not None:
            progress(done, len(files), file)
        yield file, read_header(folder / file)
    if progress is not None:
        progress(len(files), len(files), "")


def _checkpoint(
    given: str, folder: Path, index: Index, tensors: Mapping[str, Stored] | None
) -> Checkpoint:
    config, config_file = _config(folder / CONFIG)
    return Checkpoint(
        where=given,
        revision=None,
        config=config,
        config_file=config_file,
        files=index.files,
        tensors=tensors,
        declared_bytes=index.total_size,
        declared_parameters=index.total_parameters,
    )


def _config(path: Path) -> tuple[dict[str, Any] | None, str]:
    if not os.path.lexists(path):
        return None, ""
    return read_object(read_text(path, CONFIG_LIMIT), str(path)), str(path)
