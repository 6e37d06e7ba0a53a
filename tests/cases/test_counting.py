"""F24, F25 and F26: what a checkpoint's tensors are, hold and add up to."""

import dataclasses
import json

import published
import pytest
from forge import hollow
from whole_models import (
    U8,
    V2_LITE,
    Row,
    small,
    table,
    titled,
    totals,
    whole,
)

from latentkv import accounting, layouts, models
from latentkv.accounting import reconcile, tensors
from latentkv.checkpoint import read
from latentkv.models.architecture import Storage

K2, K3, V32 = models.names()
CONFIG = published.K3 / "config.json"

# deepseek-ai/DeepSeek-V2-Lite, whose query has no latent
V2_LITE_CONFIG = {
    "model_type": "deepseek_v2",
    "dtype": "bfloat16",
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "scoring_func": "softmax",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "v_head_dim": 128,
    "vocab_size": 102400,
}


def compressed(*groups):
    """A quantization_config with these groups, each targets and bits."""
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "config_groups": {
                f"group_{at}": {"targets": list(targets), "weights": {"num_bits": bits}}
                for at, (targets, bits) in enumerate(groups)
            },
        }
    }


EXPERT = "model.layers.1.mlp.experts.0.gate_proj"
INT4 = {
    f"{EXPERT}.weight_packed": ("I32", (2048, 896)),
    f"{EXPERT}.weight_scale": ("BF16", (2048, 224)),
    f"{EXPERT}.weight_shape": ("I32", (2,)),
}


@pytest.mark.case("F24-06")
def test_a_query_without_a_latent_has_no_norm():
    configured = models.from_config(V2_LITE_CONFIG)
    assert configured.norms.q_latent is None and configured.architecture == V2_LITE
    titles = [node.title for node in whole(V2_LITE).root.walk()]
    assert "Query projection" in titles and "Query latent RMSNorm" not in titles


@pytest.mark.case("F25-06")
@pytest.mark.parametrize(("model", "heads"), [(K2, 64), (K3, 96), (V32, 128)])
def test_values_are_as_wide_as_their_own_heads(model, heads):
    attention = models.get(model).architecture.attention
    assert (attention.nope + attention.rope, attention.value) == (192, 128)
    rows = {
        name.rpartition("self_attn.")[2]: row.shape
        for name, row in table(model).rows.items()
        if "self_attn" in name
    }
    assert rows["q_b_proj.weight"] == (heads * 192, 1536)
    assert rows["kv_b_proj.weight"] == (heads * (128 + 128), 512)
    assert rows["o_proj.weight"] == (7168, heads * 128)
    narrow = dataclasses.replace(
        V2_LITE, attention=dataclasses.replace(V2_LITE.attention, value=96)
    )
    assert table(narrow).rows["model.layers.N.self_attn.o_proj.weight"].shape == (2048, 16 * 96)
    assert table(narrow).rows["model.layers.N.self_attn.kv_b_proj.weight"].shape == (16 * 224, 512)


@pytest.mark.case("F25-07")
def test_kimi_k3_has_896_experts_and_the_head_width_of_its_configuration():
    architecture = models.get(K3).architecture
    assert architecture.experts.routed == 896 > 512
    assert architecture.attention.value == 128 != 7168 // 96 == 74
    every = {
        int(one.name.split(".")[6]) for one in tensors(models.get(K3)) if ".experts." in one[0]
    }
    assert every == set(range(896))


@pytest.mark.case("F25-07")
@published.needs_shared
def test_kimi_k3s_configuration_gives_it_and_nothing_is_taken_in_its_place():
    config = json.loads(CONFIG.read_text("utf-8"))
    assert models.from_config(config).architecture == models.get(K3).architecture
    config["text_config"]["v_head_dim"] = 112
    assert models.from_config(config).architecture.attention.value == 112
    del config["text_config"]["v_head_dim"]
    with pytest.raises(models.ConfigError, match="v_head_dim is missing"):
        models.from_config(config)


@pytest.mark.case("F26-01")
@pytest.mark.parametrize("nested", [False, True])
def test_a_word_holds_eight_4_bit_values(tmp_path, nested):
    config = compressed((["Linear"], 4))
    config = {"text_config": config} if nested else config
    side = accounting.totals(read(hollow(tmp_path / "a", INT4, config)))
    assert side.parameters == 14_680_064 == 8 * 1_835_008
    assert side.bytes == 4 * 1_835_008 + 2 * 2048 * 224 + 8


