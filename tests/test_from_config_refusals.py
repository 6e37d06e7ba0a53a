"""`models.from_config` on what gives no contract: each a ConfigError that says what is wrong."""

from __future__ import annotations

import copy
import json

import configs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latentkv import models
from latentkv.config_page import config_page
from latentkv.models import ConfigError, Configured, from_config
from latentkv.models.families import FAMILIES, REFUSED


def linear(**changes):
    """A small Kimi Linear configuration with other lists of layers."""
    config = configs.small("kimi_linear")
    config["linear_attn_config"].update(changes)
    return config


def yarn(**changes):
    return configs.small(rope_scaling={**configs.YARN, **changes})


def int4(**changes):
    quantised = copy.deepcopy(configs.INT4)
    quantised["config_groups"]["group_0"]["weights"].update(changes)
    return quantised


SIZE = "a whole number from 1 to"
REFUSALS = {
    "kv_lora_rank 0": (configs.small(kv_lora_rank=0), f"kv_lora_rank is 0; {SIZE} 16,777,216"),
    "kv_lora_rank true": (configs.small(kv_lora_rank=True), f"kv_lora_rank is True; {SIZE}"),
    "kv_lora_rank text": (configs.small(kv_lora_rank="512"), f"kv_lora_rank is '512'; {SIZE}"),
    "kv_lora_rank float": (configs.small(kv_lora_rank=512.0), f"kv_lora_rank is 512.0; {SIZE}"),
    "kv_lora_rank huge": (configs.small(kv_lora_rank=10**30), rf"kv_lora_rank is 10+; {SIZE}"),
    "heads negative": (configs.small(num_attention_heads=-1), "num_attention_heads is -1"),
    "layers huge": (
        configs.small(num_hidden_layers=10**6),
        f"num_hidden_layers is .*{SIZE} 10,000",
    ),
    "hidden missing": (configs.small(hidden_size=None), "hidden_size is missing"),
    "eps missing": (configs.small(rms_norm_eps=None), "rms_norm_eps is missing"),
    "eps 0": (configs.small(rms_norm_eps=0), "rms_norm_eps is 0; a number above 0"),
    "eps text": (configs.small(rms_norm_eps="1e-6"), "rms_norm_eps is '1e-6'"),
    "eps nan": (configs.small(rms_norm_eps=float("nan")), "rms_norm_eps is nan"),
    "bias text": (configs.small(attention_bias="no"), "attention_bias is 'no'; true or false"),
    "dtype": (configs.small(torch_dtype="int4"), "torch_dtype is 'int4'; bfloat16, float16"),
    "two dtypes": (configs.small(dtype="float16"), "dtype is 'float16', and torch_dtype is"),
    "key odd": (configs.small(qk_rope_head_dim=63), "qk_rope_head_dim is 63; an even number"),
    "dense beyond": (
        configs.small(first_k_dense_replace=5),
        "first_k_dense_replace is 5; a whole number from 0 to 4",
    ),
    "dense unsaid": (configs.small(first_k_dense_replace=None), "first_k_dense_replace is missing"),
    "dense twice": (
        configs.small(mlp_layer_types=["dense", "dense", "sparse", "sparse"]),
        "first_k_dense_replace is 1, and mlp_layer_types lists other layers",
    ),
    "types short": (configs.small(mlp_layer_types=["dense"]), "lists 1 layers"),
    "types unknown": (configs.small(mlp_layer_types=["moe"] * 4), "each one of dense, sparse"),
    "active above routed": (
        configs.small(num_experts_per_tok=5),
        "num_experts_per_tok is 5; a whole number from 1 to 4",
    ),
    "experts unsaid": (configs.small(n_routed_experts=None), "num_experts or .*is missing"),
    "rope a list": (configs.small(rope_scaling=[4, 1]), r"rope_scaling is \[4, 1\]; an object"),
    "rope type a number": (yarn(type=4), "rope_scaling.type is 4; a string"),
    "two rope types": (yarn(rope_type="linear"), "type and rope_scaling.rope_type differ"),
    "factor below 1": (yarn(factor=0.5), "rope_scaling.factor is 0.5; a factor of at least 1"),
    "factor unsaid": (yarn(factor=None), "factor is missing in rope_scaling"),
    "theta 1": (configs.small(rope_theta=1), "rope_theta is 1; a base above 1"),
    "two thetas": (
        configs.small(rope_parameters={"rope_theta": 5e4}),
        "rope_theta is 10000 and rope_parameters.rope_theta is 50000: they must be equal",
    ),
    "two factors": (
        configs.small(rope_parameters={"factor": 4}),
        "rope_scaling.factor is 40 and rope_parameters.factor is 4",
    ),
    "method unsaid": (configs.small(quantization_config={"a": 1}), "quant_method is missing"),
    "quantised a list": (configs.small(quantization_config=[]), "quantization_config is .*object"),
    "block of one": (
        configs.small(quantization_config={**configs.FP8, "weight_block_size": [128]}),
        "weight_block_size must be rows and columns",
    ),
    "block of 0": (
        configs.small(quantization_config={**configs.FP8, "weight_block_size": [128, 0]}),
        r"weight_block_size is \[128, 0\]; a list of whole numbers",
    ),
    "no groups": (
        configs.small(quantization_config={**configs.INT4, "config_groups": {}}),
        "config_groups must hold at least one group",
    ),
    "bits text": (
        configs.small(quantization_config=int4(num_bits="4")),
        "weights.num_bits is '4'",
    ),
    "text_config a list": (
        {"model_type": "kimi_k25", "text_config": []},
        "text_config is .*object",
    ),
    "text_config missing": (configs.small() | {"model_type": "kimi_k25"}, "under text_config"),
    "text_config too many": (configs.small() | {"text_config": {"a": 1}}, "deepseek_v3 has none"),
    "text_config of another": (
        configs.small("kimi_k25", model_type="llama"),
        "text_config.model_type is 'llama'; one of kimi_k2, deepseek_v3",
    ),
    "nested contradicts": (
        configs.small("kimi_k25") | {"hidden_size": 64},
        "text_config.hidden_size is 48, and hidden_size is 64: they must be equal",
    ),
    "lists overlap": (linear(full_attn_layers=[3, 4]), "both hold layer 3"),
    "lists miss one": (linear(kda_layers=[1, 2]), "neither holds layer 3"),
    "lists out of range": (linear(full_attn_layers=[4, 5]), "from 1 to 4"),
    "lists count from 0": (linear(kda_layers=[0, 1, 2]), "from 1 to 4"),
    "lists missing": (linear(kda_layers=None), "which layers have latent attention"),
    "lists against types": (
        configs.small("kimi_linear", layer_types=["full_attention"] + 3 * ["linear_attention"]),
        "name other KDA layers",
    ),
    "all layers KDA": (
        linear(kda_layers=[1, 2, 3, 4], full_attn_layers=[]),
        "none has a key-value latent",
    ),
    "indexers short": (
        configs.small("glm_moe_dsa", indexer_types=["full"]),
        "each of 4 layers, and has 1",
    ),
    "first shares": (
        configs.small("glm_moe_dsa", indexer_types=["shared"] + 3 * ["full"]),
        "first layer shares",
    ),
    "pattern": (
        configs.small("glm_moe_dsa", indexer_types=None, index_topk_pattern="FXFF"),
        r"full \(F\) or shared",
    ),
    "indexer without query": (
        configs.small("deepseek_v32", q_lora_rank=None),
        "q_lora_rank is missing",
    ),
    "nothing": ({}, "model_type is missing"),
    "model_type a number": ({"model_type": 3, "kv_lora_rank": 4}, "model_type is 3; a string"),
    "misspelt": (
        configs.small() | {"model_type": "deepseek_v33"},
        "unknown model type 'deepseek_v33', did you mean deepseek_v3.*Known: deepseek_v2",
    ),
    "llama": ({"model_type": "llama"}, "'llama' and there is no kv_lora_rank: no key-value latent"),
    "around a known one": (
        {"model_type": "some_vl", "text_config": configs.small()},
        "its text_config is of the known type deepseek_v3",
    ),
    "Mistral's": ({"dim": 7168, "n_layers": 61, "kv_lora_rank": 512, "norm_eps": 1e-6}, "Mistral"),
}


