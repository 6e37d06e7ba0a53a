"""From a configuration's sizes to a whole model's `Architecture`. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..architecture import (
    Architecture,
    DeltaAttention,
    Experts,
    Indexer,
    LatentAttention,
    Storage,
    Titles,
)
from ..configured import Note
from ..families import TRANSFORMERS, Family
from .keys import Keys
from .vision import vision_tower

_LAYERS = 10_000  # more than any model has, and few enough to be counted one by one
_EXPERTS = 1 << 16
_ROWS = 1 << 31  # of an embedding
_MLP_BIAS = ("deepseek_v2", "minicpm3")  # whose classes take mlp_bias; others have none

# The one published A_log that was counted: 96 heads' values and zeros, 128 together.
_PADDED = {96: 128}


@dataclass(frozen=True)
class Sizes:
    """An architecture without its storage, and what of it is not known."""

    architecture: Architecture
    unknown: tuple[Note, ...]
    notes: tuple[Note, ...]


def latent_attention(family: Family, keys: Keys) -> LatentAttention:
    """The sizes of latent attention, all but the indexer's layers."""
    # DeepSeek's own: 0 for none
    least = 1 if family.model_type else 0
    q_rank: int | None = keys.size_or("q_lora_rank", None, least=least) or None
    heads = keys.size("num_attention_heads", most=1 << 16)
    rope = keys.size("qk_rope_head_dim")
    if rope % 2:
        keys.fail(
            f"{keys.place('qk_rope_head_dim')} is {rope}; an even number is expected, since "
            "features turn in pairs"
        )
    return LatentAttention(
        heads=heads,
        q_rank=q_rank,
        kv_rank=keys.size("kv_lora_rank"),
        nope=keys.size("qk_nope_head_dim"),
        rope=rope,
        value=_value(family, keys, heads),
        bias=keys.flag("attention_bias"),
        gate=is_k3(family, keys) and keys.flag("mla_use_output_gate"),
    )


def _value(family: Family, keys: Keys, heads: int) -> int:
    """v_head_dim; MiniCPM3's class alone, whose published configuration lacks it, computes it."""
    if family.model_type != "minicpm3" or keys.has("v_head_dim"):
        return keys.size("v_head_dim")
    value = keys.size("hidden_size") // heads
    if not value:
        keys.fail(f"{keys.place('v_head_dim')} is missing, and hidden_size // heads is 0")
    keys.note(
        "v_head_dim",
        value,
        "MiniCPM3Config's default, hidden_size // num_attention_heads, "
        f"{TRANSFORMERS} models/minicpm3/configuration_minicpm3.py 125",
    )
    return value


def sizes(family: Family, keys: Keys, attention: LatentAttention, storage: Storage) -> Sizes:
    """The whole model. Raises ConfigError for sizes that contradict each other."""
    layers = keys.size("num_hidden_layers", most=_LAYERS)
    k3 = is_k3(family, keys)
    delta, unknown = _delta(family, keys, layers, k3)
    if delta is not None and len(delta.layers) == layers:
        keys.fail("every layer is a KDA layer: none has a key-value latent")
    experts = _experts(family, keys, k3)
    dense = frozenset(range(layers)) if experts is None else _dense(keys, layers)
    if len(dense) == layers:
        experts = None  # none is built
    nested = family.nested
    vision, notes = None, _notes(family, keys)
    if nested:
        vision, why = vision_tower(keys, family.model_type)
        unknown += (Note("vision", why),) if why else ()
    attention = replace(attention, indexer=_indexer(family, keys, layers, attention))
    tied = family.model_type == "minicpm3"  # MiniCPM3Config's default
    tied = keys.outermost_flag("tie_word_embeddings", tied)
    architecture = Architecture(
        naming="kimi" if family.model_type in ("kimi_k3", "kimi_linear") else "deepseek",
        prefix="language_model." if nested else "",
        vocabulary=keys.size("vocab_size", most=_ROWS),
        hidden=keys.size("hidden_size"),
        layers=layers,
        dense=dense,
        dense_width=keys.size("intermediate_size") if dense else 0,
        attention=attention,
        storage=storage,
        experts=experts,
        delta=delta,
        vision=vision,
        mtp_layers=keys.size_or("num_nextn_predict_layers", 0, least=0, most=64),
        tied=tied,
        mlp_bias=family.model_type in _MLP_BIAS and keys.flag("mlp_bias"),
        residual_scores=k3 and keys.has("attn_res_block_size"),
        titles=_titles(family, k3),
    )
    return Sizes(architecture, unknown, notes)


