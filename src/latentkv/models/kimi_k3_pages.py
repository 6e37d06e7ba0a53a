"""Kimi K3's key-value path, component by component: what their pages say of its code."""

from __future__ import annotations

from dataclasses import replace

from .kimi_k3 import KIMI_K3
from .spec import ComponentFacts, Fact, PathFacts, Source

_NORM = KIMI_K3.kv_latent_norm
_CODE = _NORM.code.file
_RMSNORM, _INIT = _NORM.sources

_DOWN = Source(
    "kv-down",
    "Direct evidence",
    "The joint down-projection's output is split into the key–value latent and the shared key.",
    _CODE.at((426, 428)),
)
_UP = Source(
    "kv-up",
    "Direct evidence",
    "The normalised latent goes through the up-projection; its result is viewed as heads, and "
    "each head's features are split into content key and value.",
    _CODE.at((430, 433)),
)
_UNROTATED = Source(
    "no-rotation",
    "Direct evidence",
    "The shared key is expanded over the heads and put behind their content keys; between the "
    "split and the cache nothing turns it.",
    _CODE.at((435, 440)),
)
_NOPE = Source(
    "nope",
    "Direct evidence",
    "The constructor asserts that latent attention uses no positions, and creates no rotary "
    "embedding.",
    _CODE.at(396, 403),
)
_CACHE = Source(
    "cache-update",
    "Direct evidence",
    "What the model's own file hands to its cache are every head's key and value.",
    _CODE.at((442, 444)),
)
_QUERY = Source(
    "query",
    "Direct evidence",
    "The query goes through its down-projection, the norm of its latent and its up-projection.",
    _CODE.at(419),
)

PAGES = PathFacts(
    query_norm=replace(
        _NORM,
        title="Query latent RMSNorm",
        path=(_NORM.path[0], "Query"),
        call=Fact("self.q_a_layernorm(self.q_a_proj(hidden_states))", _CODE.at(419)),
        module="q_a_layernorm",
        input="c^{Q}",
        output=r"\hat c^{Q}",
        gain=r"\gamma_{Q}",
        eps=_CODE.at(227, 368),
        code=_CODE.at((226, 236), (340, 403), 419),
        sources=(_RMSNORM, _INIT, _QUERY),
    ),
    components=(
        ComponentFacts("down-projection", _CODE.at((378, 382), (426, 428)), (_INIT, _DOWN)),
        ComponentFacts(
            "split",
            _CODE.at((427, 428), 435),
            (_DOWN,),
            call=Fact("torch.split(compressed_kv, ...)", _CODE.at(427)),
            arithmetic=_CODE.at((427, 428)),
        ),
        ComponentFacts(
            "rotation",
            _CODE.at(396, 403, (435, 440)),
            (_NOPE, _UNROTATED),
            call=Fact("self.rotary_emb = None", _CODE.at(403)),
        ),
        ComponentFacts("up-projection", _CODE.at((384, 389), (430, 433)), (_INIT, _UP)),
        ComponentFacts("cache", _CODE.at((442, 444)), (_DOWN, _CACHE)),
    ),
)
