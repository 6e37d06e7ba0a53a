"""DeepSeek-V3.2-Exp (deepseek-ai/DeepSeek-V3.2-Exp), as its own inference/model.py runs it.

Code and sizes are those of the pinned revision. The configuration that model.py reads has no
eps, so the one to compare with is that of the Hugging Face config.json.
"""

from __future__ import annotations

from ..contracts import NormContract
from .spec import Fact, File, LatentNorm, Model, Norms, Source

_CODE = File("deepseek-ai/DeepSeek-V3.2-Exp", "inference/model.py", "87e509a2e5a1")
_CONFIG = File("deepseek-ai/DeepSeek-V3.2-Exp", "inference/config_671B_v3.2.json", "87e509a2e5a1")
_HF_CONFIG = File(
    "huggingface/transformers",
    "src/transformers/models/deepseek_v32/deepseek_files/config.json",
    "a10b6fa87498",
    copy_of="deepseek-ai/DeepSeek-V3.2-Exp",
)

_HIDDEN = Fact(7168, _CONFIG.at(3))
_KV = Fact(512, _CONFIG.at(17))
_Q = Fact(1536, _CONFIG.at(16))
_LAYERS = Fact(61, _CONFIG.at(6))

_EPS = 1e-6  # the class's default, for block and latent norms alike

DEEPSEEK_V32 = Model(
    name="deepseek-v3.2-exp",
    display="DeepSeek-V3.2-Exp",
    repository="deepseek-ai/DeepSeek-V3.2-Exp",
    hidden_size=_HIDDEN,
    kv_lora_rank=_KV,
    q_lora_rank=_Q,
    qk_rope_head_dim=Fact(64, _CONFIG.at(19)),
    layers=_LAYERS,
    dense_layers=Fact(3, _CONFIG.at(7)),
    mla_layers=Fact(_LAYERS.value, _CODE.at((880, 884)), "every layer builds the same attention"),
    mtp_layers=Fact(1, _HF_CONFIG.at(31), "in the checkpoint only: model.py does not load it"),
    norms=Norms(
        kv_latent=NormContract(_KV.value, _EPS, "gain_then_cast"),
        q_latent=NormContract(_Q.value, _EPS, "gain_then_cast"),
        block=NormContract(_HIDDEN.value, _EPS, "gain_then_cast"),
    ),
    kv_latent_norm=LatentNorm(
        title="Key–value latent RMSNorm",
        container="transformer blocks",
        counted="MoE blocks",
        path=("Sparse latent attention", "Key–value compression"),
        call=Fact("self.kv_norm(kv)", _CODE.at(567)),
        module="kv_norm",
        class_name="RMSNorm",
        input="c^{KV}",
        output=r"\hat c^{KV}",
        gain=r"\gamma_{KV}",
        positions=None,
        arithmetic=_CODE.at((296, 301)),
        eps=_CODE.at(280, 530),
        eps_config=Fact(
            1e-6, _HF_CONFIG.at(45), "not read by model.py, whose own configuration has no eps"
        ),
        gain_dtype=Fact(
            "float32",
            _CODE.at(284),
            "whatever the checkpoint stores: bfloat16 is expected there, but was not read",
        ),
        tensors_match=False,
        code=_CODE.at((280, 306), (523, 539), (565, 568)),
        sources=(
            Source(
                "rmsnorm",
                "Direct evidence",
                "RMSNorm holds one gain for each feature, and its arithmetic is float32; called "
                "with a residual argument, it begins by adding that residual, so the addition is "
                "fused into the normalisation that follows.",
                _CODE.at((280, 306)),
            ),
            Source(
                "mla-init",
                "Direct evidence",
                "What MLA owns. Query: a down-projection, an RMSNorm, an up-projection. Key and "
                "value: a joint down-projection, from which the shared rotary key comes as well, "
                "an RMSNorm of the latent, an up-projection. Then a projection for the output.",
                _CODE.at((523, 539)),
            ),
            Source(
                "mla-kv",
                "Direct evidence",
                "Two things leave the joint down-projection: the key–value latent, and one rotary "
                "key which all heads share. The latent is then normalised, the key rotated.",
                _CODE.at((565, 568)),
            ),
        ),
    ),
)
