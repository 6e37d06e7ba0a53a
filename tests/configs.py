"""Configurations that the tests of `models.from_config` read: published sizes, and small ones."""

from __future__ import annotations

import copy
from typing import Any

YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
# K2-Thinking's and K2.5's: routed experts alone are left to be packed.
INT4: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4,
                "group_size": 32,
                "symmetric": True,
                "type": "int",
                "strategy": "group",
                "actorder": None,
            },
        }
    },
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
}

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "topk_method": "noaux_tc",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "rope_scaling": YARN,
    "max_position_embeddings": 163840,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": FP8,
}
KIMI_K2: dict[str, Any] = {
    **DEEPSEEK_V3,
    "model_type": "kimi_k2",
    "vocab_size": 163840,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "num_attention_heads": 64,
    "n_routed_experts": 384,
    "rope_theta": 50000.0,
    "rope_scaling": {**YARN, "factor": 32.0, "beta_fast": 1.0},
    "max_position_embeddings": 131072,
}
KIMI_K2_THINKING: dict[str, Any] = {
    **KIMI_K2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {**YARN, "factor": 64.0, "beta_fast": 1.0},
    "max_position_embeddings": 262144,
    "quantization_config": INT4,
}
KIMI_K25: dict[str, Any] = {
    "model_type": "kimi_k25",
    "text_config": {
        **KIMI_K2_THINKING,
        "rope_scaling": {**YARN, "factor": 64.0},
        "quantization_config": {
            **INT4,
            "ignore": [*INT4["ignore"], "re:vision_tower.*", "re:mm_projector.*"],
        },
    },
    "vision_config": {
        "patch_size": 14,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
        "init_pos_emb_time": 4,
        "vt_hidden_size": 1152,
        "vt_intermediate_size": 4304,
        "vt_num_attention_heads": 16,
        "vt_num_hidden_layers": 27,
        "merge_kernel_size": [2, 2],
        "mm_projector_type": "patchmerger",
        "mm_hidden_size": 1152,
    },
}

_SMALL = {
    **DEEPSEEK_V3,
    "vocab_size": 32,
    "hidden_size": 48,
    "intermediate_size": 40,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 4,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "num_attention_heads": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-05,
    "quantization_config": None,
}
_EXTRA: dict[str, dict[str, Any]] = {
    "deepseek_v32": {"index_n_heads": 2, "index_head_dim": 8, "kv_lora_rank": 128},
    "glm_moe_dsa": {
        "index_n_heads": 2,
        "index_head_dim": 8,
        "indexer_types": ["full", "shared", "full", "shared"],
    },
    "minicpm3": {"n_routed_experts": None, "moe_intermediate_size": None},
    "kimi_linear": {
        "q_lora_rank": None,
        "linear_attn_config": {
            "kda_layers": [1, 2, 3],
            "full_attn_layers": [4],
            "head_dim": 8,
            "num_heads": 2,
            "short_conv_kernel_size": 4,
        },
    },
}
_EXTRA["kimi_k3"] = {
    **_EXTRA["kimi_linear"],
    "model_type": "kimi_linear",
    "routed_expert_hidden_size": 20,
    "latent_moe_use_norm": True,
    "attn_res_block_size": 2,
    "mla_use_output_gate": True,
}
_VISION = {
    "patch_size": 4,
    "init_pos_emb_height": 3,
    "init_pos_emb_width": 5,
    "vt_hidden_size": 16,
    "vt_intermediate_size": 20,
    "vt_num_hidden_layers": 2,
    "merge_kernel_size": [2, 2],
}
_NESTED = {"kimi_k25": "kimi_k2", "kimi_k3": "kimi_linear"}

EVERY_TYPE = (
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "kimi_k2",
    "kimi_k3",
    "kimi_linear",
    "kimi_k25",
    "glm_moe_dsa",
    "minicpm3",
)


def small(model_type: str = "deepseek_v3", /, **changes: Any) -> dict[str, Any]:
    """A small configuration of this type; ``changes`` go into its language model's object."""
    flat = {**_SMALL, "model_type": model_type, **_EXTRA.get(model_type, {})}
    if model_type not in _NESTED:
        return copy.deepcopy({**flat, **changes})
    inner = {**flat, "model_type": _NESTED[model_type], **changes}
    vision = _VISION if model_type == "kimi_k25" else {**_VISION, "linear_bias": False}
    if model_type == "kimi_k3":
        vision |= {"attn_bias": False, "patch_embed_proj_bias": False, "norm_type": "rmsnorm"}
    return copy.deepcopy({"model_type": model_type, "text_config": inner, "vision_config": vision})
