"""A model held against a checkpoint: what is missing, extra or different, and the verdict."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from checkpoints import KIMI, TINY, derived, write
from helpers import NO_SHARED, SHARED

from latentkv import accounting, models
from latentkv.accounting import reconcile
from latentkv.checkpoint import CheckpointError
from latentkv.checkpoint.naming import to_inference
from latentkv.models.architecture import Storage

INDEX = SHARED / "data" / "kimi-k3" / "model.safetensors.index.json.gz"
FP8 = dataclasses.replace(TINY, storage=Storage(format="fp8_block", block=(16, 16)))
INT4 = dataclasses.replace(TINY, storage=Storage(format="int", group=16, quantised="experts"))
STORED = {"plain": TINY, "fp8": FP8, "int4": INT4, "mxfp4": KIMI}

by_storage = pytest.mark.parametrize("name", STORED)
KV = "model.layers.1.self_attn.kv_a_layernorm.weight"


@by_storage
@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_as_derived_matches(tmp_path, name, shards):
    report = reconcile(STORED[name], write(tmp_path, derived(STORED[name]), shards=shards))
    assert report.matches
    assert report.verdict == (
        "Derived from the configured sizes; the model total matches the checkpoint's tensors."
    )
    assert report.derived == report.found
    assert report.found.parameters == accounting.tree(STORED[name]).root.total
    assert report.found.bytes == sum(one.nbytes for one in derived(STORED[name]).values())
    assert (report.missing, report.extra, report.shapes, report.dtypes) == ((), (), (), ())
    assert report.warnings == ()


def test_a_missing_tensor_is_named(tmp_path):
    held = derived(TINY)
    size = held.pop(KV).numel()
    report = reconcile(TINY, write(tmp_path, held))
    assert not report.matches
    assert report.missing == (KV,)
    assert report.found.parameters == report.derived.parameters - size
    assert report.verdict.endswith("does not match the checkpoint's tensors: 1 missing.")


def test_an_extra_tensor_is_named_and_counted(tmp_path):
    held = derived(TINY) | {"model.layers.1.self_attn.extra.weight": torch.zeros(3, 5)}
    report = reconcile(TINY, write(tmp_path, held))
    assert not report.matches
    assert report.extra == ("model.layers.1.self_attn.extra.weight",)
    assert report.found.parameters == report.derived.parameters + 15
    assert report.verdict.endswith(": 1 extra.")


def test_another_shape_of_as_many_values_is_told(tmp_path):
    held = derived(TINY)
    held["model.embed_tokens.weight"] = held["model.embed_tokens.weight"].mT.contiguous()
    report = reconcile(TINY, write(tmp_path, held))
    assert not report.matches
    assert report.shapes == (
        accounting.Difference("model.embed_tokens.weight", "(50, 40)", "(40, 50)"),
    )
    assert report.found.parameters == report.derived.parameters  # and yet it isn't the model's


def test_another_dtype_is_told(tmp_path):
    held = derived(TINY)
    held[KV] = held[KV].to(torch.float32)
    report = reconcile(TINY, write(tmp_path, held))
    assert not report.matches
    assert report.dtypes == (accounting.Difference(KV, "bfloat16", "float32"),)
    assert report.found.bytes == report.derived.bytes + 2 * 32
    assert report.verdict.endswith(": 1 of another dtype.")


def test_each_kind_of_difference_is_in_the_verdict(tmp_path):
    held = derived(TINY) | {"a": torch.zeros(1), "b": torch.zeros(1)}
    del held["lm_head.weight"]
    held["model.norm.weight"] = torch.zeros(41, dtype=torch.bfloat16)
    held[KV] = held[KV].to(torch.float32)
    report = reconcile(TINY, write(tmp_path, held))
    assert report.verdict.endswith(": 1 missing, 2 extra, 1 of another shape, 1 of another dtype.")


def test_a_dtype_that_was_only_expected_decides_nothing_but_is_told(tmp_path):
    held = derived(KIMI)
    name = "language_model.model.layers.2.self_attn.indexer.k_norm.weight"
    held[name] = held[name].to(torch.bfloat16)
    report = reconcile(KIMI, write(tmp_path, held))
    assert report.matches
    (warning,) = report.warnings
    assert name in warning and "bfloat16 for float32" in warning


def test_packed_codes_count_as_what_they_hold_and_scales_as_nothing(tmp_path):
    """An mxfp4 checkpoint of a model derived without experts: all of theirs are extra."""
    bare = dataclasses.replace(KIMI, experts=None, storage=Storage())
    config = {
        "quantization_config": {
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}}
        }
    }
    for given in (config, {"text_config": config}):  # as Kimi-K2.5 nests it
        report = reconcile(bare, write(tmp_path, derived(KIMI), config=given))
        assert report.found.parameters == accounting.tree(KIMI).root.total
        assert report.warnings == ()
    (tmp_path / "config.json").unlink()
    report = reconcile(bare, tmp_path)
    assert report.found.parameters < accounting.tree(KIMI).root.total
    assert any("counted as stored" in warning for warning in report.warnings)


@pytest.mark.parametrize("total", [1, 10**15])
def test_a_total_in_the_index_that_the_tensors_contradict_is_told_and_not_shown(tmp_path, total):
    metadata = {"total_size": total, "total_parameters": total}
    report = reconcile(TINY, write(tmp_path, derived(TINY), shards=2, metadata=metadata))
    assert report.matches
    assert report.found.bytes == report.derived.bytes != total
    sizes, parameters = report.warnings
    assert f"declares {total:,} bytes" in sizes and f"{report.found.bytes:,}" in sizes
    assert f"declares {total:,} parameters" in parameters


def test_an_index_alone_gives_names_and_total_size(tmp_path):
    index = write(tmp_path, derived(TINY), shards=2) / "model.safetensors.index.json"
    report = reconcile(TINY, index)
    assert report.matches
    assert report.found == dataclasses.replace(report.derived, parameters=None)
    assert "by name and total size" in report.verdict


def test_an_index_alone_with_another_total_does_not_match(tmp_path):
    write(tmp_path, derived(TINY), shards=2, metadata={"total_size": 7})
    report = reconcile(TINY, tmp_path / "model.safetensors.index.json")
    assert not report.matches
    assert report.verdict.endswith(": another total size.")
    assert "declares 7 bytes" in report.warnings[0]


def test_an_index_without_a_total_matches_by_name_alone(tmp_path):
    write(tmp_path, derived(TINY), shards=2, metadata={})
    report = reconcile(TINY, tmp_path / "model.safetensors.index.json")
    assert report.matches
    assert "by name;" in report.verdict and report.found.bytes is None


def test_an_index_with_other_names_does_not_match(tmp_path):
    write(tmp_path, derived(TINY), shards=2)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.other.weight"] = content["weight_map"].pop(KV)
    index.write_text(json.dumps(content))
    report = reconcile(TINY, index)
    assert (report.missing, report.extra) == ((KV,), ("model.other.weight",))
    assert not report.matches


@pytest.mark.skipif(not INDEX.exists(), reason=NO_SHARED)
def test_kimi_k3_matches_its_published_index():
    report = reconcile(models.get("kimi-k3"), INDEX)
    assert report.matches and report.warnings == ()
    assert report.found == accounting.Side(497_220, None, 1_560_860_324_864)


@pytest.mark.skipif(not INDEX.exists(), reason=NO_SHARED)
def test_kimi_k2_does_not_match_the_index_of_kimi_k3():
    report = reconcile(models.get("kimi-k2"), INDEX)
    assert not report.matches
    # its 61 buffers are not learned, so that a checkpoint may lack them
    assert len(report.missing) == report.derived.tensors - 61 == 139_583
    assert len(report.extra) == report.found.tensors == 497_220


def test_a_checkpoint_converted_for_deepseeks_inference_code_is_compared_under_its_names(tmp_path):
    held = {
        to_inference(name): value
        for name, value in derived(FP8).items()
        if not name.startswith("model.layers.3.")  # convert.py leaves the MTP layer out
    }
    assert "layers.1.attn.kv_norm.weight" in held and "layers.1.attn.wkv_a.scale" in held
    report = reconcile(FP8, write(tmp_path, held))
    assert report.matches
    assert report.found.tensors == report.derived.tensors == len(held)
    assert "inference code" in report.warnings[0]
    del held["layers.1.attn.kv_norm.weight"]
    assert reconcile(FP8, write(tmp_path, held)).missing == ("layers.1.attn.kv_norm.weight",)


def test_stored_rotary_frequencies_decide_nothing_but_are_told(tmp_path):
    stored = dataclasses.replace(TINY, attention=dataclasses.replace(TINY.attention, frequencies=4))
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder = write(tmp_path, derived(stored), shards=2)
    for given, there in ((stored, folder), (TINY, folder)):
        report = reconcile(given, there)
        assert report.matches and report.found.parameters == accounting.tree(TINY).root.total
    (warning,) = report.warnings
    assert name in warning and "are stored as well" in warning
    report = reconcile(TINY, folder / "model.safetensors.index.json")
    assert report.matches and "not compared" in report.warnings[0]
    report = reconcile(stored, write(tmp_path / "without", derived(TINY)))
    assert report.matches and "are not stored" in report.warnings[0]


def test_an_absent_shard_is_an_error_and_no_count(tmp_path):
    write(tmp_path, derived(TINY), shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="model-00002-of-00003"):
        reconcile(TINY, tmp_path)


def test_a_revision_of_a_folder_is_misuse(tmp_path):
    with pytest.raises(CheckpointError, match="revision"):
        reconcile(TINY, write(tmp_path, derived(TINY)), revision="main")
