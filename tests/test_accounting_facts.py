"""A whole model's sizes: built from its facts, each of which stands on the line that it cites."""

from __future__ import annotations

import json
import math

import pytest
from published import K3, V32, agrees, needs_shared

from latentkv import models
from latentkv.models.architecture import Architecture
from latentkv.models.spec import Fact

every_model = pytest.mark.parametrize("name", models.names())

# A size's label, and what it is in the architecture.
SIZES = {
    "vocabulary": lambda a: a.vocabulary,
    "dense feed-forward width": lambda a: a.dense_width,
    "expert width": lambda a: a.experts.width,
    "hidden width of the routed experts": lambda a: a.experts.hidden,
    "routed experts": lambda a: a.experts.routed,
    "active experts": lambda a: a.experts.active,
    "shared experts": lambda a: a.experts.shared,
    "indexer heads": lambda a: a.attention.indexer.heads,
    "indexer head width": lambda a: a.attention.indexer.width,
    "tile of the fp8 weights": lambda a: _one(a.storage.block),
    "KDA heads": lambda a: a.delta.heads,
    "KDA head width": lambda a: a.delta.width,
    "KDA convolution taps": lambda a: a.delta.taps,
    "group of the mxfp4 weights": lambda a: a.storage.group,
    "vision blocks": lambda a: a.vision.layers,
    "vision hidden size": lambda a: a.vision.hidden,
    "vision feed-forward width": lambda a: a.vision.width,
    "vision attention width": lambda a: a.vision.attention,
    "vision patch": lambda a: a.vision.patch,
    "vision position table": lambda a: _one(a.vision.positions),
    "merged patches": lambda a: a.vision.merged,
}
# The key of Kimi K3's config.json that stands on the cited line.
K3_KEYS = {
    "vocabulary": "vocab_size",
    "dense feed-forward width": "intermediate_size",
    "expert width": "moe_intermediate_size",
    "hidden width of the routed experts": "routed_expert_hidden_size",
    "routed experts": "num_experts",
    "active experts": "num_experts_per_token",
    "shared experts": "num_shared_experts",
    "KDA heads": "num_heads",
    "KDA head width": "head_dim",
    "KDA convolution taps": "short_conv_kernel_size",
    "group of the mxfp4 weights": "group_size",
    "vision blocks": "vt_num_hidden_layers",
    "vision hidden size": "vt_hidden_size",
    "vision feed-forward width": "vt_intermediate_size",
    "vision attention width": "qkv_hidden_size",
    "vision patch": "patch_size",
}
V32_KEYS = {
    "vocabulary": "vocab_size",
    "dense feed-forward width": "inter_dim",
    "expert width": "moe_inter_dim",
    "routed experts": "n_routed_experts",
    "active experts": "n_activated_experts",
    "shared experts": "n_shared_experts",
    "indexer heads": "index_n_heads",
    "indexer head width": "index_head_dim",
}


def _one(sides: tuple[int, int]) -> int:
    assert sides[0] == sides[1]
    return sides[0]


def cited(fact: Fact, text: str) -> list[str]:
    """The lines of the file that a fact cites, each range joined."""
    lines = text.splitlines()
    return ["\n".join(lines[one.first - 1 : one.last]).strip() for one in fact.place.lines]


@every_model
def test_the_architecture_is_that_of_the_facts(name):
    model = models.get(name)
    built: Architecture = model.architecture
    attention = built.attention
    assert built.hidden == model.hidden_size.value
    assert built.layers == model.layers.value
    assert built.dense == frozenset(range(model.dense_layers.value))
    assert built.mtp_layers == model.mtp_layers.value
    assert attention.heads == model.heads.value
    assert (attention.q_rank, attention.kv_rank) == (
        model.q_lora_rank.value,
        model.kv_lora_rank.value,
    )
    assert (attention.nope, attention.rope, attention.value) == (
        model.qk_nope_head_dim.value,
        model.qk_rope_head_dim.value,
        model.v_head_dim.value,
    )
    without = built.delta.layers if built.delta else frozenset()
    assert built.layers - len(without) == model.mla_layers.value
    assert without <= frozenset(range(built.layers))
    norm = model.kv_latent_norm
    assert (built.titles.norm, built.titles.container) == (norm.title, norm.container)


