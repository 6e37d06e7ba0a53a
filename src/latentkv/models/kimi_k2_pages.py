"""Kimi K2's key-value path, component by component: what their pages say of its code."""

from __future__ import annotations

from dataclasses import replace

from .kimi_k2 import KIMI_K2
from .spec import ComponentFacts, Fact, PathFacts, Source

_NORM = KIMI_K2.kv_latent_norm
_CODE = _NORM.code.file
_RMSNORM, _INIT, _KV = _NORM.sources

_UP = Source(
    "kv-up",
    "Direct evidence",
    "The normalised latent goes through the up-projection; its result is viewed as heads, and "
    "each head's features are split into content key and value.",
    _CODE.at((781, 789)),
)
_ROTARY = Source(
    "rotary",
    "Direct evidence",
    "Query and key are first rearranged, the even features before the odd ones, and then turned "
    "by halves: two products and a sum in their own dtype. Nothing puts the features back.",
    _CODE.at((339, 371)),
)
_TABLE = Source(
    "rotary-table",
    "Direct evidence",
    "YaRN's frequencies: each pair's own one, the same divided by the factor, and a ramp between "
    "the two. Their cos and sin are cached in the model's dtype.",
    _CODE.at((262, 327)),
)
_ROTATED = Source(
    "rotation",
    "Direct evidence",
    "One call rotates the query's rotary features and the shared key.",
    _CODE.at((799, 801)),
)
_CACHE = Source(
    "cache-update",
    "Direct evidence",
    "What the model's own file hands to its cache are every head's key and value.",
    _CODE.at((812, 814)),
)
_QUERY = Source(
    "query",
    "Direct evidence",
    "The query goes through its down-projection, the norm of its latent and its up-projection.",
    _CODE.at(770),
)

PAGES = PathFacts(
    query_norm=replace(
        _NORM,
        title="Query latent RMSNorm",
        path=(_NORM.path[0], "Query"),
        call=Fact("self.q_a_layernorm(self.q_a_proj(hidden_states))", _CODE.at(770)),
        module="q_a_layernorm",
        input="c^{Q}",
        output=r"\hat c^{Q}",
        gain=r"\gamma_{Q}",
        positions=None,
        eps=_CODE.at(95, 665),
        code=_CODE.at((94, 111), (662, 688), 770),
        sources=(_RMSNORM, _INIT, _QUERY),
    ),
    components=(
        ComponentFacts("down-projection", _CODE.at((670, 674), (776, 780)), (_INIT, _KV)),
        ComponentFacts(
            "split",
            _CODE.at((777, 780)),
            (_KV,),
            call=Fact("torch.split(compressed_kv, ...)", _CODE.at(777)),
            arithmetic=_CODE.at((777, 780)),
        ),
        ComponentFacts(
            "rotation",
            _CODE.at((262, 327), (339, 371), (799, 801)),
            (_ROTATED, _ROTARY, _TABLE),
        ),
        ComponentFacts(
            "up-projection",
            _CODE.at((676, 681), (781, 789)),
            (_INIT, _UP),
            call=Fact("self.kv_b_proj(self.kv_a_layernorm(compressed_kv))", _CODE.at(782)),
        ),
        ComponentFacts("cache", _CODE.at((812, 814)), (_KV, _CACHE)),
    ),
)
