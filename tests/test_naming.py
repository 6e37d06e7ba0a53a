"""The names of one tensor: published, and in DeepSeek's inference code."""

from __future__ import annotations

import pytest

from latentkv import accounting, models
from latentkv.checkpoint.naming import of_inference, to_inference

BOTH = {
    "model.embed_tokens.weight": "embed.weight",
    "lm_head.weight": "head.weight",
    "model.norm.weight": "norm.weight",
    "model.layers.0.input_layernorm.weight": "layers.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "layers.0.ffn_norm.weight",
    "model.layers.0.self_attn.q_a_proj.weight_scale_inv": "layers.0.attn.wq_a.scale",
    "model.layers.0.self_attn.q_a_layernorm.weight": "layers.0.attn.q_norm.weight",
    "model.layers.0.self_attn.q_b_proj.weight": "layers.0.attn.wq_b.weight",
    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": "layers.0.attn.wkv_a.weight",
    "model.layers.0.self_attn.kv_a_layernorm.weight": "layers.0.attn.kv_norm.weight",
    "model.layers.0.self_attn.kv_b_proj.weight": "layers.0.attn.wkv_b.weight",
    "model.layers.0.self_attn.o_proj.weight": "layers.0.attn.wo.weight",
    "model.layers.0.self_attn.indexer.wq_b.weight": "layers.0.attn.indexer.wq_b.weight",
    "model.layers.0.self_attn.indexer.wk.weight_scale_inv": "layers.0.attn.indexer.wk.scale",
    "model.layers.0.self_attn.indexer.k_norm.bias": "layers.0.attn.indexer.k_norm.bias",
    "model.layers.0.mlp.gate_proj.weight": "layers.0.ffn.w1.weight",
    "model.layers.3.mlp.gate.weight": "layers.3.ffn.gate.weight",
    "model.layers.3.mlp.gate.e_score_correction_bias": "layers.3.ffn.gate.bias",
    "model.layers.3.mlp.experts.7.down_proj.weight": "layers.3.ffn.experts.7.w2.weight",
    "model.layers.3.mlp.shared_experts.up_proj.weight": "layers.3.ffn.shared_experts.w3.weight",
}


@pytest.mark.parametrize("published", BOTH)
def test_the_table_of_names(published):
    assert to_inference(published) == BOTH[published]


@pytest.mark.parametrize("name", ["kimi-k2", "deepseek-v3.2-exp"])
def test_no_two_names_become_one(name):
    model = models.get(name)
    extra = f"model.layers.{model.layers.value}."  # the MTP layer, which inference has no name for
    names = [one.name for one in accounting.tensors(model) if not one.name.startswith(extra)]
    assert len({to_inference(one) for one in names}) == len(names)


def test_a_checkpoint_shows_whose_names_it_has():
    assert of_inference({"embed.weight", "head.weight"})
    assert not of_inference({"model.embed_tokens.weight"})
    assert not of_inference(set())