@every_model
def test_every_size_is_that_of_its_fact(name):
    model = models.get(name)
    for label, fact in model.sizes:
        assert SIZES[label](model.architecture) == fact.value > 0, label
    labels = [label for label, _ in model.sizes]
    assert len(set(labels)) == len(labels)
    assert {"vocabulary", "routed experts", "active experts", "shared experts"} < set(labels)


def test_no_size_is_without_a_test():
    assert {label for name in models.names() for label, _ in models.get(name).sizes} == set(SIZES)


@every_model
def test_every_size_has_a_place(name):
    for label, fact in models.get(name).sizes:
        file = fact.place.file
        assert file.repository.count("/") == 1 and file.path and len(file.revision) == 12, label


@needs_shared
def test_kimi_k3s_sizes_stand_on_their_lines():
    text = (K3 / "config.json").read_text("utf-8")
    sizes = dict(models.get("kimi-k3").sizes)
    for label, key in K3_KEYS.items():
        assert sizes[label].place.file.path.endswith("config.json")
        agrees(sizes[label], text, key)
    rows, columns = cited(sizes["vision position table"], text)
    assert rows == '"init_pos_emb_height": 64,' and columns == '"init_pos_emb_width": 64,'
    assert sizes["vision position table"].value == 64
    (merged,) = cited(sizes["merged patches"], text)
    kernel = json.loads("{" + merged.rstrip(",") + "}")["merge_kernel_size"]
    assert math.prod(kernel) == sizes["merged patches"].value
    assert set(sizes) == {*K3_KEYS, "vision position table", "merged patches"}


@needs_shared
def test_what_kimi_k3s_architecture_has_besides_is_in_its_configuration():
    config = json.loads((K3 / "config.json").read_text("utf-8"))
    text, vision = config["text_config"], config["vision_config"]
    built = models.get("kimi-k3").architecture
    linear = text["linear_attn_config"]
    assert built.delta.layers == {layer - 1 for layer in linear["kda_layers"]}
    assert built.delta.full_rank_gate == linear["use_full_rank_gate"]
    assert built.attention.gate == text["mla_use_output_gate"]
    assert built.tied == text["tie_word_embeddings"]
    assert built.vision.bias == vision["linear_bias"] == vision["attn_bias"]
    assert (text["quantization_config"]["format"], built.storage.format) == (
        "mxfp4-pack-quantized",
        "mxfp4",
    )


@needs_shared
def test_deepseek_v32s_sizes_stand_on_their_lines():
    text = (V32 / "config_671B_v3.2.json").read_text("utf-8")
    sizes = dict(models.get("deepseek-v3.2-exp").sizes)
    for label, key in V32_KEYS.items():
        assert sizes[label].place.file.path.endswith("config_671B_v3.2.json")
        agrees(sizes[label], text, key)
    # the rest is cited from the Hugging Face configuration, which is not among the shared files
    assert set(sizes) - set(V32_KEYS) == {"tile of the fp8 weights"}


@needs_shared
def test_what_model_py_reads_beside_the_sizes_agrees():
    text = (V32 / "config_671B_v3.2.json").read_text("utf-8")
    model = models.get("deepseek-v3.2-exp")
    agrees(model.qk_nope_head_dim, text, "qk_nope_head_dim")
    agrees(model.v_head_dim, text, "v_head_dim")
    assert json.loads(text)["dtype"] == "fp8" and model.architecture.storage.format == "fp8_block"


def test_what_is_published_has_a_source():
    published = {name: models.get(name).published for name in models.names()}
    assert published["kimi-k3"] is not None
    for one in filter(None, published.values()):
        assert one.source and len(one.digest) == 64 and one.tensors > 0 and one.bytes > 0