def is_k3(family: Family, keys: Keys) -> bool:
    """Kimi K3's text configuration has Kimi Linear's model type, and keys of K3's code alone."""
    return family.model_type == "kimi_k3" or (
        family.model_type == "kimi_linear" and keys.has("routed_expert_hidden_size")
    )


def _titles(family: Family, k3: bool) -> Titles:
    if family.model_type == "kimi_linear" and not k3:
        return Titles(container="layers")
    return family.follows.architecture.titles


def _notes(family: Family, keys: Keys) -> tuple[Note, ...]:
    layers = keys.size_or("num_nextn_predict_layers", 0, least=0, most=64)
    if family.model_type and layers:
        return (
            Note(
                "MTP",
                f"{keys.place('num_nextn_predict_layers')} counts layers that published "
                "checkpoints hold after the others, and that transformers neither loads nor saves.",
            ),
        )
    return ()


def _score_bias(family: Family, keys: Keys) -> bool:
    """Whether the router has a correction.

    DeepSeek-V2's has one only where the method asks for it, the others' always; that of DeepSeek's
    own model.py where the hidden size is that of V3 and V3.2.
    """
    if not family.model_type:
        return keys.size("hidden_size") == family.follows.hidden_size.value
    usual = "greedy" if family.model_type == "deepseek_v2" else "noaux_tc"
    return keys.word("topk_method", usual) == "noaux_tc"


def _experts(family: Family, keys: Keys, k3: bool) -> Experts | None:
    if not keys.has("n_routed_experts"):
        if keys.has("moe_intermediate_size") and family.model_type != "minicpm3":
            keys.missing("n_routed_experts")
        return None
    routed = keys.size("n_routed_experts", most=_EXPERTS)
    return Experts(
        routed=routed,
        active=keys.size("num_experts_per_tok", most=routed),
        shared=keys.size_or("n_shared_experts", 0, least=0, most=_EXPERTS),
        width=keys.size("moe_intermediate_size"),
        hidden=keys.size("routed_expert_hidden_size") if k3 else None,
        normed=k3 and keys.flag("latent_moe_use_norm"),
        score_bias=_score_bias(family, keys),
    )


def _dense(keys: Keys, layers: int) -> frozenset[int]:
    """The layers without experts, from a list or from where the experts begin."""
    listed = keys.words("mlp_layer_types", allowed=("dense", "sparse"))
    first = keys.size_or("first_k_dense_replace", None, least=0, most=layers)
    if first is None and listed is None:
        keys.missing("first_k_dense_replace")
    every = keys.size_or("moe_layer_freq", 1, most=_LAYERS)
    if listed is None:
        assert first is not None
        return frozenset(one for one in range(layers) if one < first or one % every)
    if len(listed) != layers:
        keys.fail(
            f"{keys.place('mlp_layer_types')} lists {len(listed):,} layers, and num_hidden_layers "
            f"is {layers:,}"
        )
    dense = frozenset(one for one, kind in enumerate(listed) if kind == "dense")
    if first is not None and dense != frozenset(range(first)):
        keys.fail(
            f"{keys.place('first_k_dense_replace')} is {first}, and "
            f"{keys.place('mlp_layer_types')} lists other layers as dense"
        )
    return dense


def _indexer(family: Family, keys: Keys, layers: int, attention: LatentAttention) -> Indexer | None:
    needed = family.model_type in ("deepseek_v32", "glm_moe_dsa")
    if not needed and (family.model_type or not keys.has("index_n_heads")):
        return None
    if attention.q_rank is None:
        keys.fail("the indexer reads the query's latent, and q_lora_rank is missing")
    return Indexer(
        heads=keys.size("index_n_heads", most=1 << 16),
        width=keys.size("index_head_dim"),
        layers=_indexed(keys, layers) if family.model_type == "glm_moe_dsa" else None,
    )


