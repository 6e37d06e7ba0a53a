"""Checkpoints made byte by byte, right and wrong, for tests and tests/attacks. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def tensor(dtype: str = "U8", shape: Iterable[int] = (4,), begin: int = 0, end: int = 4) -> Any:
    """A header's entry."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def safetensors(header: Any, data: int = 0, length: int | None = None) -> bytes:
    """A file: its header as bytes, text or what JSON makes of it, and ``data`` zero bytes.

    ``length`` is what the first 8 bytes say, if not the truth.
    """
    if not isinstance(header, str | bytes):
        header = json.dumps(header)
    raw = header.encode() if isinstance(header, str) else header
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + bytes(data)


def file(folder: Path, header: Any, data: int = 0, length: int | None = None) -> Path:
    """Such a file, written."""
    return write(folder / "model.safetensors", safetensors(header, data, length))


def shard(*names: str) -> bytes:
    """A file of the tensors so named, each 4 bytes."""
    places = enumerate(names)
    header = {name: tensor(begin=4 * at, end=4 * at + 4) for at, name in places}
    return safetensors(header, 4 * len(names))


def index(weight_map: Any, **metadata: Any) -> bytes:
    return json.dumps({"metadata": metadata, "weight_map": weight_map}).encode()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def sparse(path: Path, header: Any, data: int) -> Path:
    """A file whose data are a hole: zeros that take no space on disk."""
    content = safetensors(header)
    write(path, content)
    with path.open("r+b") as opened:
        opened.truncate(len(content) + data)
    return path


BYTES = {"BF16": 2, "F32": 4, "I32": 4, "I64": 8, "U8": 1, "F8_E4M3": 1}


def hollow(
    folder: Path,
    held: Mapping[str, tuple[str, tuple[int, ...]]],
    config: Any = None,
    **metadata: Any,
) -> Path:
    """A checkpoint of one file of these tensors, {name: (dtype, shape)}, without their weights."""
    folder.mkdir(exist_ok=True)
    header, end = {}, 0
    for name, (dtype, shape) in held.items():
        begin, end = end, end + math.prod(shape) * BYTES[dtype]
        header[name] = tensor(dtype, shape, begin, end)
    file = sparse(folder / "model.safetensors", header, end)
    write(folder / INDEX, index(dict.fromkeys(held, file.name), **metadata))
    if config is not None:
        write(folder / "config.json", json.dumps(config).encode())
    return folder


def checkpoint(folder: Path, weight_map: Mapping[str, str], shards: Mapping[str, bytes]) -> Path:
    """A folder with an index and files."""
    write(folder / INDEX, index(weight_map))
    for name, content in shards.items():
        write(folder / name, content)
    return folder
