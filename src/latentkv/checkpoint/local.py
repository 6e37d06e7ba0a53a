"""A checkpoint on disk, without its weights: configuration, index and headers. No torch."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..reading.errors import CheckpointError
from ..reading.files import CONFIG, CONFIG_LIMIT, read_text, reason
from ..reading.strict_json import read_object
from . import shards
from .contents import Checkpoint, Progress, Stored
from .header import read_header
from .index import SUFFIX, Index, read_index

_EXPECTED = (
    f"expected is a folder with {shards.INDEX} or {SUFFIX} files, one {SUFFIX} file, or an index "
    "file (.json or .json.gz)"
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
        there = _Folder(given, path, progress)
        return _checkpoint(there, *shards.gather(there, names))
    beside = _Folder(given, path.parent, progress)
    if path.name == CONFIG:
        raise CheckpointError(
            f"{given} is a configuration, which holds no tensors; {_EXPECTED}. {CONFIG} is read "
            "when it lies beside"
        )
    if path.name.endswith((".json", ".json.gz")):
        index = read_index(path)
        shards.check_whole(given, set(index.files.values()))
        return _checkpoint(beside, index, None)
    if path.name.endswith(SUFFIX):
        return _file(beside, path.name)
    raise CheckpointError(f"{given} is none of what is read here; {_EXPECTED}")


def _file(folder: _Folder, file: str) -> Checkpoint:
    given = folder.where
    if (parts := shards.part_of(file) or 1) > 1:
        raise CheckpointError(
            f"{given} is, by its name, one of {parts:,} files: a count of it alone would be of a "
            "part; give its folder"
        )
    if chosen := shards.index_of(given, sorted(os.listdir(folder.path))):
        listed = set(folder.index(chosen).files.values())
        if file in listed and len(listed) > 1:
            raise CheckpointError(
                f"{given} is one of the {len(listed):,} files that {chosen} names: a count of it "
                "alone would be of a part; give its folder"
            )
    return _checkpoint(folder, *shards.gather_all(folder, [file]))


@dataclass(frozen=True)
class _Folder:
    """A `shards.Folder` on disk; ``where`` is it, or the file in it, as given."""

    where: str
    path: Path
    progress: Progress | None

    def label(self, file: str) -> str:
        return str(self.path / file)

    def has(self, file: str) -> bool:
        return os.path.exists(self.path / file)

    def index(self, file: str) -> Index:
        return read_index(self.path / file)

    def headers(self, files: Sequence[str]) -> Iterator[tuple[str, dict[str, Stored]]]:
        for done, file in enumerate(files):
            if self.progress is not None:
                self.progress(done, len(files), file)
            yield file, read_header(self.path / file)
        if self.progress is not None:
            self.progress(len(files), len(files), "")

    def unfinished(self, index: str) -> str:
        return (
            f"Finish the download; or give the index itself, {self.label(index)}, which compares "
            "names only"
        )

    def nothing(self, names: Sequence[str]) -> CheckpointError:
        return shards.pickled(self.where, names) or CheckpointError(
            f"{self.where} has no {SUFFIX} file and no index; {_EXPECTED}"
        )


def _checkpoint(folder: _Folder, index: Index, tensors: Mapping[str, Stored] | None) -> Checkpoint:
    config, file = None, folder.label(CONFIG)
    if os.path.lexists(file):
        config = read_object(read_text(Path(file), CONFIG_LIMIT), file)
    return shards.assembled(
        index, tensors, where=folder.where, revision=None, config=config, config_file=file
    )
