"""Checkpoints bent at random: read as the safetensors library has it, or refused.

Nothing but `CheckpointError` may come out, and each header that is read must be read by the
library, with the same tensors. The library reads more; what more is listed in STRICTER_FILES by the
words of the refusal, as checkpoint/header.py says it, and any other difference fails.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import forge
import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latentkv.checkpoint import CheckpointError
from latentkv.checkpoint.contents import DTYPES, Stored
from latentkv.checkpoint.header import header_length, parse_header
from latentkv.checkpoint.index import Index, parse_index
from latentkv.checkpoint.local import read_local

MESSAGE = 1000  # characters at most, however long what is refused

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6).filter(
    lambda name: name != "__metadata__"
)
dtypes = st.sampled_from(sorted(DTYPES))
shapes = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def headers(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A sound header, its tensors in any order, and the size of its data."""
    header, at = {}, 0
    for name in draw(st.lists(names, max_size=4, unique=True)):
        dtype, shape = draw(dtypes), draw(shapes)
        bits = DTYPES[dtype][1]
        for size in shape:
            bits *= size
        if bits % 8:
            shape, bits = [*shape, 8], bits * 8
        header[name] = forge.tensor(dtype, shape, at, at + bits // 8)
        at += bits // 8
    order = draw(st.permutations(list(header)))
    header = {name: header[name] for name in order}
    if draw(st.booleans()):
        header["__metadata__"] = draw(st.dictionaries(names, names, max_size=2))
    return header, at


def ours(content: bytes) -> dict[str, Stored] | str:
    """The tensors of a file, or the refusal."""
    try:
        length = header_length(content[:8], "FILE", len(content))
        return parse_header(content[8 : 8 + length], "FILE", len(content) - 8 - length)
    except CheckpointError as error:
        message = str(error)
    assert message.startswith("FILE") and len(message) < MESSAGE and message.isprintable()
    return message


def theirs(content: bytes) -> dict[str, Stored] | None:
    try:
        read = safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return None
    return {
        name: Stored(DTYPES[one["dtype"]][0], tuple(one["shape"]), len(one["data"]))
        for name, one in read
    }


def agree(content: bytes) -> None:
    read, expected = ours(content), theirs(content)
    if not isinstance(read, str):
        assert read == expected
    elif expected is not None:
        assert any(words in read for words in STRICTER_FILES), read


@settings(max_examples=200, deadline=None)
@given(headers())
def test_a_sound_header_is_read_as_the_library_reads_it(drawn: tuple[dict[str, Any], int]):
    header, size = drawn
    for raw in (json.dumps(header), json.dumps(header, ensure_ascii=False, indent=1) + "  "):
        content = forge.safetensors(raw, size)
        read = ours(content)
        assert read == theirs(content)
        assert set(read) == set(header) - {"__metadata__"}


TORCH = [name for name, _ in DTYPES.values() if isinstance(getattr(torch, name, None), torch.dtype)]


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(names, st.tuples(st.sampled_from(TORCH), shapes), max_size=4))
def test_what_the_library_writes_is_read(drawn: dict[str, tuple[str, list[int]]]):
    tensors = {
        name: torch.zeros(shape, dtype=getattr(torch, dtype))
        for name, (dtype, shape) in drawn.items()
    }
    assert ours(safetensors.torch.save(tensors, {"format": "pt"})) == {
        name: Stored(dtype, tuple(shape), tensors[name].nbytes)
        for name, (dtype, shape) in drawn.items()
    }


ENTRY = '{"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
STRICTER_FILES = {
    "twice in one object": f'{{"a": {ENTRY}, "a": {ENTRY}}}',
    "exactly dtype, shape and data_offsets are allowed": f'{{"a": {ENTRY[:-1]}, "more": 1}}}}',
    "an object with dtype, shape and data_offsets is due": '{"a": ["U8", [1], [0, 1]]}',
    "__metadata__ is None": f'{{"a": {ENTRY}, "__metadata__": null}}',
    "its header begins with": f' {{"a": {ENTRY}}}',
    "dimensions; 64 are allowed": f'{{"a": {ENTRY.replace("1]", "1" + ", 1" * 64 + "]", 1)}}}',
    "more bits than an int64 counts": f'{{"a": {ENTRY}, "b": {{"dtype": "U8", '
    f'"shape": [0, {1 << 63}], "data_offsets": [1, 1]}}}}',
    "digits; 40 are allowed": f'{{"a": {ENTRY[:-1]}, "more": {"1" * 41}}}}}',
}


@pytest.mark.parametrize("words", STRICTER_FILES)
def test_what_the_library_reads_and_latentkv_refuses_is_this(words: str):
    content = forge.safetensors(STRICTER_FILES[words], 1)
    assert theirs(content) is not None
    assert words in str(ours(content))