@pytest.mark.parametrize(("config", "message"), REFUSALS.values(), ids=REFUSALS)
def test_a_fault_is_named_with_what_is_allowed(config, message):
    with pytest.raises(ConfigError, match=message) as caught:
        from_config(config)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_type_whose_arithmetic_has_no_contract_is_refused_with_the_reason(model_type):
    given = configs.small() | {"model_type": model_type}
    with pytest.raises(ConfigError) as caught:
        from_config(given)
    assert str(caught.value).endswith(REFUSED[model_type])
    assert model_type not in FAMILIES


def test_the_factor_of_longcat_and_the_layout_of_v4_are_told():
    assert "sqrt(hidden / rank) after the gain" in REFUSED["longcat_flash"]
    assert (
        "last 64 are rotated" in REFUSED["deepseek_v4"] and "groups of 64" in REFUSED["deepseek_v4"]
    )


def test_a_message_names_file_line_and_key(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(configs.small(kv_lora_rank=-3), indent=2))
    line = 1 + file.read_text().split("\n").index('  "kv_lora_rank": -3,')
    with pytest.raises(ConfigError, match=rf"^config.json {line}: kv_lora_rank is -3; "):
        from_config(file)


@pytest.mark.parametrize("where", [None, 3, [configs.small()], b"config.json"[0]])
def test_what_is_neither_path_nor_object_is_a_type_error(where):
    with pytest.raises(TypeError, match="where must be the path of a config.json"):
        from_config(where)


