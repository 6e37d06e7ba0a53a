"""Sound checkpoints on disk, in every form that is read; tests/attacks has what is refused."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import forge
import huggingface_hub
import pytest
import safetensors.torch
import torch
from published import K3_INDEX, needs_shared

from latentkv.checkpoint import CheckpointError
from latentkv.checkpoint.contents import Stored
from latentkv.checkpoint.index import Index, parse_index
from latentkv.checkpoint.local import read_local

ONE, TWO = forge.SHARDS
BYTES = Stored("uint8", (4,), 4)  # as forge.shard has each tensor


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A folder with two files, their index and a configuration."""
    forge.write(tmp_path / "config.json", b'{"model_type": "kimi_k3"}')
    return forge.checkpoint(
        tmp_path,
        {"a": ONE, "b": TWO, "c": ONE},
        {ONE: forge.shard("a", "c"), TWO: forge.shard("b")},
    )


def test_a_folder_with_an_index_is_read(sound: Path):
    read = read_local(sound)
    assert read.where == str(sound) and read.revision is None
    assert read.files == {"a": ONE, "b": TWO, "c": ONE}
    assert read.tensors == {"a": BYTES, "b": BYTES, "c": BYTES}
    assert read.config == {"model_type": "kimi_k3"}
    assert read.config_file == str(sound / "config.json")
    assert (read.declared_bytes, read.declared_parameters) == (None, None)
    assert read == read_local(str(sound))


def test_an_index_alone_gives_names_and_what_it_declares(sound: Path):
    path = sound / forge.INDEX
    forge.write(path, forge.index({"a": "elsewhere.safetensors"}, total_size=8, total_parameters=4))
    read = read_local(path)
    assert (read.files, read.tensors) == ({"a": "elsewhere.safetensors"}, None)
    assert (read.declared_bytes, read.declared_parameters) == (8, 4)
    assert read.config == {"model_type": "kimi_k3"}


def test_a_gzipped_index_is_read_whatever_its_name(sound: Path):
    packed = gzip.compress((sound / forge.INDEX).read_bytes())
    plainly = read_local(sound)
    (sound / forge.INDEX).unlink()
    forge.write(sound / f"{forge.INDEX}.gz", packed)
    assert read_local(sound) == plainly
    assert read_local(sound / f"{forge.INDEX}.gz").files == plainly.files
    forge.write(sound / "other.json", packed)
    assert read_local(sound / "other.json").files == plainly.files


def test_a_byte_order_mark_is_skipped(sound: Path):
    path = sound / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_local(sound).config == {"model_type": "kimi_k3"}


def test_one_file_is_read_with_the_configuration_beside_it(sound: Path):
    path = forge.write(sound / "single.safetensors", forge.shard("x", "y"))
    read = read_local(path)
    assert read.files == {"x": "single.safetensors", "y": "single.safetensors"}
    assert read.tensors == {"x": BYTES, "y": BYTES}
    assert read.config == {"model_type": "kimi_k3"}


def test_without_a_configuration_there_is_none(tmp_path: Path):
    forge.write(tmp_path / "model.safetensors", forge.shard("a"))
    assert (read_local(tmp_path).config, read_local(tmp_path).config_file) == (None, "")


def test_files_that_the_index_does_not_name_are_no_part(sound: Path):
    before = read_local(sound)
    forge.write(sound / "consolidated.safetensors", b"not even a safetensors file")
    assert read_local(sound) == before


def test_an_index_by_another_name_is_taken_where_it_is_the_only_one(sound: Path):
    before = read_local(sound)
    (sound / forge.INDEX).rename(sound / "consolidated.safetensors.index.json")
    assert read_local(sound) == before


def test_without_an_index_numbered_files_are_read_together(sound: Path):
    before = read_local(sound)
    (sound / forge.INDEX).unlink()
    assert read_local(sound) == before


def test_without_an_index_unnumbered_files_are_read_together(tmp_path: Path):
    forge.write(tmp_path / "text.safetensors", forge.shard("a"))
    forge.write(tmp_path / "vision.safetensors", forge.shard("b"))
    assert read_local(tmp_path).files == {"a": "text.safetensors", "b": "vision.safetensors"}


def test_without_an_index_model_safetensors_is_the_checkpoint(tmp_path: Path):
    """As loaders have it: an adapter beside it is no part."""
    forge.write(tmp_path / "model.safetensors", forge.shard("a"))
    forge.write(tmp_path / "adapter.safetensors", forge.shard("b"))
    assert read_local(tmp_path).files == {"a": "model.safetensors"}


def test_parts_may_be_numbered_with_any_width(tmp_path: Path):
    """Kimi K3_INDEX's are model-00001-of-000096.safetensors."""
    forge.write(tmp_path / "model-00001-of-000002.safetensors", forge.shard("a"))
    forge.write(tmp_path / "model-00002-of-000002.safetensors", forge.shard("b"))
    assert set(read_local(tmp_path).files) == {"a", "b"}