@pytest.mark.case("F26-02")
def test_scales_shapes_and_index_tensors_hold_no_parameters(tmp_path):
    linear = "model.layers.0.self_attn.o_proj"
    beside = {
        f"{linear}.qweight": ("I32", (1024, 512)),
        f"{linear}.scales": ("BF16", (64, 512)),
        f"{linear}.qzeros": ("I32", (64, 64)),
        f"{linear}.g_idx": ("I32", (8192,)),
        "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (256, 128)),
        "model.layers.0.mlp.up_proj.weight_scale_inv": ("F32", (2, 1)),
    }
    groups = compressed((["Linear"], 4))
    for held, parameters in (
        (INT4, 14_680_064),
        (beside, 1024 * 8 * 512 + 256 * 128),
        (INT4 | beside, 14_680_064 + 1024 * 8 * 512 + 256 * 128),
    ):
        side = accounting.totals(read(hollow(tmp_path / str(len(held)), held, groups)))
        assert (side.tensors, side.parameters) == (len(held), parameters)
    for model in (K2, K3, V32):
        held = {name for name, parameters in table(model).parameters.items() if parameters}
        others = set(table(model).rows) - held
        endings = ("weight_scale", "weight_scale_inv", "rotary_emb.inv_freq")
        assert others and all(name.endswith(endings) for name in others)


@pytest.mark.case("F26-04")
@pytest.mark.parametrize("order", [1, -1])
def test_each_group_has_its_own_width(tmp_path, order):
    embedding, layer = "model.embed_tokens", "model.layers.0.self_attn.o_proj"
    held = {
        f"{embedding}.weight_packed": ("I32", (1000, 8)),
        f"{embedding}.weight_scale": ("BF16", (1000, 4)),
        f"{layer}.weight_packed": ("I32", (64, 16)),
        f"{layer}.weight_scale": ("BF16", (64, 4)),
    }
    right = 1000 * 8 * 16 + 64 * 16 * 8
    for two in ("Embedding", "re:.*embed_tokens.*", embedding):
        groups = [([two], 2), (["Linear"], 4)][::order]
        side = accounting.totals(read(hollow(tmp_path / "a", held, compressed(*groups))))
        assert side.parameters == right


@pytest.mark.case("F26-06")
@pytest.mark.parametrize("declared", [314_000_000_000, 89])
def test_a_declared_total_that_the_tensors_contradict_is_told(tmp_path, declared):
    where = hollow(
        tmp_path / "a", INT4, compressed((["Linear"], 4)), total_parameters=declared, total_size=7
    )
    report = reconcile(small(Storage()), where)
    assert report.found.parameters == 14_680_064
    said = " ".join(report.warnings)
    assert f"{declared:,} parameters" in said and "14,680,064" in said
    assert f"7 bytes in all, its tensors have {report.found.bytes:,}" in said
    assert said.count("the latter is shown") == 2


@pytest.mark.case("F26-07")
def test_a_small_number_in_the_index_is_not_trusted(tmp_path):
    held = {"model.embed_tokens.weight": ("BF16", (1_000_000, 7_600))}
    where = hollow(tmp_path / "a", held, total_parameters=333_312)
    report = reconcile(small(Storage()), where)
    assert report.found.parameters == 7_600_000_000
    (warning,) = report.warnings
    assert "333,312" in warning and "7,600,000,000" in warning
    same = hollow(tmp_path / "b", held, total_parameters=7_600_000_000)
    assert reconcile(small(Storage()), same).warnings == ()


@pytest.mark.case("F26-09")
def test_kimi_k3s_experts_are_3584_wide():
    experts = titled(K3, "Routed experts")
    assert sum(node.instances for node in experts) == 92 * 896
    total = sum(node.total for node in experts)
    assert total == 896 * 3 * 3072 * 3584 * 92 == 2_722_740_830_208
    packed = "language_model.model.layers.N.block_sparse_moe.experts.N.w1.weight_packed"
    assert table(K3).rows[packed] == Row(92 * 896, (3072, 1792), U8)
    assert table(K3).parameters[packed] == 92 * 896 * 3072 * 3584
    (gate, up, down) = experts[0].children
    assert gate.shapes == up.shapes == ((3072, 3584),) and down.shapes == ((3584, 3072),)


