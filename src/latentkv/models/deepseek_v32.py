"""DeepSeek-V3.2-Exp (deepseek-ai/DeepSeek-V3.2-Exp), as its own inference/model.py runs it.

Code and sizes are those of the pinned revision. The configuration that model.py reads has no
eps, so the one to compare with is that of the Hugging Face config.json.
"""

from __future__ import annotations

from ..contracts import KVContract, LatentQuant, NormContract, RopeContract
from .architecture import Architecture, Experts, Indexer, LatentAttention, Storage, Titles
from .spec import (
    Compression,
    Fact,
    File,
    LatentNorm,
    Model,
    Norms,
    Rotation,
    Source,
    Step,
)

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
_LATENT = NormContract(_KV.value, _EPS, "gain_then_cast")

_KEY = Fact(64, _CONFIG.at(19))
_MSCALE = Fact(1.0, _CODE.at(86, 536), "one value, which scales the softmax alone")
_ROTATION = Rotation(
    theta=Fact(10000.0, _CODE.at(82)),
    factor=Fact(40.0, _CODE.at(83), "on where max_seq_len is above 4,096 (lines 394 and 535)"),
    original=Fact(4096, _CODE.at(81)),
    beta_fast=Fact(32.0, _CODE.at(84)),
    beta_slow=Fact(1.0, _CODE.at(85)),
    mscale=_MSCALE,
    mscale_all_dim=_MSCALE,
)
_POSITIONS = Fact(
    163840, _HF_CONFIG.at(19), "model.py's default for max_seq_len is 16,384 (line 56)"
)

_NOPE = Fact(128, _CONFIG.at(18))
_VALUE = Fact(128, _CONFIG.at(20))
_HEADS = Fact(128, _CONFIG.at(8))
_DENSE = Fact(3, _CONFIG.at(7))
_MTP = Fact(1, _HF_CONFIG.at(31), "in the checkpoint only: model.py does not load it")
_VOCABULARY = Fact(129280, _CONFIG.at(2))
_DENSE_WIDTH = Fact(18432, _CONFIG.at(4))
_EXPERT_WIDTH = Fact(2048, _CONFIG.at(5))
_EXPERTS = Fact(256, _CONFIG.at(9))
_ACTIVE = Fact(8, _CONFIG.at(11))
_SHARED = Fact(1, _CONFIG.at(10))
_INDEX_HEADS = Fact(64, _CONFIG.at(23))
_INDEX_WIDTH = Fact(128, _CONFIG.at(24))
_TILE = Fact(128, _HF_CONFIG.at((40, 43)), "rows and columns that share a scale")

DEEPSEEK_V32 = Model(
    name="deepseek-v3.2-exp",
    display="DeepSeek-V3.2-Exp",
    repository="deepseek-ai/DeepSeek-V3.2-Exp",
    hidden_size=_HIDDEN,
    kv_lora_rank=_KV,
    q_lora_rank=_Q,
    qk_rope_head_dim=_KEY,
    qk_nope_head_dim=_NOPE,
    v_head_dim=_VALUE,
    heads=_HEADS,
    layers=_LAYERS,
    dense_layers=_DENSE,
    mla_layers=Fact(_LAYERS.value, _CODE.at((880, 884)), "every layer builds the same attention"),
    mtp_layers=_MTP,
    max_positions=_POSITIONS,
    norms=Norms(
        kv_latent=_LATENT,
        q_latent=NormContract(_Q.value, _EPS, "gain_then_cast"),
        block=NormContract(_HIDDEN.value, _EPS, "gain_then_cast"),
    ),
    kv=KVContract(
        norm=_LATENT,
        key_width=_KEY.value,
        rope=RopeContract(
            width=_KEY.value,
            theta=_ROTATION.theta.value,
            factor=_ROTATION.factor.value,
            low=10,
            high=23,
            interpolated="inverse",
            rounding="result",
            layout="interleaved",
            max_positions=_POSITIONS.value,
        ),
        quant=LatentQuant(128, "act_quant"),
    ),
    rotation=_ROTATION,
    compression=Compression(
        prefix="model.layers.N.self_attn",
        down="kv_a_proj_with_mqa",
        norm="kv_a_layernorm",
        up="kv_b_proj",
        steps=(
            Step("down-projection", "self.wkv_a(x)", _CODE.at((565, 566))),
            Step("norm", "self.kv_norm(kv)", _CODE.at(567)),
            Step(
                "rotation",
                "apply_rotary_emb(k_pe.unsqueeze(2), freqs_cis)",
                _CODE.at(568, (405, 425)),
            ),
            Step(
                "quantisation",
                "act_quant(kv, block_size, self.scale_fmt)",
                _CODE.at((569, 571)),
                "scale_fmt is ue8m0 (config_671B_v3.2.json 22), and nothing reads the latent "
                "before it has been through the codes",
            ),
            Step(
                "cache",
                "self.kv_cache[...] = kv; self.pe_cache[...] = k_pe.squeeze(2)",
                _CODE.at((572, 573)),
                "model.py keeps what the codes stand for, in bfloat16; FlashMLA and vLLM keep the "
                "codes",
            ),
            Step(
                "up-projection",
                "self.wkv_b(kv)",
                _CODE.at((576, 578)),
                "in prefill, from what the codes stand for; in decoding, absorbed into the query "
                "and the output",
            ),
        ),
        scale=_CODE.at((533, 537)),
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
            "whatever the checkpoint stores: the later DeepSeek-V3.2's has float32, this one's was "
            "not read",
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
    sizes=(
        ("vocabulary", _VOCABULARY),
        ("dense feed-forward width", _DENSE_WIDTH),
        ("expert width", _EXPERT_WIDTH),
        ("routed experts", _EXPERTS),
        ("active experts", _ACTIVE),
        ("shared experts", _SHARED),
        ("indexer heads", _INDEX_HEADS),
        ("indexer head width", _INDEX_WIDTH),
        ("tile of the fp8 weights", _TILE),
    ),
    architecture=Architecture(
        naming="deepseek",
        prefix="",
        vocabulary=_VOCABULARY.value,
        hidden=_HIDDEN.value,
        layers=_LAYERS.value,
        dense=frozenset(range(_DENSE.value)),
        dense_width=_DENSE_WIDTH.value,
        attention=LatentAttention(
            heads=_HEADS.value,
            q_rank=_Q.value,
            kv_rank=_KV.value,
            nope=_NOPE.value,
            rope=_KEY.value,
            value=_VALUE.value,
            indexer=Indexer(_INDEX_HEADS.value, _INDEX_WIDTH.value),
        ),
        experts=Experts(
            routed=_EXPERTS.value,
            active=_ACTIVE.value,
            shared=_SHARED.value,
            width=_EXPERT_WIDTH.value,
        ),
        mtp_layers=_MTP.value,
        # Gains: those of the later DeepSeek-V3.2, whose headers were read, are float32.
        storage=Storage(norm_dtype="float32", format="fp8_block", block=(_TILE.value, _TILE.value)),
        titles=Titles(attention="Sparse latent attention"),
    ),
    published=None,
)
