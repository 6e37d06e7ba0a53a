"""safetensors headers: golden bytes, the library's own files, and the weights left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import forge
import pytest
import safetensors
import safetensors.torch
import torch

from latentkv.checkpoint import CheckpointError
from latentkv.checkpoint.contents import DTYPES, Stored
from latentkv.checkpoint.header import LONGEST, header_length, parse_header, read_header

# Byte by byte: 8 bytes of length (120 = 0x78), the header padded with spaces, then 28 of data.
GOLDEN = (
    b"\x78\0\0\0\0\0\0\0"
    b'{"gain":{"dtype":"BF16","shape":[6],"data_offsets":[0,12]},'
    b'"scale":{"dtype":"F32","shape":[2,2],"data_offsets":[12,28]}}'
) + bytes(28)


def test_a_file_written_by_hand_is_read(tmp_path: Path):
    assert len(GOLDEN) == 8 + 120 + 28
    assert read_header(forge.write(tmp_path / "a.safetensors", GOLDEN)) == {
        "gain": Stored("bfloat16", (6,), 12),
        "scale": Stored("float32", (2, 2), 16),
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_dtype_has_the_size_that_the_library_gives_it(dtype: str):
    """Eight elements: as many bytes as one has bits. The library refuses any other size."""
    size = DTYPES[dtype][1]
    content = forge.safetensors({"a": forge.tensor(dtype, (2, 4), end=size)}, size)
    [(name, theirs)] = safetensors.deserialize(content)
    assert (name, theirs["dtype"], theirs["shape"]) == ("a", dtype, [2, 4])
    assert parse_header(content[8:-size], "a", size) == {
        "a": Stored(DTYPES[dtype][0], (2, 4), size)
    }


def test_no_dtype_of_the_library_is_missing():
    with pytest.raises(safetensors.SafetensorError) as refusal:
        safetensors.deserialize(forge.safetensors({"a": forge.tensor("?")}, 4))
    listed = str(refusal.value).partition("expected one of ")[2]
    assert {word for word in listed.split("`") if word in DTYPES or word.isupper()} == set(DTYPES)


def test_a_dtype_has_pytorchs_name_where_pytorch_has_it(tmp_path: Path):
    tensors = {}
    for name in ("F8_E4M3", "F8_E8M0", "BF16", "F16", "F32", "F64", "I8", "U8", "I32", "BOOL"):
        tensors[name] = torch.zeros(2, 3, dtype=getattr(torch, DTYPES[name][0]))
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors", {"format": "pt"})
    assert read_header(tmp_path / "a.safetensors") == {
        name: Stored(DTYPES[name][0], (2, 3), tensor.nbytes) for name, tensor in tensors.items()
    }


def test_scalars_and_tensors_of_no_elements_are_read():
    header = {
        "none": forge.tensor("F32", (3, 0, 5), 8, 8),
        "last": forge.tensor("U8", (1,), 8, 9),
        "scalar": forge.tensor("F64", (), 0, 8),
        "first": forge.tensor("I64", (0,), 0, 0),
    }
    raw = json.dumps(header).encode()
    assert parse_header(raw, "a", 9) == {
        "none": Stored("float32", (3, 0, 5), 0),
        "last": Stored("uint8", (1,), 1),
        "scalar": Stored("float64", (), 8),
        "first": Stored("int64", (0,), 0),
    }


def test_a_file_without_tensors_is_read():
    assert parse_header(b'{"__metadata__":{"format":"pt"}}  ', "a", 0) == {}


def test_the_weights_are_not_read(tmp_path: Path):
    """A file of 1 TiB, all hole: reading it would take minutes. The system counts bytes read."""
    size = 1 << 40
    path = forge.file(tmp_path, {"a": forge.tensor("BF16", (1 << 19, 1 << 20), end=size)})
    os.truncate(path, path.stat().st_size + size)
    before = _bytes_read()
    own = _bytes_read() - before  # what asking itself reads
    before = _bytes_read()
    assert read_header(path) == {"a": Stored("bfloat16", (1 << 19, 1 << 20), size)}
    assert _bytes_read() - before - own == path.stat().st_size - size


def _bytes_read() -> int:
    counters = Path("/proc/self/io")
    if not counters.exists():
        pytest.skip("the system doesn't count the bytes that a process reads (/proc/self/io)")
    return int(counters.read_text().split()[1])


@pytest.mark.parametrize("first", [b"<", b"\x80\x02", b"GG", b" <", b"\n"])
def test_a_length_that_looks_like_text_is_a_length(first: bytes):
    """A header of 60 bytes begins its file with "<", as a web page does."""
    raw = first.ljust(8, b"\0")
    assert header_length(raw, "a") == int.from_bytes(first, "little")


def test_a_header_of_the_longest_length_is_allowed_and_one_byte_more_is_not():
    assert header_length(LONGEST.to_bytes(8, "little"), "a", LONGEST + 8) == LONGEST
    with pytest.raises(CheckpointError, match=r"^a is damaged.* 100,000,001 bytes"):
        header_length((LONGEST + 1).to_bytes(8, "little"), "a")


def test_a_header_longer_than_its_file_says_how_much_is_missing():
    with pytest.raises(CheckpointError, match=r"^a is truncated: 3 of its header's 50 bytes"):
        header_length((50).to_bytes(8, "little"), "a", 55)


def test_without_the_files_size_only_its_end_is_not_checked():
    raw = json.dumps({"a": forge.tensor()}).encode()
    assert parse_header(raw, "a") == parse_header(raw, "a", 4)
    with pytest.raises(CheckpointError, match="2 bytes before tensor 'a' belong to no tensor"):
        parse_header(json.dumps({"a": forge.tensor(begin=2, end=6)}).encode(), "a")


def _large_header(tensors: int = 5180) -> bytes:
    """As one of Kimi K3's 96 files has: long names, few shapes."""
    header, at = {}, 0
    for number in range(tensors):
        name = f"language_model.model.layers.12.block_sparse_moe.experts.{number}.w1.weight_packed"
        shape = ((3072, 1792), (3584, 1536), (3072, 112), (3584, 96))[number % 4]
        header[name] = forge.tensor("U8", shape, at, at + shape[0] * shape[1])
        at += shape[0] * shape[1]
    return json.dumps(header).encode()


def test_equal_shapes_are_held_once():
    tensors = parse_header(_large_header(), "a")
    assert len(tensors) == 5180 and len(set(map(id, tensors.values()))) == 4
