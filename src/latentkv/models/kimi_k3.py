"""Kimi K3 (moonshotai/Kimi-K3), the language model.

The code's lines are those of modeling_kimi_linear.py at the pinned revision; sizes are those of
the published config.json, read in a public copy.
"""

from __future__ import annotations

from ..contracts import KVContract, NormContract
from .architecture import (
    Architecture,
    DeltaAttention,
    Experts,
    LatentAttention,
    Published,
    Storage,
    Titles,
    VisionTower,
)
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

_NOPE = Fact(128, _CONFIG.at(200))
_VALUE = Fact(128, _CONFIG.at(266))
_HEADS = Fact(96, _CONFIG.at(181))
_LAYERS = Fact(93, _CONFIG.at(187))
_DENSE = Fact(1, _CONFIG.at(46))
_VOCABULARY = Fact(163840, _CONFIG.at(267))
_DENSE_WIDTH = Fact(33792, _CONFIG.at(56))
_EXPERT_WIDTH = Fact(3072, _CONFIG.at(176))
_EXPERT_HIDDEN = Fact(3584, _CONFIG.at(246), "half the hidden size, and not a packed 7168")
_EXPERTS = Fact(896, _CONFIG.at(185))
_ACTIVE = Fact(16, _CONFIG.at(186))
_SHARED = Fact(2, _CONFIG.at(191))
_DELTA_HEADS = Fact(96, _CONFIG.at(166))
_DELTA_WIDTH = Fact(128, _CONFIG.at(94))
_TAPS = Fact(4, _CONFIG.at(167))
_GROUP = Fact(32, _CONFIG.at(215), "4-bit codes that share a scale")
_VISION_LAYERS = Fact(27, _CONFIG.at(298))
_VISION_HIDDEN = Fact(1024, _CONFIG.at(295))
_VISION_WIDTH = Fact(4096, _CONFIG.at(296))
_VISION_ATTENTION = Fact(1536, _CONFIG.at(293))
_PATCH = Fact(14, _CONFIG.at(288))
_POSITIONS = Fact(64, _CONFIG.at(274, 276), "rows and columns of the position table")
_MERGED = Fact(4, _CONFIG.at((278, 281)), "patches, two by two, that become one token")

_MLA_LAYERS = frozenset((*range(3, 92, 4), 92))  # counted from 0; the last two adjoin

KIMI_K3 = Model(
    name="kimi-k3",
    display="Kimi K3",
    repository="moonshotai/Kimi-K3",
    hidden_size=_HIDDEN,
    kv_lora_rank=_KV,
    q_lora_rank=_Q,
    qk_rope_head_dim=_KEY,
    qk_nope_head_dim=_NOPE,
    v_head_dim=_VALUE,
    heads=_HEADS,
    layers=_LAYERS,
    dense_layers=_DENSE,
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
    sizes=(
        ("vocabulary", _VOCABULARY),
        ("dense feed-forward width", _DENSE_WIDTH),
        ("expert width", _EXPERT_WIDTH),
        ("hidden width of the routed experts", _EXPERT_HIDDEN),
        ("routed experts", _EXPERTS),
        ("active experts", _ACTIVE),
        ("shared experts", _SHARED),
        ("KDA heads", _DELTA_HEADS),
        ("KDA head width", _DELTA_WIDTH),
        ("KDA convolution taps", _TAPS),
        ("group of the mxfp4 weights", _GROUP),
        ("vision blocks", _VISION_LAYERS),
        ("vision hidden size", _VISION_HIDDEN),
        ("vision feed-forward width", _VISION_WIDTH),
        ("vision attention width", _VISION_ATTENTION),
        ("vision patch", _PATCH),
        ("vision position table", _POSITIONS),
        ("merged patches", _MERGED),
    ),
    architecture=Architecture(
        naming="kimi",
        prefix="language_model.",
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
            gate=True,
        ),
        delta=DeltaAttention(
            layers=frozenset(range(_LAYERS.value)) - _MLA_LAYERS,
            heads=_DELTA_HEADS.value,
            width=_DELTA_WIDTH.value,
            taps=_TAPS.value,
            # 96 heads' values and zeros: the index's total size has no other solution
            decay=(128,),
            full_rank_gate=True,
            fp32=True,
        ),
        experts=Experts(
            routed=_EXPERTS.value,
            active=_ACTIVE.value,
            shared=_SHARED.value,
            width=_EXPERT_WIDTH.value,
            hidden=_EXPERT_HIDDEN.value,
            normed=True,
        ),
        vision=VisionTower(
            layers=_VISION_LAYERS.value,
            hidden=_VISION_HIDDEN.value,
            width=_VISION_WIDTH.value,
            attention=_VISION_ATTENTION.value,
            patch=_PATCH.value,
            channels=3,
            positions=(_POSITIONS.value, _POSITIONS.value),
            merged=_MERGED.value,
            bias=False,
        ),
        residual_scores=True,
        # The configuration would pack every linear layer that it doesn't list, among them the
        # routed experts' outer projections: the index's total size says that they are bfloat16.
        storage=Storage(format="mxfp4", group=_GROUP.value, quantised="experts"),
        titles=Titles(
            container="layers",
            attention="Gated MLA",
            compression="Key and value heads",
            norm="Latent RMSNorm",
        ),
    ),
    published=Published(
        tensors=497220,
        bytes=1560860324864,
        digest="6de6475ef6fac789044688d2b1f127d50cfc3adb17983756c2393c495a535ec4",
        shapes=False,
        source="PipeNetwork/kimi-k3-mlx@20a4fb101ce8 reference/model.safetensors.index.json",
    ),
)
