"""What reading a checkpoint gives: names, shapes, dtypes, sizes, and never a weight. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Progress = Callable[[int, int, str], None]
"""Called with how many files are done, of how many, and the one at work."""

# safetensors' name for a dtype: PyTorch's, and its bits. Those without a PyTorch name keep their
# own, in lower case.
DTYPES: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 8),
    "F4": ("float4_e2m1fn", 4),
    "F6_E2M3": ("f6_e2m3", 6),
    "F6_E3M2": ("f6_e3m2", 6),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "I16": ("int16", 16),
    "U16": ("uint16", 16),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "I32": ("int32", 32),
    "U32": ("uint32", 32),
    "F32": ("float32", 32),
    "C64": ("complex64", 64),
    "F64": ("float64", 64),
    "I64": ("int64", 64),
    "U64": ("uint64", 64),
}
BITS: dict[str, int] = dict(DTYPES.values())


class Stored(NamedTuple):
    """A tensor as a file's header describes it; ``dtype`` is PyTorch's name."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Checkpoint:
    """All that a checkpoint says of itself without its weights.

    Arguments:
        where: the folder, file or repository, as given.
        revision: the commit that was read, of a repository; None of files on disk.
        config: the object in config.json, or None where there is none.
        config_file: where that was read, for messages; "" where there is none.
        files: each tensor's name, and the file that holds it.
        tensors: each tensor's name, and what its file's header says; None where an index file
            alone was read, which has names only.
        declared_bytes: the index's ``total_size``, or None.
        declared_parameters: the index's ``total_parameters``, or None.
    """

    where: str
    revision: str | None
    config: Mapping[str, Any] | None
    config_file: str
    files: Mapping[str, str]
    tensors: Mapping[str, Stored] | None
    declared_bytes: int | None
    declared_parameters: int | None
