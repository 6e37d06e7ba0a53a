"""`models.from_config`: the contracts that follow from a configuration, and what does not."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from pathlib import Path

import configs
import published
import pytest
from whole_models import V3

from latentkv import NormContract, accounting, models
from latentkv.models import from_config
from latentkv.models.families import FAMILIES
from latentkv.models.yarn import Yarn, softmax_scale

every_type = pytest.mark.parametrize("model_type", configs.EVERY_TYPE)

K3 = published.K3 / "config.json"
V32 = published.V32 / "config_671B_v3.2.json"


def test_every_type_of_the_table_is_tried_here():
    assert set(configs.EVERY_TYPE) == set(FAMILIES)


@published.needs_shared
def test_kimi_k3s_published_configuration_gives_its_whole_model():
    ours, model = from_config(K3), models.get("kimi-k3")
    assert ours.architecture == model.architecture
    assert dataclasses.astuple(ours.norms) == dataclasses.astuple(model.norms)
    assert (ours.kv, ours.softmax_scale) == (model.kv, model.softmax_scale)
    assert (ours.follows, ours.unknown) == ("kimi-k3", ())
    assert any(
        "config.json 245: text_config.rms_norm_eps is 1e-05" in one.text for one in ours.notes
    )


@published.needs_shared
def test_kimi_k3s_text_configuration_alone_gives_its_language_model():
    ours = from_config(json.loads(K3.read_text())["text_config"])
    whole = models.get("kimi-k3").architecture
    assert ours.architecture == dataclasses.replace(whole, prefix="", vision=None)
    assert ours.model_type == "kimi_linear"


@published.needs_shared
def test_deepseeks_own_configuration_gives_its_contracts():
    ours, model = from_config(V32), models.get("deepseek-v3.2-exp")
    assert dataclasses.astuple(ours.norms) == dataclasses.astuple(model.norms)
    assert (ours.kv, ours.softmax_scale) == (model.kv, model.softmax_scale)
    assert ours.architecture == dataclasses.replace(model.architecture, mtp_layers=0)
    assert any("MTP" in one.text for one in ours.notes)


@published.needs_shared
def test_deepseek_v3s_own_configuration_rounds_once_and_its_rotation_is_not_known():
    content = json.loads(V32.read_text())
    v3 = {key: value for key, value in content.items() if not key.startswith("index_")}
    ours = from_config(v3)
    assert ours.norms.kv_latent == NormContract(512, 1e-6, "gain_then_cast")
    assert ours.kv is None and ours.softmax_scale is None
    assert "inference/model.py was not read" in ours.unknown[0].text
    assert ours.architecture is not None and ours.architecture.attention.indexer is None
    assert ours.architecture.storage.norm_dtype == ""  # V3.2's gains alone are likely fp32


def test_deepseek_v3s_configuration_gives_its_whole_model():
    assert from_config(configs.DEEPSEEK_V3).architecture == V3


@pytest.mark.parametrize(
    ("config", "tensors", "size", "parameters"),
    [
        # its 61 layers also keep frequencies, 256 bytes each
        (configs.KIMI_K2_THINKING, 208_276 - 61, 594_205_920_512 - 61 * 256, 1_026_408_232_448),
        (configs.KIMI_K25, 208_550, 595_148_192_736, 1_026_879_376_368),
    ],
    ids=["Kimi-K2-Thinking", "Kimi-K2.5"],
)
def test_int4_checkpoints_have_as_many_tensors_bytes_and_parameters_as_published(
    config, tensors, size, parameters
):
    ours = from_config(config)
    assert ours.architecture is not None and ours.kv is not None
    found = list(accounting.tensors(ours.architecture))
    assert (len(found), sum(one.bytes for one in found)) == (tensors, size)
    assert sum(one.parameters for one in found) == parameters
    # YaRN with the factor 64: 192^-0.5 × (0.1 ln 64 + 1)^2
    assert ours.softmax_scale == 0.14467962580268923


def test_kimi_k2s_configuration_gives_what_is_known_of_it():
    ours, model = from_config(configs.KIMI_K2), models.get("kimi-k2")
    assert (ours.kv, ours.softmax_scale) == (model.kv, model.softmax_scale)
    # that the checkpoint keeps each layer's frequencies is said by no configuration
    attention = dataclasses.replace(model.architecture.attention, frequencies=0)
    assert ours.architecture == dataclasses.replace(model.architecture, attention=attention)
    assert dataclasses.astuple(ours.norms) == dataclasses.astuple(model.norms)
    assert ours.unknown == ours.notes == ()


def test_deepseek_v3s_key_turns_by_kimi_k2s_convention_with_a_ramp_of_its_own():
    ours = from_config(configs.DEEPSEEK_V3)
    assert ours.kv is not None and ours.kv.rope is not None
    k2 = models.get("kimi-k2").kv.rope
    assert ours.kv.rope == dataclasses.replace(
        k2, theta=10000.0, factor=40.0, low=10, high=23, max_positions=163840
    )
    assert ours.softmax_scale == 0.1352337788608801
    assert any("rounds once, after the gain" in note.text for note in ours.notes)


@every_type
def test_the_latent_norm_has_the_configurations_width_and_its_class_eps(model_type):
    given = configs.small(model_type)
    ours = from_config(given)
    text = given.get("text_config", given)
    order = "gain_then_cast" if model_type == "deepseek_v32" else "cast_then_gain"
    assert ours.norms.kv_latent == NormContract(text["kv_lora_rank"], 1e-6, order)
    query = text["q_lora_rank"]
    assert ours.norms.q_latent == (NormContract(query, 1e-6, order) if query else None)
    # model.py of V3.2 knows no eps but its class's; all others pass it to the blocks' norms
    block = 1e-6 if model_type == "deepseek_v32" else 1e-5
    assert ours.norms.block == NormContract(48, block, order)
    assert ours.follows == FAMILIES[model_type].follows.name


@every_type
def test_an_eps_of_the_configuration_that_is_not_applied_is_pointed_out(model_type):
    notes = from_config(configs.small(model_type)).notes
    [note] = [one.text for one in notes if one.topic == "eps"]
    assert "rms_norm_eps is 1e-05" in note and "apply 1e-06" in note and "7%" in note
    ours = from_config(configs.small(model_type, rms_norm_eps=1e-6))
    assert not any(one.topic == "eps" for one in ours.notes)
    other = from_config(configs.small(model_type, rms_norm_eps=1e-3)).notes
    assert any("is 0.001" in one.text and "7%" not in one.text for one in other)


@every_type
def test_every_value_has_an_origin(model_type):
    ours = from_config(configs.small(model_type))
    origins = {value.name: value.origin for value in ours.values}
    assert all(origins.values())
    prefix = "text_config." if FAMILIES[model_type].nested else ""
    assert origins["kv_lora_rank"] == f"{prefix}kv_lora_rank"
    assert "default" in origins["kv latent eps"]


@pytest.mark.parametrize(
    "family", [one for one in FAMILIES.values() if one.norm], ids=lambda one: one.model_type
)
def test_the_table_of_classes_is_what_transformers_has(family):
    norm = family.norm
    path = f"transformers.models.{norm.package}.modeling_{norm.package}"
    module = importlib.import_module(path)
    cls = getattr(module, norm.name)
    assert inspect.signature(cls).parameters["eps"].default == norm.eps
    lines = Path(module.__file__).read_text().splitlines()
    assert "eps: float = 1e-6" in lines[norm.default - 1]
    assert f"self.kv_a_layernorm = {norm.name}(config.kv_lora_rank)" in lines[norm.kv - 1]
    assert f"self.q_a_layernorm = {norm.name}(self.q_lora_rank)" in lines[norm.query - 1]
    assert module.__file__.endswith(norm.file)
    # rounded before the gain
    assert "return self.weight * hidden_states.to(input_dtype)" in inspect.getsource(cls.forward)


ROPES = {
    "plain": ({"rope_scaling": None}, "plain RoPE"),
    "mscale": ({"rope_scaling": {**configs.YARN, "mscale": 0.7}}, "cos and sin are scaled"),
    "longrope": ({"rope_scaling": {"type": "longrope", "factor": 4}}, "of type longrope"),
    "not truncated": ({"rope_scaling": {**configs.YARN, "truncate": False}}, "truncate is false"),
    "half": ({"rope_interleave": False}, "rope_interleave is false"),
    "no ramp": ({"rope_scaling": {**configs.YARN, "beta_slow": 1e9, "beta_fast": 1e9}}, "ramp"),
    "long": ({"max_position_embeddings": 1 << 30}, "max_positions must be"),
    "attention factor": (
        {"rope_scaling": {**configs.YARN, "attention_factor": 1.2}},
        "attention_factor",
    ),
}


@pytest.mark.parametrize(("changes", "why"), ROPES.values(), ids=ROPES)
def test_a_rotation_without_a_contract_is_none_and_says_why(changes, why):
    ours = from_config(configs.small(**changes))
    assert ours.kv is None
    [told] = [one.text for one in ours.unknown if one.topic == "key-value path"]
    assert why in told
    assert ours.norms.kv_latent == NormContract(16, 1e-6, "cast_then_gain")


def test_minicpm3s_pairs_lie_apart():
    ours = from_config(configs.small("minicpm3"))
    assert ours.kv is None and "i and i + width / 2" in ours.unknown[0].text
    assert ours.architecture is not None and ours.architecture.experts is None


def test_a_width_that_groups_of_the_quantisation_do_not_divide_has_no_path():
    ours = from_config(configs.small("deepseek_v32", kv_lora_rank=100))
    assert ours.kv is None and "must divide the latent's width" in ours.unknown[0].text


def test_rope_parameters_say_the_same_as_rope_scaling():
    old = from_config(configs.small())
    new = dict(configs.YARN, rope_theta=10000, rope_type="yarn")
    new.pop("type")
    given = configs.small(rope_scaling=None, rope_parameters=new)
    given.pop("rope_theta")
    assert from_config(given).kv == old.kv
    assert old.kv is not None


def test_both_kimi_models_leave_the_key_unrotated():
    for model_type in ("kimi_linear", "kimi_k3"):
        ours = from_config(configs.small(model_type))
        assert ours.kv is not None and ours.kv.rope is None
        assert ours.softmax_scale == 72**-0.5
    rotating = from_config(configs.small("kimi_linear", mla_use_nope=False))
    assert rotating.kv is None and "mla_use_nope is false" in " ".join(map(str, rotating.unknown))


@pytest.mark.parametrize(("method", "bias"), [("greedy", False), ("noaux_tc", True), (None, False)])
def test_deepseek_v2s_gate_has_a_correction_only_where_the_method_asks_for_it(method, bias):
    ours = from_config(configs.small("deepseek_v2", topk_method=method)).architecture
    assert ours is not None and ours.experts is not None
    assert ours.experts.score_bias is bias


def test_shared_layers_have_no_indexer():
    ours = from_config(configs.small("glm_moe_dsa")).architecture
    assert ours is not None and ours.attention.indexer is not None
    assert ours.attention.indexer.layers == {0, 2}
    by_frequency = configs.small(
        "glm_moe_dsa", indexer_types=None, index_topk_freq=2, index_skip_topk_offset=1
    )
    assert from_config(by_frequency).architecture == ours
    pattern = configs.small("glm_moe_dsa", indexer_types=None, index_topk_pattern="FSFS")
    assert from_config(pattern).architecture == ours


@pytest.mark.case("F25-07")
def test_the_value_width_is_read_and_never_computed():
    given = configs.small(v_head_dim=12)  # hidden_size / heads is 24
    ours = from_config(given).architecture
    assert ours is not None and ours.attention.value == 12
    del given["v_head_dim"]
    with pytest.raises(models.ConfigError, match="v_head_dim is missing"):
        from_config(given)
    # MiniCPM3's published configuration lacks it, and its class computes it
    given = configs.small("minicpm3", v_head_dim=None)
    mini = from_config(given)
    assert mini.architecture is not None and mini.architecture.attention.value == 24
    assert any(one.name == "v_head_dim" and "default" in one.origin for one in mini.values)


@pytest.mark.case("F26-01")
@pytest.mark.parametrize("quantised", [configs.INT4, configs.FP8], ids=["int4", "fp8"])
def test_a_quantization_config_means_the_same_at_top_level_and_nested(quantised):
    nested = configs.small("kimi_k25", quantization_config=quantised)
    top = configs.small("kimi_k25") | {"quantization_config": quantised}
    ours = from_config(nested).architecture
    assert ours is not None and ours == from_config(top).architecture
    assert ours.storage.format == ("int" if quantised is configs.INT4 else "fp8_block")


@pytest.mark.case("F24-06")
def test_without_a_query_rank_no_query_norm_is_built():
    ours = from_config(configs.small("deepseek_v2", q_lora_rank=None))
    assert ours.norms.q_latent is None and ours.architecture is not None
    names = {one.name for one in accounting.tensors(ours.architecture)}
    assert "model.layers.0.self_attn.q_proj.weight" in names
    assert not any("q_a_layernorm" in name for name in names)


def test_only_routed_experts_are_packed_where_the_list_leaves_only_them():
    ours = from_config(configs.small("kimi_k25", quantization_config=configs.INT4)).architecture
    packed = {one.name for one in accounting.tensors(ours) if one.name.endswith("weight_packed")}
    assert len(packed) == 3 * 4 * 3 and all(".mlp.experts." in name for name in packed)


@pytest.mark.case("F26-04")
def test_groups_of_different_bits_have_no_storage():
    quantised = json.loads(json.dumps(configs.INT4))
    second = json.loads(json.dumps(quantised["config_groups"]["group_0"]))
    second["weights"]["num_bits"] = 2
    quantised["config_groups"]["group_1"] = second
    ours = from_config(configs.small(quantization_config=quantised))
    assert ours.architecture is None
    assert any("different bits" in one.text for one in ours.unknown)
    assert ours.norms.kv_latent.width == 16


def test_what_was_not_read_at_its_revision_is_said():
    for kind in ("kimi_k2", "deepseek_v3", "kimi_k25"):  # K2-Thinking's types, and K2.5's
        told = [str(one) for one in from_config(configs.small(kind)).unknown if "K2.5" in one.text]
        assert told and "were not read" in told[0]
        same = from_config(configs.small(kind, rms_norm_eps=1e-6)).unknown
        assert not any("K2.5" in one.text for one in same)
    glm = from_config(configs.small("glm_moe_dsa")).unknown
    assert any("trained is not known" in one.text for one in glm)
    v32 = from_config(configs.small("deepseek_v32")).notes
    assert any("two roundings" in one.text for one in v32)


def test_a_missing_dtype_is_said():
    ours = from_config(configs.small(torch_dtype=None))
    assert any("bfloat16 is taken" in one.text for one in ours.unknown)
    ours = from_config(configs.small(torch_dtype="float16")).architecture
    assert ours is not None and ours.storage.dtype == "float16"


OWN = {
    "vocab_size": 64,
    "dim": 2048,
    "inter_dim": 64,
    "moe_inter_dim": 16,
    "n_layers": 3,
    "n_dense_layers": 1,
    "n_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_activated_experts": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 64,
    "v_head_dim": 16,
    "dtype": "fp8",
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_topk": 8,
}


def test_deepseeks_own_configuration_sets_the_rotation_that_model_py_would_run():
    default = models.from_config(OWN)
    assert default.kv.rope.theta == 10_000 and default.kv.rope.factor == 40
    changed = {
        "rope_theta": 5000.0,
        "rope_factor": 8.0,
        "original_seq_len": 1024,
        "beta_fast": 16,
        "beta_slow": 2,
        "mscale": 0.5,
    }
    found = models.from_config(OWN | changed)
    yarn = Yarn(5000.0, 8.0, 1024, 16.0, 2.0, 0.5, 0.5)
    assert found.yarn == yarn
    assert (found.kv.rope.theta, found.kv.rope.factor) == (5000.0, 8.0)
    assert (found.kv.rope.low, found.kv.rope.high) == yarn.ramp(64)
    assert found.softmax_scale == softmax_scale(80, yarn) != default.softmax_scale
    with pytest.raises(models.ConfigError, match="rope_theta"):
        models.from_config(OWN | {"rope_theta": 1.0})


def test_deepseeks_own_router_has_its_correction_at_one_hidden_size():
    """model.py gives the gate a bias where dim is 7168 alone."""
    assert not models.from_config(OWN).architecture.experts.score_bias
    assert models.from_config(OWN | {"dim": 7168}).architecture.experts.score_bias


@pytest.mark.parametrize("model_type", ["kimi_linear", "kimi_k3"])
def test_a_kimi_that_rotates_has_no_path(model_type):
    config = configs.small(model_type)
    config.get("text_config", config)["mla_use_nope"] = False
    found = models.from_config(config)
    assert found.kv is None and any("mla_use_nope is false" in one.text for one in found.unknown)


@pytest.mark.parametrize(
    "change", [{"rope_type": "linear"}, {"original_max_position_embeddings": 8}]
)
def test_two_places_of_one_rotation_must_agree(change):
    config = configs.small("deepseek_v3")
    config["rope_scaling"] = configs.YARN
    config["rope_parameters"] = {
        name: value for name, value in {**configs.YARN, **change}.items() if name != "type"
    } | {"rope_type": change.get("rope_type", "yarn")}
    with pytest.raises(models.ConfigError, match="must be equal"):
        models.from_config(config)