def _indexed(keys: Keys, layers: int) -> frozenset[int] | None:
    """GLM-5's layers with an indexer of their own; None for all."""
    kinds = keys.words("indexer_types", allowed=("full", "shared"))
    if kinds is None:
        pattern = keys.word("index_topk_pattern")
        if pattern:
            kinds = tuple({"F": "full", "S": "shared"}.get(one, "") for one in pattern)
        else:
            every = keys.size_or("index_topk_freq", 1, most=_LAYERS)
            offset = keys.size_or("index_skip_topk_offset", 2, least=0, most=_LAYERS)
            kinds = tuple(
                "shared" if max(one - offset + 1, 0) % every else "full" for one in range(layers)
            )
    if len(kinds) != layers or "" in kinds:
        keys.fail(
            f"indexer_types or index_topk_pattern must name full (F) or shared (S) for each of "
            f"{layers:,} layers, and has {len(kinds):,} entries"
        )
    full = frozenset(one for one, kind in enumerate(kinds) if kind == "full")
    if 0 not in full:
        keys.fail("the first layer shares an earlier one's indices, and there is none")
    return None if len(full) == layers else full


def _delta(
    family: Family, keys: Keys, layers: int, k3: bool
) -> tuple[DeltaAttention | None, tuple[Note, ...]]:
    if family.model_type not in ("kimi_k3", "kimi_linear"):
        return None, ()
    inner = keys.inside("linear_attn_config")
    # transformers writes the same keys side by side with the others
    flat = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads"}
    taps = "short_conv_kernel_size" if inner else "linear_conv_kernel_dim"
    held = inner or keys

    def size(name: str) -> int:
        return held.size(name if inner else flat[name], most=1 << 16)

    heads = size("num_heads")
    unknown: tuple[Note, ...] = ()
    if not k3:
        decay: tuple[int, ...] = (1, 1, heads, 1)
        unknown = (
            Note(
                "dtypes",
                "those of KDA's convolutions and output norm in the published checkpoint were not "
                "read; that of the other weights is taken.",
            ),
        )
    else:
        decay = (_PADDED.get(heads, heads),)
        if heads not in _PADDED:
            unknown = (
                Note(
                    "A_log",
                    "K3 pads 96 heads to 128 values; how other numbers are padded is not known, "
                    "and no padding is taken.",
                ),
            )
    return DeltaAttention(
        layers=_kda_layers(keys, inner, layers),
        heads=heads,
        width=size("head_dim"),
        taps=held.size(taps, most=1 << 10),
        decay=decay,
        full_rank_gate=bool(inner and inner.flag("use_full_rank_gate")),
        fp32=k3,
    ), unknown


def _kda_layers(keys: Keys, inner: Keys | None, layers: int) -> frozenset[int]:
    """Counted from 0; the lists of linear_attn_config count from 1."""
    kinds = keys.words("layer_types", allowed=("full_attention", "linear_attention"))
    lists = [
        inner.sizes(name, most=layers) if inner else None
        for name in ("kda_layers", "full_attn_layers")
    ]
    if kinds is None and None in lists:
        keys.fail(
            "layer_types, or kda_layers and full_attn_layers of linear_attn_config, must say which "
            "layers have latent attention"
        )
    found = set()
    if inner and lists[0] is not None and lists[1] is not None:
        kda, full = frozenset(lists[0]), frozenset(lists[1])
        both = sorted(kda & full)
        missed = sorted(frozenset(range(1, layers + 1)) - kda - full)
        if both or missed:
            told = f"both hold layer {both[0]}" if both else f"neither holds layer {missed[0]}"
            keys.fail(
                f"{inner.place('kda_layers')} and {inner.place('full_attn_layers')}: {told}; each "
                f"of the layers 1 to {layers:,} belongs in one of them"
            )
        found.add(frozenset(one - 1 for one in kda))
    if kinds is not None:
        if len(kinds) != layers:
            keys.fail(
                f"{keys.place('layer_types')} lists {len(kinds):,} layers, and num_hidden_layers "
                f"is {layers:,}"
            )
        found.add(frozenset(one for one, kind in enumerate(kinds) if kind == "linear_attention"))
    if len(found) > 1:
        keys.fail(f"{keys.place('layer_types')} and linear_attn_config name other KDA layers")
    return found.pop()
