"""DeepSeek-V3.2-Exp's key-value path, component by component: what their pages say of its code."""

from __future__ import annotations

from dataclasses import replace

from .deepseek_v32 import DEEPSEEK_V32
from .spec import ComponentFacts, Fact, File, PathFacts, Source

_NORM = DEEPSEEK_V32.kv_latent_norm
_CODE = _NORM.code.file
_KERNEL = File(_CODE.repository, "inference/kernel.py", _CODE.revision)
_RMSNORM, _INIT, _KV = _NORM.sources

_LINEAR = Source(
    "fp8-linear",
    "Direct evidence",
    "Where the weights are e4m3, the input is quantised in groups as well, and an fp8 matrix "
    "product takes both with their scales.",
    _CODE.at((159, 163)),
)
_GEMM = Source(
    "fp8-gemm",
    "Direct evidence",
    "The fp8 matrix product sums blocks of 128 in float32, each multiplied by the scales of both "
    "sides.",
    _KERNEL.at((115, 197)),
)
_ROTARY = Source(
    "rotary",
    "Direct evidence",
    "Neighbouring features are taken as complex numbers in float32, multiplied by the table's, and "
    "cast back once; their order stays.",
    _CODE.at((405, 425)),
)
_TABLE = Source(
    "rotary-table",
    "Direct evidence",
    "YaRN's frequencies, applied where the configured length exceeds the original one: divided by "
    "the factor, left as they are, or a ramp between the two; cos and sin in float32.",
    _CODE.at((324, 402)),
)
_QUANTISED = Source(
    "latent-quantisation",
    "Direct evidence",
    "Normalised, the latent goes to fp8 and back, as the comment says, in place of the fp8 cache "
    "of a deployment. The rotated key does not.",
    _CODE.at((569, 571)),
)
_ACT_QUANT = Source(
    "act-quant",
    "Direct evidence",
    "Of each group of 128, the largest magnitude, 1e-4 at least, gives the scale; with a scale "
    "format it is rounded up to a power of two. What is divided is clamped to ±448 and cast.",
    _KERNEL.at((37, 84), (87, 111)),
)
_FORMAT = Source(
    "scale-format",
    "Direct evidence",
    "The configuration sets a scale format: ue8m0, powers of two.",
    DEEPSEEK_V32.hidden_size.place.file.at(22),
)
_CACHE = Source(
    "cache-write",
    "Direct evidence",
    "Two buffers without heads take the latent and the rotated key.",
    _CODE.at((541, 542), (572, 573)),
)
_PREFILL = Source(
    "up-prefill",
    "Direct evidence",
    "In prefill the latent, as it comes back from fp8, goes through the up-projection; each head's "
    "features are split into content key and value.",
    _CODE.at((574, 579)),
)
_DECODE = Source(
    "up-decode",
    "Direct evidence",
    "In decoding the up-projection's key rows are multiplied into the query, and its value rows "
    "into the output.",
    _CODE.at((591, 597), (605, 606)),
)
_QUERY = Source(
    "query",
    "Direct evidence",
    "The norm of the query's latent, which its up-projection and the indexer both read.",
    _CODE.at((560, 561)),
)

PAGES = PathFacts(
    query_norm=replace(
        _NORM,
        title="Query latent RMSNorm",
        path=(_NORM.path[0], "Query"),
        call=Fact("self.q_norm(self.wq_a(x))", _CODE.at(560)),
        module="q_norm",
        input="c^{Q}",
        output=r"\hat c^{Q}",
        gain=r"\gamma_{Q}",
        eps=_CODE.at(280, 527),
        code=_CODE.at((280, 306), (523, 539), (560, 561)),
        sources=(_RMSNORM, _INIT, _QUERY),
    ),
    components=(
        ComponentFacts(
            "down-projection",
            _CODE.at((159, 163), 529, (565, 566)),
            (_INIT, _KV, _LINEAR, _GEMM, _FORMAT),
            arithmetic=_CODE.at((159, 163)),
            told="The input goes to e4m3 in groups of 128, each with a power-of-two scale; its "
            "products with the e4m3 weights are summed in float32, and the sum is rounded to "
            "bfloat16. In which order it runs is the kernel's, so no contract pins its bits.",
            roundings=2,
        ),
        ComponentFacts(
            "split",
            _CODE.at(566),
            (_KV,),
            call=Fact("torch.split(kv, ...)", _CODE.at(566)),
            arithmetic=_CODE.at(566),
        ),
        ComponentFacts("rotation", _CODE.at((324, 402), (405, 425), 568), (_KV, _ROTARY, _TABLE)),
        ComponentFacts("quantisation", _CODE.at((569, 571)), (_QUANTISED, _ACT_QUANT, _FORMAT)),
        ComponentFacts(
            "up-projection",
            _CODE.at((159, 163), 531, (574, 579), (591, 597), (605, 606)),
            (_INIT, _PREFILL, _DECODE, _LINEAR, _GEMM),
            arithmetic=_CODE.at((159, 163)),
            told="The input is e4m3 codes times power-of-two scales, so going to e4m3 again "
            "changes nothing; its products with the e4m3 weights are summed in float32, and "
            "the sum is rounded to bfloat16. In which order it runs is the kernel's, so no "
            "contract pins its bits.",
            roundings=1,
        ),
        ComponentFacts("cache", _CODE.at((541, 542), (572, 573)), (_QUANTISED, _CACHE)),
    ),
)