# What a field may be bent to: sizes at the edges of each integer, and every other kind of JSON.
values = st.one_of(
    st.integers(-2, 9),
    st.sampled_from([2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 2**64 + 4, 10**41]),
    st.sampled_from([None, True, False, 1.0, -0.0, 1e300, "", "4", "U8", [], {}, [0], ["U8"]]),
    st.lists(st.integers(-1, 9), max_size=3),
    st.just([1] * 65),
)


def bend(draw: st.DrawFn, node: Any) -> Any:
    """One place in a JSON value changed: replaced, removed, added or renamed."""
    if isinstance(node, dict) and node and draw(st.integers(0, 4)):
        key = draw(st.sampled_from(sorted(node)))
        how = draw(st.sampled_from(["into", "into", "into", "remove", "rename"]))
        changed = {k: v for k, v in node.items() if k != key}
        if how == "into":
            return {**node, key: bend(draw, node[key])}
        return changed if how == "remove" else {**changed, draw(names): node[key]}
    if isinstance(node, list) and node and draw(st.integers(0, 4)):
        at = draw(st.integers(0, len(node) - 1))
        return [*node[:at], bend(draw, node[at]), *node[at + 1 :]]
    if type(node) is int and draw(st.booleans()):
        return node + draw(st.sampled_from([-4, -1, 1, 4]))
    return draw(values)


@st.composite
def bent_files(draw: st.DrawFn) -> bytes:
    header, size = draw(headers())
    for _ in range(draw(st.integers(0, 2))):
        header = bend(draw, header)
    return forge.safetensors(header, max(0, size + draw(st.sampled_from([0, 0, 0, -1, 1]))))


@settings(max_examples=1000, deadline=None)
@given(bent_files())
def test_a_bent_header_is_refused_or_read_as_the_library_reads_it(content: bytes):
    agree(content)


TOKENS = (
    b'{ } [ ] , : " \\ \\u0000 \\ud800 \\udc00\\ud800 0 -0 -1 1e9 1.5 1E400 NaN -Infinity null '
    b"\xff \xc3\xa9 \xed\xa0\x80 \0 \n \t \xef\xbb\xbf /**/ ' 00 99999999999999999999 "
    b'{}{} "a":0, "__metadata__":{}, "dtype":"U8",'
).split(b" ") + [b" "] * 4


@st.composite
def torn(draw: st.DrawFn, sound: st.SearchStrategy[bytes]) -> bytes:
    """A text with a few of its bytes removed, doubled or replaced by something with a meaning."""
    content = draw(sound)
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([0, 0, 0, 1, 1, 2, 9])))
        middle = draw(
            st.one_of(
                st.sampled_from(TOKENS), st.just(content[start:end] * 2), st.binary(max_size=4)
            )
        )
        content = content[:start] + middle + content[end:]
    return content


@st.composite
def torn_headers(draw: st.DrawFn) -> bytes:
    """The header torn, and the length before it true."""
    header, size = draw(headers())
    return forge.safetensors(draw(torn(st.just(json.dumps(header).encode()))), size)


@settings(max_examples=1000, deadline=None)
@given(torn_headers())
def test_a_torn_header_is_refused_or_read_as_the_library_reads_it(content: bytes):
    agree(content)


@settings(max_examples=500, deadline=None)
@given(torn(headers().map(lambda drawn: forge.safetensors(*drawn))))
def test_a_torn_file_is_refused_or_read_as_the_library_reads_it(content: bytes):
    agree(content)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=64))
def test_bytes_at_random_are_refused_or_read_as_the_library_reads_them(content: bytes):
    agree(content)


files = st.sampled_from(["a.safetensors", "b-1-of-2.safetensors", "s/c.safetensors"])
odd_files = st.sampled_from(["../a.safetensors", "/a.safetensors", "a.bin", "", "a\0.safetensors"])
totals = st.one_of(st.none(), st.sampled_from([0, 7, 2**70, 4.0]))
odd_totals = st.sampled_from([-1, 0.5, -1.0, 2.0**53, True, "1", []])


