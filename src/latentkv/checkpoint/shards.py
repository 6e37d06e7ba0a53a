"""The headers of a checkpoint's files brought together, and held against its index. No torch."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from .contents import CheckpointError, Stored
from .files import few, short

Headers = Iterable[tuple[str, Mapping[str, Stored]]]
"""Each file's name, and the tensors that its header lists."""

_RANK = re.compile(r".*-mp(?P<of>[0-9]{1,9})\.safetensors")
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{1,9})-of-(?P<of>[0-9]{1,9})\.safetensors")


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
