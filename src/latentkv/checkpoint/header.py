"""safetensors headers: what a file holds, without its weights. No torch.

A file is 8 bytes, the header's length n as a little-endian integer; n bytes of JSON, which give
each tensor's dtype, shape and place; and the data section, to the file's end. As the safetensors
library does, a file is refused unless its tensors cover that section exactly. Stricter than the
library, which lets them pass, are these refusals: a name that stands twice, a field other than
the three, a tensor written as a list of them, ``__metadata__`` that is null, white space before the
header's brace, an integer of more than 40 digits, and a shape that no tensor has: of more than 64
dimensions, or with a zero beside sizes that can't be multiplied.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..reading.errors import CheckpointError
from ..reading.files import few, instead, opened, read_up_to, short
from ..reading.strict_json import read_object
from .contents import BITS, DTYPES, Stored

LENGTH = 8  # bytes of the header's length
LONGEST = 100_000_000  # bytes of a header, as the format allows
DIMENSIONS = 64  # NumPy's limit; no tensor of a checkpoint has more than a few
_FIELDS = frozenset(("dtype", "shape", "data_offsets"))


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of a file; no byte after its header is read.

    Raises:
        CheckpointError: the file can't be read, is no safetensors file, or contradicts itself.
    """
    file = str(path)
    with opened(path) as opened_file:
        size = os.fstat(opened_file.fileno()).st_size
        length = header_length(read_up_to(opened_file, LENGTH), file, size)
        raw = read_up_to(opened_file, length)
    return parse_header(raw, file, size - LENGTH - length)


def header_length(first: bytes, file: str, file_size: int | None = None) -> int:
    """The header's length in bytes.

    Arguments:
        first: the file's first 8 bytes.
        file: its name, for messages.
        file_size: its size in bytes, where it is known.

    Raises:
        CheckpointError: there is no such header; says what the file is instead, where it shows.
    """
    length = int.from_bytes(first[:LENGTH], "little")
    if (len(first) < LENGTH or length > LONGEST) and (found := instead(first)):
        raise CheckpointError(f"{file} is {found}")
    if len(first) < LENGTH:
        raise CheckpointError(
            f"{file} has {len(first)} bytes; a safetensors file has at least 8 and a header: "
            "download it again"
        )
    if length > LONGEST:
        raise CheckpointError(
            f"{file} is damaged or no safetensors file: its first 8 bytes give its header "
            f"{length:,} bytes; the format allows {LONGEST:,}"
        )
    if file_size is not None and LENGTH + length > file_size:
        raise CheckpointError(
            f"{file} is truncated: {LENGTH + length - file_size:,} of its header's {length:,} "
            "bytes are missing: download it again"
        )
    return length


def parse_header(raw: bytes, file: str, data_bytes: int | None = None) -> dict[str, Stored]:
    """The tensors of a header.

    Arguments:
        raw: the header, without the 8 bytes before it.
        file: the file's name, for messages.
        data_bytes: the size in bytes of all that follows the header, where it is known.

    Returns:
        Each tensor's name, and what the header says of it.

    Raises:
        CheckpointError: the header breaks the format's rules, or doesn't fit ``data_bytes``.
    """
    if raw[:1] != b"{":
        raise CheckpointError(
            f"{file} is damaged or no safetensors file: its header begins with "
            f"{short(raw[:1])[1:]}; the format has '{{' there"
        )
    entries = read_object(raw, file, "header")
    _check_metadata(entries.pop("__metadata__", {}), file)
    tensors: dict[str, Stored] = {}
    places: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        try:
            tensors[name], begin, end = _tensor(entry)
        except ValueError as error:
            raise _fault(file, f"tensor {short(name)} {error}") from None
        places.append((begin, end, name))
    _check_places(places, file, data_bytes)
    return tensors


def _check_metadata(metadata: Any, file: str) -> None:
    if not isinstance(metadata, dict):
        raise _fault(file, f"__metadata__ is {short(metadata)}; an object is expected")
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise _fault(
                file, f"__metadata__ has {short(value)} at {short(key)}; only strings are allowed"
            )


def _tensor(entry: Any) -> tuple[Stored, int, int]:
    """What one entry says, and where the tensor begins and ends in the data section."""
    if not isinstance(entry, dict):
        raise ValueError(f"is {short(entry)}; an object with dtype, shape and data_offsets is due")
    if entry.keys() != _FIELDS:
        raise ValueError(
            f"has the fields {few(entry, 5) or 'none'}; exactly dtype, shape and data_offsets "
            "are allowed"
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not _sizes(shape):
        raise ValueError(f"has the shape {short(shape)}; a list of integers from 0 on is expected")
    if not (_sizes(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1]):
        raise ValueError(
            f"has the data_offsets {short(offsets)}; two integers from 0 on, the first not above "
            "the second, are expected"
        )
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(
            f"has the dtype {short(dtype)}, which is not known here; known are {', '.join(DTYPES)}"
        )
    stored = _stored(dtype, tuple(shape))
    begin, end = offsets
    if end - begin != stored.bytes:
        raise ValueError(
            f"has {end - begin:,} bytes by its data_offsets {begin:,} to {end:,}, but "
            f"{stored.bytes:,} by its shape {list(shape)} in {dtype}"
        )
    return stored, begin, end


def _sizes(value: Any) -> bool:
    """A list of integers from 0 on; true and false, which Python takes for integers, are not."""
    if not isinstance(value, list):
        return False
    for size in value:
        if type(size) is not int or size < 0:
            return False
    return True


@lru_cache(maxsize=4096)  # a shard of 5,180 tensors has a dozen shapes: one object for each
def _stored(dtype: str, shape: tuple[int, ...]) -> Stored:
    name, bits = DTYPES[dtype][0], BITS[DTYPES[dtype][0]]
    if len(shape) > DIMENSIONS:
        raise ValueError(f"has {len(shape):,} dimensions; {DIMENSIONS} are allowed")
    # Zeros count as ones: a shape whose other sizes can't be multiplied is no real tensor's.
    if math.prod(size or 1 for size in shape) * bits >= 1 << 63:
        raise ValueError(
            f"has the shape {short(list(shape))}, which has more bits than an int64 counts"
        )
    total = math.prod(shape) * bits
    if total % 8:
        raise ValueError(
            f"has the shape {list(shape)} in {dtype}, {bits} bits each: {total:,} bits, which "
            "is no whole number of bytes"
        )
    return Stored(name, shape, total // 8)


def _check_places(places: list[tuple[int, int, str]], file: str, data_bytes: int | None) -> None:
    places.sort()
    at, before = 0, ""
    for begin, end, name in places:
        if begin < at:
            raise _fault(
                file,
                f"tensors {short(before)} and {short(name)} overlap: the one "
                f"ends at {at:,}, the other begins at {begin:,}",
            )
        if begin > at:
            raise _fault(
                file, f"the {begin - at:,} bytes before tensor {short(name)} belong to no tensor"
            )
        at, before = end, name
    if data_bytes is None or at == data_bytes:
        return
    if at > data_bytes:
        raise CheckpointError(
            f"{file} is truncated: its tensors take {at:,} bytes, of which {at - data_bytes:,} "
            "are missing: download it again"
        )
    raise _fault(file, f"{data_bytes - at:,} bytes follow the last tensor and belong to none")


def _fault(file: str, text: str) -> CheckpointError:
    return CheckpointError(f"{file}: {text}. Download it again, or mend what wrote it")
