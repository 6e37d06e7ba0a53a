"""Kimi K2 (moonshotai/Kimi-K2-Instruct).

The code's lines are those of modeling_deepseek.py at the pinned revision. Sizes were read in a
public repository that keeps K2's configuration while dropping layers and experts; it records how
many layers the original had. maxtext's kimi-k2-1t.yml gives the same sizes.
"""

from __future__ import annotations

from ..contracts import KVContract, NormContract, RopeContract
from .architecture import Architecture, Experts, LatentAttention, Published, Storage
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

_CODE = File("moonshotai/Kimi-K2-Instruct", "modeling_deepseek.py", "fd1984e2b7a3")
_CONFIG = File(
    "mfarisadip/Kimi-K2-Mini",
    "k2-mini-broken/config.json",
    "0fd6b81d9108",
    copy_of="moonshotai/Kimi-K2-Instruct",
)

# The reduced copy has other experts; maxtext's configuration of K2 has the original's.
_MAXTEXT = File(
    "AI-Hypercomputer/maxtext", "src/MaxText/configs/models/kimi-k2-1t.yml", "48445cf00e73"
)

_HIDDEN = Fact(7168, _CONFIG.at(17))
_KV = Fact(512, _CONFIG.at(20))
_Q = Fact(1536, _CONFIG.at(35))
_LAYERS = Fact(61, _CONFIG.at(71), "the layers of the original, which the reduced copy records")
_CONFIG_EPS = Fact(1e-6, _CONFIG.at(47), "passed to the block norms; the latent norms get none")

_LATENT_EPS = 1e-6
_LATENT = NormContract(_KV.value, _LATENT_EPS, "cast_then_gain")

_KEY = Fact(64, _CONFIG.at(37))
_ROTATION = Rotation(
    theta=Fact(50000.0, _CONFIG.at(48)),
    factor=Fact(32.0, _CONFIG.at(53), "64 in the later Kimi-K2-Instruct-0905"),
    original=Fact(4096, _CONFIG.at(56)),
    beta_fast=Fact(1.0, _CONFIG.at(51)),
    beta_slow=Fact(1.0, _CONFIG.at(52)),
    mscale=Fact(1.0, _CONFIG.at(54)),
    mscale_all_dim=Fact(1.0, _CONFIG.at(55)),
)
_POSITIONS = Fact(131072, _CONFIG.at(21))

_NOPE = Fact(128, _CONFIG.at(36))
_VALUE = Fact(128, _CONFIG.at(67))
_HEADS = Fact(64, _CONFIG.at(29))
_DENSE = Fact(1, _CONFIG.at(15))
_VOCABULARY = Fact(163840, _CONFIG.at(68))
_DENSE_WIDTH = Fact(18432, _CONFIG.at(19))
_EXPERT_WIDTH = Fact(2048, _CONFIG.at(23))
_EXPERTS = Fact(384, _CONFIG.at(72), "the experts of the original, which the reduced copy records")
_ACTIVE = Fact(8, _MAXTEXT.at(32))
_SHARED = Fact(1, _MAXTEXT.at(33))
_TILE = Fact(128, _CONFIG.at((42, 45)), "rows and columns that share a scale")

