"""Reading a repository from a hub: the right thing, from one commit, and headers only."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hub_server import COMMIT, Fault, Hub, large, read, shards
from safetensors.numpy import save_file

from latentkv.checkpoint import CheckpointError
from latentkv.checkpoint.contents import Stored
from latentkv.checkpoint.hub import read_hub
from latentkv.checkpoint.local import read_local

MIB = 1 << 20


@pytest.fixture
def hub(bare: Hub) -> Hub:
    """One that each test fills."""
    return bare


def test_a_repository_says_what_its_folder_says(hub):
    shards(hub.folder, 3)
    there, here = read(hub), read_local(hub.folder)
    assert there.revision == COMMIT and there.where == "owner/name"
    assert there.config_file == "owner/name@0123456789ab/config.json"
    own = {"where": here.where, "revision": None, "config_file": here.config_file}
    assert dataclasses.replace(there, **own) == here
    assert list(there.tensors) == list(here.tensors) and list(there.files) == list(here.files)
    assert there.tensors["layers.2.1.weight"] == Stored("float16", (64, 9), 1152)
    assert there.declared_bytes == 64 * 17 * 2 * 3


def test_a_model_saved_by_transformers_is_read(hub):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 96}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 3}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).to(torch.bfloat16)
    model.save_pretrained(hub.folder, max_shard_size="20KB")
    found = read(hub)
    assert len(set(found.files.values())) > 2
    assert found.config["model_type"] == "llama"
    assert {name: (one.shape, one.dtype) for name, one in found.tensors.items()} == {
        name: (tuple(one.shape), "bfloat16") for name, one in model.state_dict().items()
    }
    assert found.declared_bytes == sum(one.bytes for one in found.tensors.values())


@pytest.mark.parametrize(
    "names", [["model.safetensors"], ["model-00001-of-00002.safetensors"] * 2, ["a.safetensors"]]
)
def test_without_an_index_the_files_themselves_are_read(hub, names):
    for number, name in enumerate(names, 1):
        name = name.replace("00001", f"{number:05d}")
        save_file({f"{number}": np.zeros(3, np.int8)}, hub.folder / name)
    found = read(hub)
    assert found.config is None and found.config_file == "" and found.declared_bytes is None
    assert found.tensors == {str(n): Stored("int8", (3,), 3) for n, _ in enumerate(names, 1)}


def test_only_headers_go_over_the_wire(hub):
    for number in (1, 2, 3):
        large(hub.folder / f"model-{number:05d}-of-00003.safetensors", 64 * MIB)
    found = read(hub)
    assert sum(one.bytes for one in found.tensors.values()) == 192 * MIB
    assert hub.sent("/blob/") <= 3 * MIB // 4


def test_a_hub_that_ignores_ranges_is_left_before_the_weights(hub):
    large(hub.folder / "model.safetensors", 64 * MIB)
    hub.faults = [Fault("/blob/", ignore_range=True)]
    assert read(hub).tensors["model.weight"].shape == (64 * MIB,)
    assert hub.sent("/blob/") < 8 * MIB  # what the sockets' buffers took


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "size not listed"])
def test_a_long_header_is_read_on_from_where_the_first_range_ended(hub, listed):
    tensors = {f"{'long' * 50}.{n}": np.zeros(1, np.int8) for n in range(2_000)}
    save_file(tensors, hub.folder / "model.safetensors")
    if not listed:
        hub.listed = {"model.safetensors": None}
    assert read(hub).tensors.keys() == tensors.keys()
    header = int.from_bytes((hub.folder / "model.safetensors").read_bytes()[:8], "little")
    ranges = [one.headers["range"] for one in hub.exchanges("/blob/")]
    assert ranges == ["bytes=0-262143", f"bytes=262144-{8 + header - 1}"]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_file_of_a_size_that_is_not_listed_is_read(hub, name):
    shards(hub.folder, 2)
    hub.listed = {name: None}
    assert read(hub).tensors == read_local(hub.folder).tensors


def test_many_files_are_read_a_few_at_a_time_and_come_in_order(hub):
    shards(hub.folder, 120)
    hub.faults = [Fault("/blob/", pause=0.01)]
    said = []
    found = read(hub, progress=lambda *one: said.append(one))
    assert list(found.tensors) == list(read_local(hub.folder).tensors)
    assert 2 <= hub.most_waiting <= 8
    index, begin, *rest = said
    assert index == (0, 120, "model.safetensors.index.json")
    assert begin == (0, 120, "model-00001-of-00120.safetensors")
    assert [one[:2] for one in rest] == [(n, 120) for n in range(1, 121)]
    assert rest[-1] == (120, 120, "") and all(file for _, _, file in rest[:-1])


@pytest.mark.parametrize("revision", [None, "main", "refs/pr/1", COMMIT])
def test_everything_is_read_from_the_commit_of_the_first_answer(hub, revision):
    shards(hub.folder, 2)
    assert read(hub, revision=revision).revision == COMMIT
    asked = [one.path for one in hub.exchanges(server="hub")]
    revision = (revision or "main").replace("/", "%2F")
    assert asked[0] == f"/api/models/owner/name/revision/{revision}?blobs=true"
    assert len(asked) == 5
    assert all(path.startswith(f"/owner/name/resolve/{COMMIT}/") for path in asked[1:])


def test_files_of_another_commit_are_refused(hub):
    shards(hub.folder, 2)
    hub.faults = [Fault("00002-of-00002", headers={"X-Repo-Commit": "f" * 40})]
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002.*commit ffff.*asked for 0123"):
        read(hub)
    hub.faults, hub.commit = [], "f" * 40
    with pytest.raises(CheckpointError, match="answered with commit ffff"):
        read(hub, revision=COMMIT)


@pytest.mark.parametrize("way", ["argument", "variable", "file"])
def test_the_token_goes_to_the_hub_and_not_to_its_cdn(hub, way):
    from huggingface_hub import constants

    shards(hub.folder, 2)
    hub.token = "hf_secret"
    if way == "variable":
        hub.patch.setenv("HF_TOKEN", "hf_secret")
    if way == "file":
        Path(constants.HF_TOKEN_PATH).write_text("hf_secret")
    read(hub, token="hf_secret" if way == "argument" else None)
    assert len(hub.exchanges(server="hub")) == 5 and len(hub.exchanges(server="cdn")) == 2
    for one in hub.log:
        sent = {name.lower(): value for name, value in one.headers.items()}
        if one.server == "hub":
            assert sent["authorization"] == "Bearer hf_secret"
        else:
            assert "hf_secret" not in json.dumps(one.headers) and "authorization" not in sent


def test_without_a_token_none_is_sent(hub):
    from huggingface_hub import constants

    shards(hub.folder, 1)
    hub.patch.setenv("HF_TOKEN", "hf_secret")
    hub.patch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    read(hub)
    assert "hf_secret" not in str([one.headers for one in hub.log])


@pytest.mark.parametrize("tail", ["", "/", "/tree/main", "/tree/main/"])
def test_an_address_names_a_repository(hub, tail):
    shards(hub.folder, 1)
    address = f"{hub.endpoint}/owner/name{tail}"
    assert read_hub(address, endpoint=hub.endpoint).where == address
    assert len(hub.exchanges("/revision/main")) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kimi", "has no owner"),
        ("", "owner/name"),
        ("a/b/c", "owner/name"),
        ("../etc/passwd", "owner/name"),
        ("owner/../..", "owner/name"),
        ("owner/na me", "owner/name"),
        ("owner/name?x=1", "owner/name"),
        ("https://example.com/owner/name", "no model's address"),
        ("https://huggingface.co/owner", "no model's address"),
        ("https://huggingface.co/datasets/owner/name", "no model's address"),
        ("file:///owner/name", "no model's address"),
        ("https://huggingface.co/owner/name/tree/v1", "give one of them"),
    ],
)
def test_what_names_no_repository_is_refused_before_anything_is_asked(hub, name, said):
    with pytest.raises(CheckpointError, match=said):
        read_hub(name, endpoint=hub.endpoint, revision="main")
    assert not hub.log


@pytest.mark.parametrize("revision", ["", ".", "..", "a\nb", "x" * 300])
def test_what_is_no_revision_is_refused_before_anything_is_asked(hub, revision):
    with pytest.raises(CheckpointError, match="is no revision"):
        read(hub, revision=revision)
    assert not hub.log


@pytest.mark.parametrize("endpoint", ["huggingface.co", "ftp://h", "http://", "http://h:x", "é"])
def test_what_is_no_hub_is_refused(hub, endpoint):
    with pytest.raises(CheckpointError, match="no address of a hub.*HF_ENDPOINT"):
        read(hub, endpoint=endpoint)


@pytest.mark.parametrize("token", ["hf_a b", "hf_a\r\nX-More: 1", "hf_é"])
def test_a_token_that_would_break_a_request_is_refused_and_not_shown(hub, token):
    with pytest.raises(CheckpointError, match="HF_TOKEN") as refused:
        read(hub, token=token)
    assert "hf_a" not in str(refused.value) and not hub.log


def test_without_huggingface_hub_the_error_says_what_to_install(hub):
    hub.patch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="pip install huggingface_hub"):
        read(hub)


def test_a_process_finds_the_hub_by_its_variable_and_imports_no_torch(hub, tmp_path):
    shards(hub.folder, 2)
    program = """if True:
        import sys
        from latentkv.checkpoint.hub import read_hub
        assert "huggingface_hub" not in sys.modules
        found = read_hub("owner/name")
        assert "torch" not in sys.modules
        print(found.revision, len(found.tensors))
    """
    own = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "*"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=kept | own,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{COMMIT} 4\n" and result.stderr == ""
    assert not (tmp_path / "home").exists()
