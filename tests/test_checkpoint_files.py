"""Files are read within bounds, also when they change under the reader; words for messages."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import forge
import pytest

from latentkv.checkpoint import CheckpointError
from latentkv.checkpoint.index import parse_index
from latentkv.reading import files

MIB = 1 << 20


def test_a_file_of_the_limit_is_read_and_one_byte_more_is_not(tmp_path: Path):
    path = forge.write(tmp_path / "a", b" " * MIB)
    assert files.read_text(path, MIB) == b" " * MIB
    forge.write(path, gzip.compress(b" " * MIB))
    assert files.read_text(path, MIB) == b" " * MIB
    forge.write(path, b" " * (MIB + 1))
    with pytest.raises(CheckpointError, match="more than 1 MiB, the most"):
        files.read_text(path, MIB)
    forge.write(path, gzip.compress(b" " * (MIB + 1)))
    with pytest.raises(CheckpointError, match="more than 1 MiB when gunzipped"):
        files.read_text(path, MIB)


@pytest.mark.parametrize("packed", [False, True])
def test_no_more_than_the_limit_is_held(tmp_path: Path, packed: bool):
    path = tmp_path / "a"
    if packed:
        path.write_bytes(gzip.compress(bytes(16 * MIB)) * 8)  # 128 MiB in 128 kB
    else:
        path.touch()
        os.truncate(path, 128 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="more than 2 MiB"):
            files.read_text(path, 2 * MIB)
        # The pieces and what they are joined to, and gzip's own buffers.
        assert tracemalloc.get_traced_memory()[1] < 6 * MIB
    finally:
        tracemalloc.stop()


def test_a_pipe_that_takes_a_files_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Between the look and the opening. No writer comes, so a plain open would wait for ever."""
    os.mkfifo(tmp_path / "a")
    before = os.stat(__file__)
    monkeypatch.setattr(files.os, "stat", lambda path: before)
    with pytest.raises(CheckpointError, match="a is a pipe, socket or device"):
        with files.opened(tmp_path / "a"):
            pass


def test_a_file_that_shrinks_while_it_is_read_gives_what_is_left(tmp_path: Path):
    path = forge.write(tmp_path / "a", bytes(100))
    with files.opened(path) as file:
        assert len(files.read_up_to(file, 60)) == 60
        os.truncate(path, 80)
        assert len(files.read_up_to(file, 60)) == 20


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        ["x" * 10**6] * 10**3,
        {f"{n}": ["x" * 999] for n in range(99)},
        10**39,
        "\x1b\n",
    ],
)
def test_a_value_in_a_message_is_short_and_on_one_line(value: object):
    text = files.short(value)
    assert 0 < len(text) <= files.LONGEST and text.isprintable()


def test_names_in_a_message_are_few_and_the_rest_is_counted():
    assert files.few(["a"]) == "'a'"
    assert files.few(["a", "b", "c"]) == "'a', 'b', 'c'"
    assert files.few([f"{n}" for n in range(1003)], 2) == "'0', '1' and 1,001 more"


def test_a_files_name_is_held_once_for_all_its_tensors():
    """Kimi K3 has 497,220 tensors in 96 files."""
    read = parse_index(forge.index({f"{n}": "model.safetensors" for n in range(9)}), "index")
    assert len(set(map(id, read.files.values()))) == 1
