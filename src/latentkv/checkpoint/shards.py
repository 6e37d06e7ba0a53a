"""The files that are a checkpoint, and their headers brought together. No torch.

What counts is what the index names. A safetensors file beside it that the index doesn't name is
no part of the checkpoint (some repositories hold a second form of it, consolidated.safetensors),
and is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from ..reading.errors import CheckpointError
from ..reading.files import few, short
from .contents import Checkpoint, Stored
from .index import SUFFIX, Index

Headers = Iterable[tuple[str, Mapping[str, Stored]]]
"""Each file's name, and the tensors that its header lists."""

INDEX = f"model{SUFFIX}.index.json"
_INDICES = (f"{SUFFIX}.index.json", f"{SUFFIX}.index.json.gz")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_RANK = re.compile(r".*-mp(?P<of>[0-9]{1,9})\.safetensors")
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{1,9})-of-(?P<of>[0-9]{1,9})\.safetensors")


class Folder(Protocol):
    """Where a checkpoint's files lie: a folder on disk, or a commit of a repository."""

    @property
    def where(self) -> str:
        """What messages call it."""

    def label(self, file: str) -> str:
        """What messages call one of its files."""

    def has(self, file: str) -> bool:
        """Whether it is there; ``file`` may be in a folder within."""

    def index(self, file: str) -> Index:
        """The index in this file."""

    def headers(self, files: Sequence[str]) -> Headers:
        """Those of these files, in this order."""

    def unfinished(self, index: str) -> str:
        """What to do where files that the index names are absent."""

    def nothing(self, names: Sequence[str]) -> CheckpointError:
        """The error where none of these is an index or a safetensors file."""


def gather(folder: Folder, names: Sequence[str]) -> tuple[Index, dict[str, Stored]]:
    """The checkpoint in a folder: the files that its index names, else its safetensors files.

    Arguments:
        names: of the files directly in it that may be chosen, sorted.

    Raises:
        CheckpointError: a file is absent, contradicts the index, or there is no checkpoint.
    """
    where = folder.where
    if chosen := index_of(where, names):
        index, label = folder.index(chosen), folder.label(chosen)
        files = sorted(set(index.files.values()))
        check_whole(label, files)
        if absent := [file for file in files if not folder.has(file)]:
            raise CheckpointError(
                f"{where} lacks {len(absent):,} of the {len(files):,} files that {chosen} names: "
                f"{few(absent)}. {folder.unfinished(chosen)}"
            )
        return index, indexed(label, index.files, folder.headers(files))
    if found := [name for name in names if name.endswith(SUFFIX)]:
        return gather_all(folder, without_index(where, found))
    raise folder.nothing(names)


def pickled(where: str, names: Iterable[str]) -> CheckpointError | None:
    """The error for pickle files in place of a checkpoint, if these are some."""
    if pickles := [name for name in names if name.endswith(_PICKLES)]:
        return CheckpointError(
            f"{where} has no {SUFFIX} file, but pickle files, {few(pickles)}. Those run code when "
            "they are read, so they never are: convert them to safetensors, or take a checkpoint "
            f"that has {SUFFIX} files"
        )
    return None


def gather_all(folder: Folder, files: Sequence[str]) -> tuple[Index, dict[str, Stored]]:
    """These files as a checkpoint without an index."""
    check_whole(folder.where, files)
    tensors, held = unindexed(folder.where, folder.headers(files))
    return Index(held, None, None), tensors


def assembled(
    index: Index,
    tensors: Mapping[str, Stored] | None,
    *,
    where: str,
    revision: str | None,
    config: Mapping[str, Any] | None,
    config_file: str,
) -> Checkpoint:
    """The checkpoint; the arguments are its own, ``config_file`` also where there is none."""
    return Checkpoint(
        where=where,
        revision=revision,
        config=config,
        config_file="" if config is None else config_file,
        files=index.files,
        tensors=tensors,
        declared_bytes=index.total_size,
        declared_parameters=index.total_parameters,
    )


def index_of(where: str, names: Sequence[str]) -> str | None:
    """The folder's index: the usual name's, else the only one."""
    indices = [name for name in names if name.endswith(_INDICES)]
    for usual in (INDEX, f"{INDEX}.gz"):
        if usual in indices:
            return usual
    if len(indices) > 1:
        raise CheckpointError(
            f"{where} has {len(indices):,} indices and none is {INDEX}: {few(indices, 5)}. Put the "
            "checkpoint that is meant into a folder of its own"
        )
    return indices[0] if indices else None


