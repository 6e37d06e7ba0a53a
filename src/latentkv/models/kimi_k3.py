"""Kimi K3 (moonshotai/Kimi-K3), the language model.

The code's lines are those of modeling_kimi_linear.py at the pinned revision; sizes are those of
the published config.json, read in a public copy.
"""

from __future__ import annotations

from ..contracts import KVContract, NormContract
from .spec import Compression, Fact, File, LatentNorm, Model, Norms, Source, Step

_CODE = File("moonshotai/Kimi-K3", "modeling_kimi_linear.py", "f831ab668142")
_CONFIG = File(
    "PipeNetwork/kimi-k3-mlx",
    "reference/config.json",
    "20a4fb101ce8",
    copy_of="moonshotai/Kimi-K3",
)

_HIDDEN = Fact(7168, _CONFIG.at(50))
_KV = Fact(512, _CONFIG.at(59))
_Q = Fact(1536, _CONFIG.at(199))
_CONFIG_EPS = Fact(1e-5, _CONFIG.at(245), "passed to the block norms; the latent norms get none")

_LATENT_EPS = 1e-6
_LATENT = NormContract(_KV.value, _LATENT_EPS, "cast_then_gain")
_KEY = Fact(64, _CONFIG.at(201), "never rotated, in spite of its name")

KIMI_K3 = Model(
    name="kimi-k3",
    display="Kimi K3",
    repository="moonshotai/Kimi-K3",
    hidden_size=_HIDDEN,
    kv_lora_rank=_KV,
    q_lora_rank=_Q,
    qk_rope_head_dim=_KEY,
    qk_nope_head_dim=Fact(128, _CONFIG.at(200)),
    v_head_dim=Fact(128, _CONFIG.at(266)),
    heads=Fact(96, _CONFIG.at(181)),
    layers=Fact(93, _CONFIG.at(187)),
    dense_layers=Fact(1, _CONFIG.at(46)),
    mla_layers=Fact(24, _CONFIG.at((67, 92)), "the layers listed, counted from 1"),
    mtp_layers=Fact(0, _CONFIG.at(189)),
    max_positions=Fact(1048576, _CONFIG.at(171)),
    norms=Norms(
        kv_latent=_LATENT,
        q_latent=NormContract(_Q.value, _LATENT_EPS, "cast_then_gain"),
        block=NormContract(_HIDDEN.value, _CONFIG_EPS.value, "cast_then_gain"),
    ),
    kv=KVContract(norm=_LATENT, key_width=_KEY.value, rope=None, quant=None),
    rotation=None,
    compression=Compression(
        prefix="language_model.model.layers.N.self_attn",
        down="kv_a_proj_with_mqa",
        norm="kv_a_layernorm",
        up="kv_b_proj",
        steps=(
            Step(
                "down-projection",
                "self.kv_a_proj_with_mqa(hidden_states)",
                _CODE.at((426, 428)),
            ),
            Step("norm", "self.kv_a_layernorm(k_pass)", _CODE.at(430)),
            Step(
                "up-projection",
                "self.kv_b_proj(...)",
                _CODE.at((430, 431)),
                "an engine that caches the latent absorbs this matrix into the query and the "
                "output",
            ),
            Step(
                "rotation",
                "self.rotary_emb = None",
                _CODE.at(396, 403, (435, 440)),
                "the constructor asserts it",
            ),
            Step(
                "cache",
                "past_key_values.update(...)",
                _CODE.at((443, 444)),
                "the model's own file keeps every head's key and value instead",
            ),
        ),
        scale=_CODE.at(359),
    ),
    kv_latent_norm=LatentNorm(
        title="Latent RMSNorm",
        container="layers",
        counted="MLA layers",
        path=("Gated MLA", "Key and value heads"),
        call=Fact("self.kv_a_layernorm(k_pass)", _CODE.at(430)),
        module="kv_a_layernorm",
        class_name="KimiRMSNorm",
        input="c^{KV}",
        output=r"\hat c^{KV}",
        gain=r"\gamma_{KV}",
        positions=None,
        arithmetic=_CODE.at((233, 236)),
        eps=_CODE.at(227, 383),
        eps_config=_CONFIG_EPS,
        gain_dtype=Fact(
            "bfloat16",
            _CONFIG.at(40),
            "the checkpoint's own dtype too: the index's total size has no other solution",
        ),
        tensors_match=True,
        code=_CODE.at((226, 236), (340, 403)),
        sources=(
            Source(
                "rmsnorm",
                "Direct evidence",
                "RMSNorm holds one gain for each feature, and its arithmetic is float32.",
                _CODE.at((226, 236)),
            ),
            Source(
                "mla-init",
                "Direct evidence",
                "What latent attention owns. Query: a down-projection, an RMSNorm, an "
                "up-projection. Key and value: a joint down-projection, from which 64 shared, "
                "unrotated key features come as well, an RMSNorm of the latent, an up-projection. "
                "Then a projection for the output, and a full-rank one for the output's gate. A "
                "rotary embedding is not created.",
                _CODE.at((340, 403)),
            ),
        ),
    ),
)
