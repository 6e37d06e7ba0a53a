"""`models.from_config` on files and folders: what is read, and what can't be."""

from __future__ import annotations

import json
import os

import configs
import pytest

from latentkv.models import ConfigError, from_config


@pytest.fixture
def folder(tmp_path):
    """A folder of a model's name with a config.json in it."""
    path = tmp_path / "Tiny-V3"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(configs.small(), indent=2))
    return path


def test_a_folder_its_file_and_its_object_say_the_same(folder):
    file = folder / "config.json"
    of_folder, of_file = from_config(folder), from_config(str(file))
    of_object = from_config(json.loads(file.read_text()))
    assert of_folder == of_file
    assert (of_folder.norms, of_folder.kv, of_folder.architecture) == (
        of_object.norms,
        of_object.kv,
        of_object.architecture,
    )
    assert (of_folder.name, of_folder.display, of_folder.file) == ("Tiny-V3", "Tiny-V3", str(file))
    assert (of_object.name, of_object.display, of_object.file) == ("deepseek_v3", "DeepSeek-V3", "")


def test_a_file_in_the_working_directory_has_its_folders_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert from_config("config.json").name == from_config(".").name == "Tiny-V3"


def test_an_object_of_a_repository_has_its_name_and_file():
    ours = from_config(configs.small(), file="owner/Tiny-V3@0123456789ab/config.json")
    assert ours.name == "Tiny-V3"
    assert ours.file == "owner/Tiny-V3@0123456789ab/config.json"
    origins = {value.name: value.origin for value in ours.values}
    assert origins["kv_lora_rank"] == "config.json: kv_lora_rank"
    with pytest.raises(ConfigError, match="^config.json: kv_lora_rank is 0"):
        from_config(configs.small(kv_lora_rank=0), file="owner/Tiny-V3@0123456789ab/config.json")


def test_origins_give_the_line_of_each_key_also_of_nested_and_repeated_ones(tmp_path):
    content = configs.small("kimi_k25")
    content["vision_config"]["kv_lora_rank"] = "another's"
    file = tmp_path / "config.json"
    file.write_text(json.dumps(content, indent=1))
    lines = file.read_text().splitlines()
    for value in from_config(file).values:
        place, _, path = value.origin.partition(": ")
        if place.startswith("config.json "):
            line = lines[int(place.split()[1]) - 1]
            assert line.strip().startswith(f'"{path.rpartition(".")[2]}": ')
    origins = {value.name: value.origin for value in from_config(file).values}
    inner = next(n for n, line in enumerate(lines, 1) if '"kv_lora_rank": 16' in line)
    assert origins["kv_lora_rank"] == f"config.json {inner}: text_config.kv_lora_rank"


def test_lines_are_those_of_the_file_whatever_its_strings_hold(tmp_path):
    file = tmp_path / "config.json"
    text = json.dumps(configs.small())
    head = '{"a": "\\"kv_lora_rank\\": {[,", "b": [{"kv_lora_rank": 1}, ["\\\\"]],\n\n'
    file.write_bytes(b"\xef\xbb\xbf" + (head + text[1:]).encode())
    origins = {value.name: value.origin for value in from_config(file).values}
    assert origins["kv_lora_rank"] == "config.json 3: kv_lora_rank"


BROKEN = {
    "empty": (b"", "is empty"),
    "cut": (b'{"model_type": "deepseek_v3"', "is not JSON.*line 1"),
    "list": (b"[]", "is a list; a JSON object"),
    "null": (b"null", "is null"),
    "twice": (b'{"kv_lora_rank": 512, "kv_lora_rank": 256}', "'kv_lora_rank' twice"),
    "nan": (b'{"rms_norm_eps": NaN}', "holds NaN"),
    "page": (b"<!DOCTYPE html><html>", "web page"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "latin": (b'{"a": "\xe9"}', "not UTF-8"),
    "deep": (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nests"),
    "large": (b'{"a": "' + b"x" * (8 << 20) + b'"}', "more than 8 MiB"),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_no_json_object_is_refused(folder, content, message):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        from_config(folder)
    assert str(folder / "config.json") in str(caught.value)


def test_a_path_to_nothing_is_refused(tmp_path):
    for where in (tmp_path / "nowhere", "with\0nul", "x" * 5000):
        with pytest.raises(ConfigError, match="is not there; the path of a config.json"):
            from_config(where)


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is a folder without a config.json$"):
        from_config(tmp_path)
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(ConfigError, match="Mistral's own format"):
        from_config(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are not here")
def test_a_pipe_is_refused_and_not_waited_for(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(ConfigError, match="is a pipe"):
        from_config(folder)