def test_links_that_the_folders_owner_made_are_followed(sound: Path, tmp_path: Path):
    """The hub's cache holds nothing but links out of the snapshot's folder."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123456789ab"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, name in enumerate((ONE, TWO, forge.INDEX, "config.json")):
        shutil.copy(sound / name, blobs / f"{number}")
        (snapshot / name).symlink_to(f"../../blobs/{number}")
    assert read_local(snapshot).tensors == read_local(sound).tensors
    assert read_local(snapshot).config == read_local(sound).config
    assert read_local(snapshot / forge.INDEX).files == read_local(sound).files


def test_files_in_folders_within_are_read(tmp_path: Path):
    (tmp_path / "text").mkdir()
    path = "text/model.safetensors"
    forge.checkpoint(tmp_path, {"a": path}, {path: forge.shard("a")})
    assert read_local(tmp_path).tensors == {"a": BYTES}


def test_progress_is_told_before_each_file_and_at_the_end(sound: Path):
    told: list[tuple[int, int, str]] = []
    read_local(sound, lambda *step: told.append(step))
    assert told == [(0, 2, ONE), (1, 2, TWO), (2, 2, "")]


@pytest.mark.parametrize(("written", "read"), [(0, 0), (12.0, 12), (2.0**53 - 1, 2**53 - 1)])
def test_a_total_may_be_an_integer_written_as_a_float(written: float, read: int):
    raw = forge.index({"a": "model.safetensors"}, total_size=written, total_parameters=written)
    assert parse_index(raw, "index") == Index({"a": "model.safetensors"}, read, read)


def test_an_index_without_metadata_is_read():
    raw = b'{"weight_map": {"a": "model.safetensors"}}'
    assert parse_index(raw, "index") == Index({"a": "model.safetensors"}, None, None)


def test_what_the_hubs_library_writes_is_read(tmp_path: Path):
    state = {f"layers.{n}.weight": torch.zeros(n + 1, 100, dtype=torch.bfloat16) for n in range(9)}
    huggingface_hub.save_torch_state_dict(state, tmp_path, max_shard_size=2000)
    read = read_local(tmp_path)
    assert len(set(read.files.values())) > 2
    assert read.tensors == {
        name: Stored("bfloat16", tuple(tensor.shape), tensor.nbytes)
        for name, tensor in state.items()
    }
    assert read.declared_bytes == sum(tensor.nbytes for tensor in state.values())


def test_what_safetensors_writes_is_read(tmp_path: Path):
    state = {"a": torch.zeros(3, 5), "b": torch.zeros((), dtype=torch.int64)}
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    assert read_local(tmp_path).tensors == {
        "a": Stored("float32", (3, 5), 60),
        "b": Stored("int64", (), 8),
    }


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("", "'' is no path"),
        ("a\0b", "is no path"),
        ("n" * 300, "can't be read: file name too long"),
        (f"{Path(__file__).name}/inside", "can't be read: not a directory"),
    ],
)
def test_a_path_that_is_none_is_refused(where: str, says: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(Path(__file__).parent)
    with pytest.raises(CheckpointError, match=says):
        read_local(where)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_an_unreadable_folder_is_refused(sound: Path):
    sound.chmod(0)
    try:
        with pytest.raises(CheckpointError, match="can't be read: permission denied"):
            read_local(sound)
    finally:
        sound.chmod(0o700)


def test_an_error_of_the_disk_is_told(sound: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("latentkv.checkpoint.header.read_up_to", fails)
    with pytest.raises(CheckpointError, match=rf"{ONE} can't be read: input/output error"):
        read_local(sound)


STATUS = Path("/proc/self/status")


@needs_shared
@pytest.mark.skipif(not STATUS.exists(), reason="the system doesn't tell a process's peak memory")
def test_kimi_k3s_index_is_read_in_bounded_memory():
    """Measured in a process of its own: 0.8 to 1.1 s and 256 MB, 75 of them names (2026-11)."""
    code = (
        "import json, re, sys\n"
        "from latentkv.checkpoint.local import read_local\n"
        "read = read_local(sys.argv[1])\n"
        # ru_maxrss would be that of the process that started this one, if that is larger
        "peak = int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        "print(json.dumps([len(read.files), len(set(map(id, read.files.values()))),\n"
        "    read.declared_bytes, peak, 'torch' in sys.modules]))\n"
    )
    run = subprocess.run([sys.executable, "-c", code, K3_INDEX], capture_output=True, check=True)
    tensors, files, declared, peak, torch_too = json.loads(run.stdout)
    assert (tensors, files, declared, torch_too) == (497_220, 96, 1_560_860_324_864, False)
    assert peak / 1024 < 330


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system doesn't list open files")
def test_reading_leaves_no_file_open(sound: Path):
    before = len(os.listdir("/proc/self/fd"))
    read_local(sound)
    forge.write(sound / TWO, b"")
    with pytest.raises(CheckpointError):
        read_local(sound)
    assert len(os.listdir("/proc/self/fd")) == before
