"""A model held against a checkpoint: what is missing, extra or different, and the verdict."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from checkpoints import KIMI, TINY, derived, write
from published import K3_INDEX, needs_shared

from latentkv import accounting, models
from latentkv.accounting import reconcile
from latentkv.checkpoint import CheckpointError, read
from latentkv.checkpoint.naming import to_inference
from latentkv.models.architecture import Storage

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
    assert report.found == dataclasses.replace(report.derived, parameters=None, declared=True)
    assert "by name and total size" in report.verdict


def test_an_index_alone_that_declares_other_parameters_is_told(tmp_path):
    declared = {"total_size": 7, "total_parameters": 9}
    write(tmp_path, derived(TINY), shards=2, metadata=declared)
    index = tmp_path / "model.safetensors.index.json"
    report = reconcile(TINY, index)
    assert report.found == accounting.totals(read(index))
    assert (report.found.parameters, report.found.bytes, report.found.declared) == (9, 7, True)
    assert "declares 9 parameters" in report.warnings[1]


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


@needs_shared
def test_kimi_k2_does_not_match_the_index_of_kimi_k3():
    report = reconcile(models.get("kimi-k2"), K3_INDEX)
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


def test_a_dtype_that_nobody_expects_is_no_likely_one(tmp_path):
    held = derived(KIMI)
    name = "language_model.model.layers.2.self_attn.indexer.k_norm.weight"
    held[name] = held[name].to(torch.bool)
    report = reconcile(KIMI, write(tmp_path, held))
    assert not report.matches
    assert report.dtypes == (accounting.Difference(name, "float32", "bool"),)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("evil.rotary_emb.inv_freq", (4,)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (100, 100)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (1025,)),
        ("model.layers.0.self_attn.xrotary_emb.inv_freq", (4,)),
    ],
)
def test_what_only_sounds_like_a_buffer_is_extra(tmp_path, name, shape):
    report = reconcile(TINY, write(tmp_path, derived(TINY) | {name: torch.zeros(shape)}))
    assert not report.matches and report.extra == (name,)


def test_a_total_that_no_buffer_explains_does_not_match(tmp_path):
    stored = dataclasses.replace(TINY, attention=dataclasses.replace(TINY.attention, frequencies=4))
    folder = write(tmp_path, derived(TINY), shards=2)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    assert reconcile(stored, index).matches  # less the buffers, to the byte
    assert "not compared" not in reconcile(stored, index).warnings[0]
    for change in (-1, 1):
        given = {"total_size": content["metadata"]["total_size"] + change}
        index.write_text(json.dumps(content | {"metadata": given}))
        report = reconcile(stored, index)
        assert not report.matches and "total size" in report.verdict
    extra = content["weight_map"] | {
        "model.layers.0.self_attn.rotary_emb.inv_freq": next(iter(content["weight_map"].values()))
    }
    for total, matches in ((5, False), (10**12, True)):
        index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": extra}))
        report = reconcile(TINY, index)
        assert report.matches == matches
        assert "by name and total size" not in report.verdict


def test_sizes_of_absurd_models_are_refused_before_a_name_is_made():
    experts = dataclasses.replace(TINY.experts, routed=65_536)
    absurd = dataclasses.replace(TINY, layers=10_000, experts=experts)
    said = "at least 1,966,220,021 tensors; 4,000,000 are counted at most"
    with pytest.raises(ValueError, match=said):
        accounting.tensors(absurd)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "config", "values"),
    [
        ("qweight", (96, 64), torch.int32, {"bits": 3}, 65_536),  # gptq: 32 values in 3 words
        ("qweight", (8, 64), torch.int32, {"w_bit": 4}, 4_096),
        ("weight_packed", (64, 16), torch.uint8, {"bits": 4}, 2_048),
        ("weight_packed", (64, 16), torch.uint8, {"bits": 8}, 1_024),
        ("weight", (64, 16), torch.int8, {"bits": 8}, 1_024),
        ("weight", (64, 16), torch.uint8, {"bits": 4}, 2_048),
    ],
)
def test_packed_words_of_other_writers(tmp_path, name, shape, dtype, config, values):
    held = {f"a.{name}": torch.zeros(shape, dtype=dtype), "a.weight_scale": torch.zeros(64, 1)}
    folder = write(tmp_path, held, config={"quantization_config": config})
    found = accounting.totals(read(folder))
    assert found.parameters == values


def test_codes_of_unknown_bits_are_told(tmp_path):
    held = {"a.weight": torch.zeros(64, 16, dtype=torch.uint8), "a.weight_scale": torch.zeros(64)}
    report = reconcile(TINY, write(tmp_path, held, config={"quantization_config": {}}))
    assert any("look packed" in one for one in report.warnings)


def test_a_caches_scales_are_no_parameters(tmp_path):
    held = {
        "a.self_attn.k_scale": torch.zeros(1),
        "a.self_attn.v_scale": torch.zeros(()),
        "a.k_scale": torch.zeros(7),
    }
    assert accounting.totals(read(write(tmp_path, held))).parameters == 7
