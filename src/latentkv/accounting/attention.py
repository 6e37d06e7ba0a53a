"""The components of attention: latent, with or without an indexer, and Kimi delta. No torch."""

from __future__ import annotations

from ..models.architecture import Architecture, DeltaAttention, Indexer, LatentAttention
from .component import Component, Weight, linear, norm


def latent_attention(model: Architecture, indexed: bool) -> Component:
    shape, hidden, titles = model.attention, model.hidden, model.titles
    head = shape.nope + shape.rope
    query: tuple[Component, ...]
    if shape.q_rank is None:
        query = (linear("Query projection", "q_proj", shape.heads * head, hidden),)
    else:
        query = (
            linear("Query down-projection", "q_a_proj", shape.q_rank, hidden, shape.bias),
            norm("Query latent RMSNorm", "q_a_layernorm", shape.q_rank),
            linear("Query up-projection", "q_b_proj", shape.heads * head, shape.q_rank),
        )
    compression = (
        linear(
            "Key–value down-projection",
            "kv_a_proj_with_mqa",
            shape.kv_rank + shape.rope,
            hidden,
            shape.bias,
        ),
        norm(titles.norm, "kv_a_layernorm", shape.kv_rank),
        linear(
            "Key–value up-projection",
            "kv_b_proj",
            shape.heads * (shape.nope + shape.value),
            shape.kv_rank,
        ),
    )
    out = shape.heads * shape.value
    parts = [
        Component("Query", "", parts=query),
        Component(titles.compression, "", parts=compression),
    ]
    if indexed and shape.indexer is not None:
        parts.append(_indexer(shape, shape.indexer, hidden))
    if shape.gate:
        parts.append(linear("Output gate", "g_proj", out, hidden))
    parts.append(linear("Output projection", "o_proj", hidden, out, shape.bias))
    if shape.frequencies:
        table = Weight("inv_freq", (shape.frequencies,), learned=False)
        parts.append(Component("Rotary frequencies", "rotary_emb", (table,)))
    return Component(titles.attention, "self_attn", parts=tuple(parts))


def _indexer(attention: LatentAttention, indexer: Indexer, hidden: int) -> Component:
    # dtypes of k_norm and weights_proj: nobody is known to have read them in the checkpoint
    gains = tuple(
        Weight(name, (indexer.width,), dtype="float32", expected=True)
        for name in ("weight", "bias")
    )
    return Component(
        "Indexer",
        "indexer",
        parts=(
            linear(
                "Index query projection",
                "wq_b",
                indexer.heads * indexer.width,
                attention.q_rank or hidden,
            ),
            linear("Index key projection", "wk", indexer.width, hidden),
            Component("Index key LayerNorm", "k_norm", gains),
            Component(
                "Index head weights",
                "weights_proj",
                (Weight("weight", (indexer.heads, hidden), expected=True),),
            ),
        ),
    )


def delta_attention(shape: DeltaAttention, hidden: int) -> Component:
    inner = shape.heads * shape.width
    dtype = "float32" if shape.fp32 else ""
    unused = shape.decay[-1] - shape.heads if len(shape.decay) == 1 else 0
    convolutions = tuple(
        Component(
            f"{title} convolution",
            f"{name}_conv1d",
            (Weight("weight", (inner, 1, shape.taps), dtype=dtype),),
        )
        for title, name in (("Query", "q"), ("Key", "k"), ("Value", "v"))
    )
    projections = tuple(
        linear(f"{title} projection", f"{name}_proj", inner, hidden)
        for title, name in (("Query", "q"), ("Key", "k"), ("Value", "v"))
    )
    decay = (
        Component(
            "Decay rate", "", (Weight("A_log", shape.decay, dtype="float32", unused=unused),)
        ),
        Component("Decay bias", "", (Weight("dt_bias", (inner,), dtype="float32"),)),
        linear("Decay down-projection", "f_a_proj", shape.width, hidden),
        linear("Decay up-projection", "f_b_proj", inner, shape.width),
    )
    if shape.full_rank_gate:
        gate: tuple[Component, ...] = (linear("Output gate", "g_proj", inner, hidden),)
    else:
        gate = (
            linear("Output gate down-projection", "g_a_proj", shape.width, hidden),
            linear("Output gate up-projection", "g_b_proj", inner, shape.width),
        )
    gain = Component("Output norm", "o_norm", (Weight("weight", (shape.width,), dtype=dtype),))
    return Component(
        "Kimi delta attention",
        "self_attn",
        parts=(
            Component("Projections", "", parts=projections),
            Component("Convolutions", "", parts=convolutions),
            Component("Decay", "", parts=decay),
            linear("Write strength", "b_proj", shape.heads, hidden),
            Component("Output gate", "", parts=gate) if len(gate) > 1 else gate[0],
            gain,
            linear("Output projection", "o_proj", hidden, inner),
        ),
    )