KEYS = sorted({key for kind in configs.EVERY_TYPE for key in configs.small(kind)})
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["yarn", "full", "dense", "kimi_k2", "fp8", *configs.EVERY_TYPE]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from([*KEYS, *configs.YARN, "a"]), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def holds(config):
    """It gives contracts, which have a page, or an error with a message."""
    try:
        found = from_config(config)
    except ConfigError as error:
        assert str(error)
        return
    assert isinstance(found, Configured)
    assert config_page(found).as_json()["norms"]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*KEYS, "a"]) | st.text(max_size=8), ANYTHING, max_size=8))
def test_any_object_gives_contracts_or_a_config_error(config):
    holds(config)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(configs.EVERY_TYPE), st.data())
def test_a_configuration_with_anything_in_it_gives_contracts_or_a_config_error(kind, data):
    config = configs.small(kind)
    for _ in range(data.draw(st.integers(1, 3))):
        inner = config
        # down to a key of some object within
        while True:
            key = data.draw(st.sampled_from(sorted(inner)))
            deeper = isinstance(inner[key], dict) and inner[key]
            if not deeper or data.draw(st.booleans()):
                break
            inner = inner[key]
        inner[key] = data.draw(ANYTHING)
    holds(config)


@pytest.mark.parametrize("method", ["gptq", "awq", "modelopt", "bitsandbytes", "no_such_method"])
def test_an_unknown_way_to_store_weights_leaves_the_norms_contract(method):
    found = models.from_config(configs.small(quantization_config={"quant_method": method}))
    assert found.norms == models.from_config(configs.small()).norms
    assert found.architecture is None
    assert any(one.topic == "storage" and repr(method) in one.text for one in found.unknown)


@pytest.mark.parametrize("pattern", ["(", "([a-z_.0-9]+)+!", "(?=a)b", ".*a.*b.*c.*d", "x" * 301])
def test_a_pattern_that_may_run_for_ever_is_not_run(pattern):
    packed = {**configs.INT4, "ignore": [f"re:{pattern}"]}
    found = models.from_config(configs.small(quantization_config=packed))
    assert found.architecture is None
    assert any("is not run" in one.text for one in found.unknown)