def plainly(raw: bytes) -> Index | None:
    """What an index says, by the shortest reading: no line of it is latentkv's."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    def whole(digits: str) -> int:
        assert len(digits) <= 40
        return int(digits)

    def never(word: str) -> float:
        raise AssertionError(word)

    try:
        content = json.loads(
            raw.decode("utf-8-sig"), object_pairs_hook=once, parse_int=whole, parse_constant=never
        )
        json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
        metadata, files = content.get("metadata", {}), content["weight_map"]
        assert files and isinstance(metadata, dict)
        for file in files.values():
            assert isinstance(file, str) and file.endswith(".safetensors") and file.isprintable()
            assert file == str(Path("/x", file).resolve().relative_to("/x"))
            assert not set(file) & set("\\:")
        found = []
        for key in ("total_size", "total_parameters"):
            if key in metadata:
                assert type(metadata[key]) in (int, float) and metadata[key] >= 0
                assert metadata[key] == int(metadata[key])
                assert type(metadata[key]) is int or metadata[key] < 2**53
            found.append(int(metadata[key]) if key in metadata else None)
        return Index(files, *found)
    except (AssertionError, AttributeError, KeyError, ValueError):
        return None


@st.composite
def indices(draw: st.DrawFn) -> bytes:
    odd = draw(st.sampled_from(["", "", "", "file", "total", "bent"]))
    targets = st.one_of(files, odd_files) if odd == "file" else files
    weight_map = draw(st.dictionaries(names, targets, min_size=1, max_size=4))
    metadata = {}
    for name in ("total_size", "total_parameters", "other"):
        total = draw(odd_totals if odd == "total" else totals)
        if total is not None:
            metadata[name] = total
    content: Any = {"metadata": metadata, "weight_map": weight_map}
    return json.dumps(bend(draw, content) if odd == "bent" else content).encode()


def same_index(raw: bytes) -> None:
    try:
        read = parse_index(raw, "FILE")
    except CheckpointError as error:
        assert plainly(raw) is None, error
        message = str(error)
        assert message.startswith("FILE") and len(message) < MESSAGE and message.isprintable()
    else:
        assert read == plainly(raw)


@settings(max_examples=500, deadline=None)
@given(indices())
def test_an_index_is_refused_or_says_what_its_text_says(raw: bytes):
    same_index(raw)


@settings(max_examples=500, deadline=None)
@given(torn(indices()))
def test_a_torn_index_is_refused_or_says_what_its_text_says(raw: bytes):
    same_index(raw)


@st.composite
def folders(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, list[str]]]:
    """An index, and which tensors each file really holds; often they agree."""
    everything = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True))
    weight_map = {name: draw(st.sampled_from(forge.SHARDS)) for name in everything}
    held: dict[str, list[str]] = {file: [] for file in set(weight_map.values())}
    for name, file in weight_map.items():
        held[file].append(name)
    for _ in range(draw(st.integers(0, 2))):
        file = draw(st.sampled_from(forge.SHARDS))
        name = draw(st.sampled_from("abcdefg"))
        how = draw(st.sampled_from(["drop file", "drop", "add", "list", "unlist"]))
        if how == "drop file":
            held.pop(file, None)
        elif how == "drop":
            held[file] = [one for one in held.get(file, []) if one != name]
        elif how == "add":
            held[file] = [*{*held.get(file, []), name}]
        elif how == "list":
            weight_map[name] = file
        elif len(weight_map) > 1:
            weight_map.pop(name, None)
    return weight_map, held


@settings(max_examples=300, deadline=None)
@given(folders(), st.booleans())
def test_a_folder_is_read_only_where_index_and_files_agree(
    drawn: tuple[dict[str, str], dict[str, list[str]]], packed: bool
):
    weight_map, held = drawn
    with tempfile.TemporaryDirectory() as folder:
        forge.checkpoint(
            Path(folder), weight_map, {file: forge.shard(*names) for file, names in held.items()}
        )
        if packed:
            index = Path(folder, forge.INDEX)
            forge.write(index.with_name(f"{index.name}.gz"), gzip.compress(index.read_bytes()))
            index.unlink()
        named = set(weight_map.values())
        truth = {(name, file) for file, names in held.items() if file in named for name in names}
        parts = {file for file in named if "-of-00002" in file}
        whole = named <= set(held) and truth == set(weight_map.items()) and len(parts) != 1
        try:
            read = read_local(folder)
        except CheckpointError as error:
            assert not whole, error
            assert folder in str(error)
        else:
            assert whole
            assert read.files == weight_map and set(read.tensors) == set(weight_map)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=4, unique=True)
)
def test_numbered_files_are_read_only_where_they_are_all_there(parts: list[tuple[int, int]]):
    with tempfile.TemporaryDirectory() as folder:
        for number, of in parts:
            path = Path(folder, f"model-{number:05}-of-{of:05}.safetensors")
            forge.write(path, forge.shard(f"{number} of {of}"))
        last = parts[0][1]
        whole = sorted(parts) == [(number, last) for number in range(1, last + 1)]
        try:
            read = read_local(folder)
        except CheckpointError:
            assert not whole
        else:
            assert whole and len(read.tensors) == last
