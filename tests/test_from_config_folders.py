"""Tensors derived from a configuration against folders that transformers writes and reads."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV32Config,
    DeepseekV32ForCausalLM,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    KimiLinearConfig,
    KimiLinearForCausalLM,
    MiniCPM3Config,
    MiniCPM3ForCausalLM,
)
from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25Config
from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25ForConditionalGeneration

from latentkv import accounting, replace_latent_norms
from latentkv.checkpoint.contents import DTYPES
from latentkv.models import from_config

_ATTENTION = dict(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=2,
    kv_lora_rank=16,
    q_lora_rank=24,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=12,
)
_ROUTED = dict(
    moe_intermediate_size=20,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    n_shared_experts=2,
)
_MOE = dict(**_ATTENTION, **_ROUTED, n_routed_experts=4)
_INDEXED = dict(**_MOE, index_n_heads=2, index_head_dim=8)


def v3(**changes):
    # 5.24 writes that there is an MTP layer, and doesn't write the layer
    return DeepseekV3ForCausalLM(DeepseekV3Config(**{**_MOE, "num_mtp_layers": 0, **changes}))


def v2(**changes):
    return DeepseekV2ForCausalLM(DeepseekV2Config(**{**_MOE, **changes}))


def glm(**changes):
    config = {**_INDEXED, "indexer_types": ["full", "shared", "full"], **changes}
    return GlmMoeDsaForCausalLM(GlmMoeDsaConfig(**config))


def linear(**changes):
    config = {**_ATTENTION, **_ROUTED, "num_local_experts": 4, "q_lora_rank": None, **changes}
    return KimiLinearForCausalLM(
        KimiLinearConfig(
            **config,
            linear_head_dim=8,
            linear_num_heads=2,
            pad_token_id=None,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        )
    )


def k25():
    text = dict(_MOE, model_type="deepseek_v3", num_mtp_layers=0)
    vision = dict(
        patch_size=4,
        pos_emb_height=3,
        pos_emb_width=5,
        hidden_size=16,
        intermediate_size=20,
        num_attention_heads=2,
        num_hidden_layers=2,
    )
    return Kimi_K25ForConditionalGeneration(
        Kimi_K25Config(
            text_config=text,
            vision_config=vision,
            projection_hidden_size=16,
            tie_word_embeddings=False,
        )
    )


MODELS = {
    "deepseek_v2": v2,
    "deepseek_v2 without a query rank": lambda: v2(q_lora_rank=None),
    "deepseek_v2 with biases": lambda: v2(attention_bias=True, mlp_bias=True),
    "deepseek_v3": v3,
    "deepseek_v3 tied": lambda: v3(tie_word_embeddings=True),
    "deepseek_v3 dense": lambda: v3(first_k_dense_replace=3),
    "deepseek_v3 with YaRN": lambda: v3(
        rope_parameters=dict(
            rope_type="yarn",
            rope_theta=10000.0,
            factor=40.0,
            mscale=1.0,
            mscale_all_dim=1.0,
            original_max_position_embeddings=64,
        )
    ),
    "deepseek_v32": lambda: DeepseekV32ForCausalLM(DeepseekV32Config(**_INDEXED)),
    "glm_moe_dsa": glm,
    "minicpm3": lambda: MiniCPM3ForCausalLM(MiniCPM3Config(**_ATTENTION)),
    "minicpm3 untied": lambda: MiniCPM3ForCausalLM(
        MiniCPM3Config(**{**_ATTENTION, "tie_word_embeddings": False, "v_head_dim": None})
    ),
}
# transformers 5.24 writes these under other names than it reads: the text model's layers of the
# one as blocks, the dense layers of the other as block_sparse_moe.
MISNAMED = {
    "kimi_linear": linear,
    "kimi_linear with a query rank": lambda: linear(q_lora_rank=24),
    "kimi_k25": k25,
}
FP32 = ("e_score_correction_bias", "A_log", "dt_bias")  # in published checkpoints

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def silent():
    """Progress bars and reports on what was written."""
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def built(make, dtype):
    torch.manual_seed(0)
    model = make().to(dtype)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith(FP32):
            tensor.data = tensor.data.float()
    return model


def written(folder):
    found = {}
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in file.keys():
            tensor = file.get_slice(name)
            found[name] = (tuple(tensor.get_shape()), DTYPES[tensor.get_dtype()][0])
    return found


def derived(folder):
    """Name to shape and dtype; None for a dtype that is only likely."""
    configured = from_config(folder)
    assert configured.architecture is not None
    return {
        one.name: (one.shape, None if one.expected else one.dtype)
        for one in accounting.tensors(configured.architecture)
    }


@dtypes
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_tensors_that_transformers_writes_are_those_derived(make, dtype, tmp_path):
    built(make, dtype).save_pretrained(tmp_path)
    theirs, ours = written(tmp_path), derived(tmp_path)
    assert ours.keys() == theirs.keys()
    for name, (shape, its) in ours.items():
        assert theirs[name] == (shape, its or theirs[name][1]), name


@dtypes
@pytest.mark.parametrize("make", MISNAMED.values(), ids=MISNAMED)
def test_transformers_reads_tensors_of_the_derived_names_and_shapes(make, dtype, tmp_path):
    model = built(make, dtype)
    model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {
        name: torch.zeros(shape, dtype=getattr(torch, its or "float32"))
        for name, (shape, its) in derived(tmp_path).items()
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    _, told = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    assert not told["mismatched_keys"]


@dtypes
@pytest.mark.parametrize("make", MISNAMED.values(), ids=MISNAMED)
def test_what_transformers_misnames_has_the_derived_shapes_and_dtypes(make, dtype, tmp_path):
    built(make, dtype).save_pretrained(tmp_path)
    theirs, ours = written(tmp_path), derived(tmp_path)
    assert sorted(theirs.values()) == sorted(ours.values())


@pytest.mark.parametrize(
    "make", [v2, v3, MODELS["deepseek_v32"], glm, MODELS["minicpm3"], linear, k25]
)
def test_the_norms_are_replaced_by_the_contract_that_the_configuration_gives(make, tmp_path):
    model = built(make, torch.float32)
    model.config.save_pretrained(tmp_path)
    norms = from_config(tmp_path).norms
    names = replace_latent_norms(model, query=True)
    assert names
    for name in names:
        wanted = norms.kv_latent if name.endswith("kv_a_layernorm") else norms.q_latent
        assert model.get_submodule(name).contract == wanted


def test_an_mtp_layer_is_counted_as_the_configuration_does_and_pointed_out(tmp_path):
    built(lambda: v3(num_mtp_layers=1), torch.bfloat16).save_pretrained(tmp_path)
    ours = from_config(tmp_path)
    assert ours.architecture is not None and ours.architecture.mtp_layers == 1
    assert any(one.topic == "MTP" and "transformers neither" in one.text for one in ours.notes)
    without = dataclasses.replace(ours.architecture, mtp_layers=0)
    names = {one.name for one in accounting.tensors(without)}
    assert names == written(tmp_path).keys()
    assert all(
        one.name.startswith("model.layers.3.")
        for one in accounting.tensors(ours.architecture)
        if one.name not in names
    )
