"""Files read within bounds, whatever lies at their path, and words for messages. No torch."""

from __future__ import annotations

import gzip
import io
import os
import reprlib
import stat
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from .errors import CheckpointError

CONFIG = "config.json"
# Bytes; the longest of the family have some 20,000, those with a label for each of 100,000 classes
# a few MB.
CONFIG_LIMIT = 8 << 20
CHUNK = 1 << 20  # bytes read at a time
_GZIP = b"\x1f\x8b"


@contextmanager
def opened(path: Path) -> Iterator[io.FileIO]:
    """A regular file, unbuffered, so that no byte beyond those asked for is read.

    Raises:
        CheckpointError: it is not there, not a file, or can't be read, now or within the block.
    """
    try:
        # Opening a pipe waits for its writer, and opening a device may do anything: both are
        # refused before. O_NONBLOCK, which files ignore, is for one that took its place since.
        _regular(os.stat(path).st_mode, path)
        with open(path, "rb", buffering=0, opener=_opener) as file:
            _regular(os.fstat(file.fileno()).st_mode, path)
            yield file
    except (EOFError, OSError, zlib.error) as error:
        broken = "" if isinstance(error, OSError) and error.strerror else ": download it again"
        raise CheckpointError(f"{path} can't be read: {reason(error)}{broken}") from error


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _regular(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise CheckpointError(f"{path} is {kind}; a file is expected there")


def reason(error: Exception) -> str:
    """What the system or gzip says of it, without the path, which the message has already."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def read_up_to(file: io.RawIOBase | gzip.GzipFile, size: int) -> bytes:
    """``size`` bytes, or fewer where the file ends before."""
    chunks = []
    while size > 0 and (chunk := file.read(min(size, CHUNK))):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def read_text(path: Path, limit: int) -> bytes:
    """A whole file, gunzipped where it is gzip's, whatever its name says.

    Raises:
        CheckpointError: as `opened`; or more than ``limit`` bytes, also after gunzipping, of which
            hardly more are ever held; ``limit`` is whole MiB.
    """
    with opened(path) as file:
        packed = read_up_to(file, len(_GZIP)) == _GZIP
        file.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=file) as unpacked:
                raw = read_up_to(unpacked, limit + 1)
        else:
            raw = read_up_to(file, limit + 1)
    if len(raw) > limit:
        raise CheckpointError(
            f"{path} has more than {limit >> 20:,} MiB{' when gunzipped' if packed else ''}, "
            "the most that is read of such a file; is it the right one?"
        )
    return raw


def instead(first: bytes) -> str | None:
    """What a file is, by its first bytes, where it is none of those read here, and the cure.

    8 bytes are enough. Of a safetensors file, they may look like any of these: a header of 60
    bytes begins with "<". Ask only when they give no possible length.
    """
    first = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if first.startswith(b"version "):
        return "a git-lfs pointer, which stands for the file: run `git lfs pull` in its folder"
    if first.startswith(b"<"):
        return (
            "a web page (HTML or XML), as a failed download leaves it: download the file again, "
            "with a token if its repository is gated"
        )
    if first.startswith((b"PK\x03\x04", b"\x80\x02")):
        return "a pickle file of PyTorch's, which is never read: convert it to safetensors"
    if first.startswith(b"GGUF"):
        return "a GGUF file, which is not read: give the safetensors checkpoint"
    return None


def short(value: object) -> str:
    """A value found in a file, for a message: bounded in length and depth, on one line."""
    text = _SHORT.repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


LONGEST = 200  # characters of one value
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 120
_SHORT.maxlevel = 3


def few(names: Collection[str], shown: int = 3) -> str:
    """The first of some names, quoted, and how many more there are."""
    text = ", ".join(short(name) for name in islice(names, shown))
    more = len(names) - shown
    return f"{text} and {more:,} more" if more > 0 else text
