"""``latentkv count``: what it prints, what it exits with, and that it never counts a part."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import configs
import pytest
from checkpoints import TINY, derived, write
from hub_server import Fault, serving
from published import K3_INDEX, needs_shared
from typer.testing import CliRunner

from latentkv import accounting, models
from latentkv.cli import app

CONFIG = configs.small(
    vocab_size=TINY.vocabulary,
    hidden_size=TINY.hidden,
    num_hidden_layers=TINY.layers,
    intermediate_size=TINY.dense_width,
    num_nextn_predict_layers=TINY.mtp_layers,
    kv_lora_rank=TINY.attention.kv_rank,
    qk_rope_head_dim=TINY.attention.rope,
    v_head_dim=TINY.attention.value,
    rms_norm_eps=1e-6,
)
KV = "model.layers.1.self_attn.kv_a_layernorm.weight"
TOTAL = accounting.tree(TINY).root.total


def run(*arguments: object, columns: int = 100):
    return CliRunner().invoke(app, ["count", *map(str, arguments)], env={"COLUMNS": str(columns)})


def counted(*arguments: object, code: int = 0):
    result = run("--json", *arguments)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "tiny", derived(TINY), shards=2, config=CONFIG)


@pytest.mark.parametrize("name", models.names())
def test_a_name_gives_the_tree_the_totals_and_the_verdict(name):
    result = run(name)
    assert result.exit_code == 0
    tree = accounting.tree(models.get(name))
    lines = result.stdout.splitlines()
    for node in (tree.root, *tree.root.children):
        (line,) = (
            one
            for one in lines
            if one.startswith(("  " * (node is not tree.root)) + node.title + " ")
        )
        assert f"{node.total:,}" in line and f"{node.per_instance:,}" in line
    for total in tree.totals:
        assert any(f"{total.parameters:,}" in one for one in lines)
    told = " ".join(result.stdout.split())
    matches = models.get(name).published is not None
    assert ("the model total matches the checkpoint's tensors" in told) == matches
    assert ("checkpoint tensors have not been independently counted" in told) == (not matches)


def test_a_name_is_counted_without_torch_and_without_the_hubs_client():
    script = (
        "import sys; from latentkv.cli import main; sys.argv = ['latentkv', 'count', 'kimi-k2']\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'numpy', 'huggingface_hub', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_the_json_has_every_node_and_every_size_with_its_origin():
    told = counted("kimi-k3")
    assert (told["model"], told["report"], told["found"]) == ("Kimi K3", None, None)

    def nodes(node):
        return 1 + sum(map(nodes, node["children"]))

    assert nodes(told["tree"]["root"]) == len(
        list(accounting.tree(models.get("kimi-k3")).root.walk())
    )
    sizes = {size["name"]: size for size in told["sizes"]}
    assert sizes["routed experts"]["value"] == 896
    assert sizes["kv_lora_rank"]["origin"].endswith("reference/config.json@20a4fb101ce8 59")


@pytest.mark.parametrize("columns", [30, 60, 84, 100, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_width_and_encoding_is_printed(columns, encoding):
    result = subprocess.run(
        [sys.executable, "-m", "latentkv", "count", "deepseek-v3.2-exp", "--filter", "norm"],
        env={**os.environ, "COLUMNS": str(columns), "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )
    lines = result.stdout.decode(encoding).splitlines()
    assert max(map(len, lines)) <= max(columns, 30)
    assert "".join(lines).count("685,355,329,792") >= 2 or columns < 60


def test_depth_and_filter_choose_what_is_shown():
    assert "Embedding" not in run("kimi-k2", "--depth", 0).stdout
    assert "MoE blocks" not in run("kimi-k2", "--depth", 1).stdout
    assert "Query up-projection" in run("kimi-k2", "--depth", 9).stdout
    filtered = run("kimi-k2", "--filter", "LATENT rmsnorm").stdout
    assert "Key–value latent RMSNorm" in filtered and "Query latent RMSNorm" in filtered
    assert "Embedding" not in filtered and "Dense feed-forward" not in filtered
    assert "30,720" in filtered  # 512 in each of the 60 MoE blocks, as the page counts them
    by_name = run("kimi-k2", "--filter", "kv_a_layernorm").stdout
    assert "Key–value latent RMSNorm" in by_name and "Query latent" not in by_name
    assert "no component" in run("kimi-k2", "--filter", "no such thing").stdout
    sums = run("kimi-k3", "--filter", "A_log").stdout  # a weight's own name, in both kinds
    assert f"{69 * 128:,} parameters in what has 'A_log'" in " ".join(sums.split())


def test_the_readme_shows_what_is_printed():
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    block = readme.split("latentkv count kimi-k3 --filter kv_a_layernorm")[1].split("```")[1]
    assert block.removeprefix("text\n") in run("kimi-k3", "--filter", "kv_a_layernorm").stdout


def test_a_folder_that_agrees(folder):
    result = run(folder)
    assert result.exit_code == 0, result.output
    assert "the model total matches the checkpoint's tensors." in " ".join(result.stdout.split())
    told = counted(folder)
    assert told["report"]["matches"] and told["found"]["parameters"] == TOTAL
    assert told["tree"]["root"]["total"] == TOTAL
    assert told["model"] == "tiny"


def test_a_folder_that_does_not_agree_says_where_and_exits_with_1(tmp_path):
    held = derived(TINY)
    del held[KV]
    for expert in range(4):
        del held[f"model.layers.2.mlp.experts.{expert}.up_proj.weight"]
    result = run(write(tmp_path / "tiny", held, config=CONFIG))
    assert result.exit_code == 1
    assert KV in result.stdout
    assert "5 missing" in " ".join(result.stdout.split())


def test_numbers_that_do_not_differ_are_shown(tmp_path):
    held = derived(TINY)
    for expert in range(4):
        del held[f"model.layers.2.mlp.experts.{expert}.up_proj.weight"]
    result = run(write(tmp_path / "tiny", held, config=CONFIG))
    assert "model.layers.2.mlp.experts.N.up_proj.weight × 4" in result.stdout


def test_every_differing_dtype_is_counted_in_the_list(tmp_path):
    held = {name: value.float() for name, value in derived(TINY).items()}
    result = run(write(tmp_path / "tiny", held, config=CONFIG))
    assert result.exit_code == 1
    told = " ".join(result.stdout.split())
    assert "the model total matches, but not the checkpoint's tensors: 96 of another dtype" in told
    listed = result.stdout.split("float32 instead of bfloat16:")[1].split("Derived")[0]
    shown = sum(int(one) for one in re.findall(r"× (\d+)", listed))
    single = len(re.findall(r"^ +(?:model|lm_head)[^×]*$", listed, re.MULTILINE))
    rest = re.search(r"and (\d+) more", listed)
    assert shown + single + (int(rest[1]) if rest else 0) == 96


def test_a_long_list_is_cut_and_says_so(tmp_path):
    held = derived(TINY) | {f"extra.{'x' * n}.weight": derived(TINY)[KV] for n in range(1, 20)}
    result = run(write(tmp_path / "tiny", held, config=CONFIG))
    assert "and 11 more (--json lists all)" in result.stdout
    told = counted(tmp_path / "tiny", code=1)
    assert len(told["report"]["extra"]) == 19


def test_an_index_alone(folder):
    told = counted(folder / "model.safetensors.index.json")
    assert told["report"]["matches"] and told["found"]["parameters"] is None


def test_a_config_alone_is_derived(folder):
    told = counted(folder / "config.json")
    assert told["tree"]["root"]["total"] == TOTAL
    assert told["report"] is None
    assert told["verdict"].endswith("have not been independently counted.")


def test_a_checkpoint_without_a_config_is_recognised_by_its_names_or_refused(folder):
    (folder / "config.json").unlink()
    result = run(folder)
    assert result.exit_code == 2
    assert "config.json" in result.stderr and "--model" in result.stderr
    result = run(folder, "--model", "kimi-k2")
    assert result.exit_code == 1
    assert "does not match" in result.stdout


@needs_shared
@pytest.mark.parametrize("beside", [True, False])
def test_kimi_k3s_published_index(tmp_path, beside):
    index = K3_INDEX
    if not beside:  # without its config.json: known by its names
        index = tmp_path / K3_INDEX.name
        index.write_bytes(K3_INDEX.read_bytes())
    told = counted(index)
    assert told["found"] == {
        "tensors": 497220,
        "parameters": None,
        "bytes": 1560860324864,
        "declared": True,
    }
    assert told["report"]["matches"] and told["report"]["warnings"] == []
    assert told["model"].lower().endswith("k3")


def test_a_config_whose_sizes_are_not_all_known_gives_what_the_headers_say(tmp_path):
    quantised = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            f"group_{bits}": {"targets": [target], "weights": {"num_bits": bits, "group_size": 32}}
            for target, bits in (("Linear", 4), ("Embedding", 2))
        },
    }
    config = CONFIG | {"quantization_config": quantised}
    told = counted(write(tmp_path / "tiny", derived(TINY), config=config), code=1)
    assert told["tree"] is None and told["report"] is None
    assert told["found"]["parameters"] == TOTAL
    assert told["verdict"].startswith(
        "Counted from the checkpoint's own tensors; nothing is derived"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kimi-k4"], ["unknown model", "kimi-k3", "owner/name"]),
        (["./no/such/folder"], ["no file or folder"]),
        (["kimi-k2", "--model", "kimi-k3"], ["is a model's name", "moonshotai/Kimi-K2-Instruct"]),
        (["kimi-k2", "--revision", "main"], ["is a model's name"]),
        (["{folder}", "--revision", "main"], ["revision"]),
        (["{folder}", "--model", "kimi-k4"], ["unknown model"]),
        (["{folder}/nothing"], ["no file or folder"]),
    ],
)
def test_misuse_is_refused_with_what_to_do(folder, arguments, words):
    result = run(*(one.replace("{folder}", str(folder)) for one in arguments))
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def test_a_model_without_a_contract_is_refused_by_name(tmp_path):
    config = CONFIG | {"model_type": "longcat_flash"}
    result = run(write(tmp_path / "tiny", derived(TINY), config=config))
    assert result.exit_code == 2
    assert "longcat_flash" in result.stderr and result.stdout == ""


def test_a_broken_folder_is_never_counted(folder):
    shard = folder / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    result = run(folder)
    assert result.exit_code == 2 and result.stdout == ""
    assert shard.name in result.stderr and "truncated" in result.stderr


def test_a_repository_is_read_from_the_hub(tmp_path):
    with serving(tmp_path) as hub:
        write(hub.folder, derived(TINY), shards=2, config=CONFIG)
        result = subprocess.run(
            [sys.executable, "-m", "latentkv", "count", hub.repository, "--json"],
            env={**os.environ, "HF_ENDPOINT": hub.endpoint, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        told = json.loads(result.stdout)
        assert told["report"]["matches"] and told["report"]["revision"] == hub.commit
        assert (told["model"], told["found"]["parameters"]) == ("name", TOTAL)
        hub.faults.append(Fault(on="/api/", status=429, headers={"Retry-After": "86400"}))
        refused = subprocess.run(
            [sys.executable, "-m", "latentkv", "count", hub.repository],
            env={**os.environ, "HF_ENDPOINT": hub.endpoint, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
        )
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "429" in refused.stderr


def test_a_strangers_names_do_not_reach_the_terminal_raw(tmp_path):
    spoof = (
        "a\n"
        + "Derived from the configured sizes; the model total matches the checkpoint's tensors."
    )
    held = derived(TINY) | {spoof: derived(TINY)[KV], "\x1b]0;title\x07\x1b[2J": derived(TINY)[KV]}
    result = run(write(tmp_path / "tiny", held, config=CONFIG))
    assert result.exit_code == 1
    assert "\x1b" not in result.stdout and "\\x1b]0;title\\x07" in result.stdout
    assert not any(
        line.startswith("Derived") and "matches" in line for line in result.stdout.splitlines()
    )
    assert spoof in counted(tmp_path / "tiny", code=1)["report"]["extra"]


def test_json_stays_json_for_a_path_that_is_no_utf8(tmp_path):
    folder = os.fsencode(tmp_path) + b"/nu\xff"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("the file system takes no such name")
    write(Path(os.fsdecode(folder)), derived(TINY), config=CONFIG)
    result = subprocess.run(
        [sys.executable, "-m", "latentkv", "count", folder, "--json"],
        capture_output=True,
        check=True,
    )
    assert json.loads(result.stdout)["report"]["matches"]


def test_a_name_means_the_model_and_a_path_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "kimi-k2", derived(TINY), config=CONFIG)
    assert counted("kimi-k2")["found"] is None
    assert counted("./kimi-k2")["found"]["parameters"] == TOTAL


def test_a_mistyped_path_is_told_before_the_hub_is_blamed(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    result = run("ckpt/no_such_folder")
    assert result.exit_code == 2
    assert "there is no path ckpt/no_such_folder, so that the hub was asked" in result.stderr
    assert (
        "`latentkv count kimi-k2` needs no checkpoint" in run("moonshotai/Kimi-K2-Instruct").stderr
    )


def test_a_revision_of_a_config_is_misuse(folder):
    result = run(folder / "config.json", "--revision", "main")
    assert result.exit_code == 2 and "revision" in result.stderr


@pytest.mark.parametrize("pattern", ["([a-z_.0-9]+)+!", "(a|a)*b"])
def test_a_configs_regular_expression_cannot_hang(tmp_path, pattern):
    packed = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {"targets": [f"re:{pattern}"], "weights": {"num_bits": 4, "group_size": 32}}
        },
        "ignore": [f"re:{pattern}"],
    }
    config = CONFIG | {"quantization_config": packed}
    held = {"a" * 60 + ".weight_packed": derived(TINY)[KV].int()}
    result = run(write(tmp_path / "tiny", held, config=config))
    assert result.exit_code == 1 and "nothing is derived" in " ".join(result.stdout.split())


@pytest.mark.parametrize("arguments", [["--json"], []])
def test_a_reader_that_goes_away_does_not_look_like_a_difference(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as gone:
        result = subprocess.run(
            [sys.executable, "-m", "latentkv", "count", "kimi-k3", *arguments],
            stdout=gone,
            stderr=subprocess.PIPE,
        )
    assert (result.returncode, result.stderr) == (141, b"")