KIMI_K2 = Model(
    name="kimi-k2",
    display="Kimi K2",
    repository="moonshotai/Kimi-K2-Instruct",
    hidden_size=_HIDDEN,
    kv_lora_rank=_KV,
    q_lora_rank=_Q,
    qk_rope_head_dim=_KEY,
    qk_nope_head_dim=_NOPE,
    v_head_dim=_VALUE,
    heads=_HEADS,
    layers=_LAYERS,
    dense_layers=_DENSE,
    mla_layers=Fact(_LAYERS.value, _LAYERS.place, "every layer builds the same attention"),
    mtp_layers=Fact(0, _CONFIG.at(33)),
    max_positions=_POSITIONS,
    norms=Norms(
        kv_latent=_LATENT,
        q_latent=NormContract(_Q.value, _LATENT_EPS, "cast_then_gain"),
        block=NormContract(_HIDDEN.value, _CONFIG_EPS.value, "cast_then_gain"),
    ),
    kv=KVContract(
        norm=_LATENT,
        key_width=_KEY.value,
        rope=RopeContract(
            width=_KEY.value,
            theta=_ROTATION.theta.value,
            factor=_ROTATION.factor.value,
            # Both betas are 1: one pair turns at its own frequency, the next at a 32nd of it.
            low=19,
            high=20,
            interpolated="power",
            rounding="each_step",
            layout="half",
            max_positions=_POSITIONS.value,
        ),
        quant=None,
    ),
    rotation=_ROTATION,
    compression=Compression(
        prefix="model.layers.N.self_attn",
        down="kv_a_proj_with_mqa",
        norm="kv_a_layernorm",
        up="kv_b_proj",
        steps=(
            Step(
                "down-projection",
                "self.kv_a_proj_with_mqa(hidden_states)",
                _CODE.at((776, 780)),
            ),
            Step("norm", "self.kv_a_layernorm(compressed_kv)", _CODE.at(782)),
            Step(
                "up-projection",
                "self.kv_b_proj(...)",
                _CODE.at((781, 785)),
                "an engine that caches the latent absorbs this matrix into the query and the "
                "output",
            ),
            Step(
                "rotation",
                "apply_rotary_pos_emb(q_pe, k_pe, cos, sin, position_ids)",
                _CODE.at(801, (339, 371), (322, 327)),
                "the query's rotary features turn in the same call, into the same layout",
            ),
            Step(
                "cache",
                "past_key_value.update(...)",
                _CODE.at((812, 814)),
                "the model's own file keeps every head's key and value instead",
            ),
        ),
        scale=_CODE.at((690, 696)),
    ),
    kv_latent_norm=LatentNorm(
        title="Key–value latent RMSNorm",
        container="transformer blocks",
        counted="MoE blocks",
        path=("Latent attention", "Key–value compression"),
        call=Fact("self.kv_a_layernorm(compressed_kv)", _CODE.at(782)),
        module="kv_a_layernorm",
        class_name="DeepseekV3RMSNorm",
        input="c^{KV}",
        output=r"\hat c^{KV}",
        gain=r"\gamma_{KV}",
        positions=1,
        arithmetic=_CODE.at((104, 108)),
        eps=_CODE.at(95, 675),
        eps_config=_CONFIG_EPS,
        gain_dtype=Fact(
            "bfloat16",
            _CONFIG.at(64),
            "the dtype the model is loaded in, and the checkpoint's own",
        ),
        tensors_match=True,
        code=_CODE.at((94, 111), (662, 688), (776, 789)),
        sources=(
            Source(
                "rmsnorm",
                "Direct evidence",
                "RMSNorm holds one gain for each feature, and its arithmetic is float32.",
                _CODE.at((94, 111)),
            ),
            Source(
                "mla-init",
                "Direct evidence",
                "What MLA owns. Query: a down-projection, an RMSNorm, an up-projection. Key and "
                "value: a joint down-projection, from which the shared rotary key comes as well, "
                "an RMSNorm of the latent, an up-projection. Then a projection for the output.",
                _CODE.at((662, 688)),
            ),
            Source(
                "mla-kv",
                "Direct evidence",
                "Two things leave the joint down-projection: the key–value latent, and one rotary "
                "key which all heads share. Once normalised, the latent is up-projected to every "
                "head's content keys and values.",
                _CODE.at((776, 789)),
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
            # half of hidden / heads, 112: a base class's table, which the rotation doesn't use
            frequencies=56,
        ),
        experts=Experts(
            routed=_EXPERTS.value,
            active=_ACTIVE.value,
            shared=_SHARED.value,
            width=_EXPERT_WIDTH.value,
        ),
        storage=Storage(format="fp8_block", block=(_TILE.value, _TILE.value)),
    ),
    published=Published(
        tensors=139644,
        bytes=1029173256720,
        digest="52ae0793dc4ab8484b98f197b36b658e4d65b6ddc0068791924fe35ba513a554",
        shapes=True,
        source="two public tables of the headers of its 61 files, which agree",
    ),
)