def indexed(index: str, files: Mapping[str, str], headers: Headers) -> dict[str, Stored]:
    """The tensors of all files that an index names: exactly those that it lists, each in its file.

    Arguments:
        index: the index's name, for messages.
        files: each tensor's name and file, as the index has it.
        headers: of each file that the index names.

    Raises:
        CheckpointError: a file holds a tensor that the index doesn't list or places elsewhere, or
            lacks one that the index places there. A count from either would be of neither.
    """
    tensors: dict[str, Stored] = {}
    for file, header in headers:
        if unlisted := [name for name in header if name not in files]:
            raise CheckpointError(
                f"{file} holds {_tensors(unlisted)} that {index} doesn't list: {few(unlisted)}. "
                "They are of two checkpoints or states: download both again"
            )
        for name, stored in header.items():
            if files[name] != file:
                raise CheckpointError(
                    f"{file} holds tensor {short(name)}, which {index} places in "
                    f"{short(files[name])}: download both again"
                )
            tensors[name] = stored
    if len(tensors) < len(files):
        absent = [name for name in files if name not in tensors]
        raise CheckpointError(
            f"{index} lists {_tensors(absent)} that the named files lack: {few(absent)}, the first "
            f"in {short(files[absent[0]])}. They are of two checkpoints or states: download both "
            "again"
        )
    return tensors


def unindexed(where: str, headers: Headers) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of all files, and each one's file; ``where`` is the whole's name, for messages.

    Raises:
        CheckpointError: two files hold a tensor of one name.
    """
    tensors: dict[str, Stored] = {}
    files: dict[str, str] = {}
    for file, header in headers:
        for name, stored in header.items():
            if name in files:
                raise CheckpointError(
                    f"{where}: {short(files[name])} and {short(file)} both hold tensor "
                    f"{short(name)}, and no index says which counts. Files split by rank "
                    "(model0-mp8.safetensors) are not read; give one file, or the whole checkpoint "
                    "with its index"
                )
            tensors[name], files[name] = stored, file
    return tensors, files


def part_of(file: str) -> int | None:
    """How many files there are with this one, by its name (``-00001-of-00096``); else None."""
    numbered = _NUMBERED.fullmatch(file)
    return None if numbered is None else int(numbered["of"])


def check_whole(where: str, files: Collection[str]) -> None:
    """Refuse files that by their names are parts of more: of one set without all its numbers.

    Raises:
        CheckpointError: a number is absent, or the files are those of single ranks, which hold
            parts of tensors.
    """
    if any(int(match["of"]) > 1 for file in files if (match := _RANK.fullmatch(file))):
        raise CheckpointError(
            f"{where}: {few(sorted(files))} by their names are split by rank, and hold parts of "
            "tensors: give the published checkpoint, or one converted for a single rank (-mp1)"
        )
    sets: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if match := _NUMBERED.fullmatch(file):
            sets.setdefault((match["stem"], int(match["of"])), set()).add(int(match["number"]))
    for (stem, of), numbers in sets.items():
        if len(numbers) != of:
            raise CheckpointError(
                f"{where} has {len(numbers):,} of the {of:,} files of "
                f"{stem}-*-of-{of}.safetensors: a count of them would be of a part. Download all "
                "of one checkpoint"
            )


def without_index(where: str, files: Collection[str]) -> list[str]:
    """Those of a folder's safetensors files that are its checkpoint, where no index says so.

    They are model.safetensors, as loaders have it; or a numbered set, if it is complete and alone;
    or all.

    Raises:
        CheckpointError: parts of a numbered set are absent, or it is not alone.
    """
    numbered = {file: match for file in files if (match := _NUMBERED.fullmatch(file))}
    if not numbered:
        return ["model.safetensors"] if "model.safetensors" in files else sorted(files)
    sets = {(match["stem"], match["of"]) for match in numbered.values()}
    others = sorted(set(files) - set(numbered))
    if len(sets) > 1 or others:
        raise CheckpointError(
            f"{where} has no index and holds more than one checkpoint, or parts of one: "
            f"{few(sorted(files), 5)}. Give one file, or a folder with the index "
            "(model.safetensors.index.json)"
        )
    stem, of = sets.pop()
    have = {int(match["number"]) for match in numbered.values()}
    if len(have) < len(numbered) or not 1 <= min(have) <= max(have) <= int(of):
        raise CheckpointError(
            f"{where} has no index, and its files are not numbered 1 to {int(of):,}, each once: "
            f"{few(sorted(files), 5)}. Download the index (model.safetensors.index.json)"
        )
    if absent := int(of) - len(have):
        first = islice((n for n in range(1, int(of) + 1) if n not in have), 3)
        raise CheckpointError(
            f"{where} lacks {absent:,} of the {int(of):,} files of {stem}-*-of-{of}.safetensors: "
            f"number {', '.join(map(str, first))}{' and more' if absent > 3 else ''}. Finish the "
            "download"
        )
    return sorted(numbered)


def _tensors(names: Collection[str]) -> str:
    return "a tensor" if len(names) == 1 else f"{len(names):,} tensors"
