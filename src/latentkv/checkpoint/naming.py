"""From a tensor's published name to that of DeepSeek's inference code. No torch.

DeepSeek's inference/convert.py renames the tensors of a published checkpoint for inference/model.py
(V3.2-Exp, revision 87e509a2e5a1, lines 11-34 and 53-82). Kimi K3's names are the published ones
behind "language_model."; its own code has no others.
"""

from __future__ import annotations

from collections.abc import Container

# The part of a name that says which module: published, inference.
_MODULES = {
    "embed_tokens": "embed",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "q_a_proj": "wq_a",
    "q_a_layernorm": "q_norm",
    "q_b_proj": "wq_b",
    "kv_a_proj_with_mqa": "wkv_a",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "wkv_b",
    "o_proj": "wo",
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
    "lm_head": "head",
}
_BLOCKS = {"self_attn": "attn", "mlp": "ffn"}
_LAST = {"weight_scale_inv": "scale", "e_score_correction_bias": "bias"}


def to_inference(name: str) -> str:
    """The inference code's name of a tensor of a DeepSeek checkpoint.

    Names of the indexer are the same in both. A layer for multi-token prediction has none: model.py
    doesn't build it, and convert.py leaves it out.
    """
    parts = name.removeprefix("model.").split(".")
    parts[:-2] = [_BLOCKS.get(part, part) for part in parts[:-2]]
    if len(parts) > 1:
        parts[-2] = _MODULES.get(parts[-2], parts[-2])
    parts[-1] = _LAST.get(parts[-1], parts[-1])
    return ".".join(parts)


def of_inference(names: Container[str]) -> bool:
    """Whether a checkpoint's names are the inference code's: ``names`` is a container of them."""
    return "embed.weight" in names and "model.embed_tokens.weight" not in names