@pytest.mark.case("F26-11")
def test_kimi_k3s_layers_are_93_with_the_dense_one_inside():
    (layers,) = titled(K3, "Layers")
    kinds = {node.title: node.instances for node in layers.children}
    assert kinds == {"KDA layers, dense": 1, "KDA layers": 68, "MLA layers": 24}
    delta = sum(node.instances for node in titled(K3, "Kimi delta attention"))
    latent = sum(node.instances for node in titled(K3, "Gated MLA"))
    assert (delta, latent, delta + latent) == (69, 24, 93)
    numbers = {
        one.name.split(".")[3] for one in tensors(models.get(K3)) if "input_layernorm" in one.name
    }
    assert numbers == {str(layer) for layer in range(93)}


@pytest.mark.case("F26-12")
def test_a_token_is_cached_once_and_not_as_key_and_value():
    for model, layers, total in ((K2, 61, 70_272), (V32, 61, 70_272), (K3, 24, 27_648)):
        facts = models.get(model)
        record = layouts.plain(facts.kv)
        assert record.width == 576 and facts.mla_layers.value == layers
        assert layouts.bytes_per_token(record, layers) == total == layers * 576 * 2
    # not over all of Kimi K3's layers, 69 of which keep a state instead
    assert layouts.bytes_per_token(layouts.plain(models.get(K3).kv), 93) == 107_136


@pytest.mark.case("F26-14")
def test_what_a_cache_holds_is_an_input():
    facts = models.get(V32)
    tokens, layers, heads = 65_536, facts.mla_layers.value, facts.heads.value
    latent = layouts.bytes_per_model(layouts.plain(facts.kv), tokens, layers)
    assert latent == 4_605_345_792
    # a backend that keeps each head's key and value says so, with its own record
    keys = layouts.Field("keys", 0, heads * facts.head_width, "bfloat16")
    values = layouts.Field("values", keys.end, heads * facts.v_head_dim.value, "bfloat16")
    expanded = layouts.Record("expanded", "bfloat16", (keys, values))
    assert layouts.bytes_per_model(expanded, tokens, layers) == 327_491_256_320
    assert expanded.bytes == 81_920 and layouts.plain(facts.kv).bytes == 1_152


@pytest.mark.case("F26-16")
def test_delta_attention_is_counted_by_its_tensors():
    # The names are the published index's (test_accounting_tensors.py), the shapes give its size.
    prefix = "language_model.model.layers.1.self_attn."
    own = {}
    for one in tensors(models.get(K3)):
        if one.name.startswith(prefix):
            own[one.name.removeprefix(prefix).removesuffix(".weight")] = one.parameters
        elif own:
            break
    (node, *_) = titled(K3, "Kimi delta attention")
    assert sum(own.values()) == node.per_instance == 443_740_416
    shortcut = 4 * 7168 * 96 * 128  # query, key, value and output, as standard attention has
    assert {"q_proj", "k_proj", "v_proj", "o_proj"} < set(own)
    assert sum(own[name] for name in ("q_proj", "k_proj", "v_proj", "o_proj")) == shortcut
    assert node.per_instance - shortcut == 91_418_880
    # all 69, as the tree has it
    assert sum(one.total for one in titled(K3, "Kimi delta attention")) == 69 * 443_740_416


@pytest.mark.case("F26-17")
def test_active_parameters_come_with_and_without_the_embedding():
    found = {one.name: one for one in whole(V2_LITE).totals}
    without, with_it = found["active"], found["active, with embedding"]
    assert (without.parameters, with_it.parameters) == (2_451_435_008, 2_661_150_208)
    assert with_it.parameters - without.parameters == 102400 * 2048
    assert "head included" in without.counts and "embedding" not in without.counts
    assert "embedding" in with_it.counts
    for model in (K2, K3, V32):
        both = totals(model)
        (embedding, *_) = titled(model, "Embedding")
        assert both["active, with embedding"] - both["active"] == embedding.total
