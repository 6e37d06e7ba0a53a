"""A whole model's components, from its sizes; tree and tensors both read them. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..models.architecture import Architecture, Experts, Naming, VisionTower
from .attention import delta_attention, latent_attention
from .component import Component, Weight, linear, norm, plain


class _Kind(NamedTuple):
    """What tells a layer from others: KDA or latent attention, without experts, with an indexer."""

    delta: bool
    dense: bool
    indexed: bool


def components(model: Architecture) -> tuple[Component, ...]:
    """The whole model, in the order in which it runs."""
    inner = f"{model.prefix}model"
    parts = [
        Component(
            "Embedding, also the head" if model.tied else "Embedding",
            f"{inner}.embed_tokens",
            (Weight("weight", (model.vocabulary, model.hidden)),),
            kind="" if model.tied else "lookup",
        ),
        Component(model.titles.container.capitalize(), f"{inner}.layers", parts=_blocks(model)),
    ]
    if model.residual_scores:
        parts += _residual("Output residual", f"{inner}.output_attn_res", model.hidden)
    parts.append(norm("Final norm", f"{inner}.norm", model.hidden))
    if not model.tied:
        parts.append(
            Component(
                "Head",
                f"{model.prefix}lm_head",
                (Weight("weight", (model.vocabulary, model.hidden)),),
            )
        )
    if model.mtp_layers:
        parts.append(_prediction(model, f"{inner}.layers"))
    if model.vision is not None:
        parts += _vision(model.vision, model.hidden)
    return tuple(parts)


def _blocks(model: Architecture) -> tuple[Component, ...]:
    """Layers of one kind together, in the order in which their first ones come."""
    kinds: dict[_Kind, list[int]] = {}
    indexed = _indexed(model)
    delta = model.delta.layers if model.delta else frozenset()
    for layer in range(model.layers):
        kind = _Kind(delta=layer in delta, dense=layer in model.dense, indexed=layer in indexed)
        kinds.setdefault(kind, []).append(layer)
    return tuple(
        _block(model, _title(model, kind, len(kinds)), numbers, kind)
        for kind, numbers in kinds.items()
    )


def _title(model: Architecture, kind: _Kind, kinds: int) -> str:
    layers = "MoE blocks" if not kind.dense else "Dense blocks"
    if model.experts is None:
        layers = "Blocks"
    if model.delta is not None:
        layers = f"{'KDA' if kind.delta else 'MLA'} layers{', dense' if kind.dense else ''}"
    apart = model.attention.indexer is not None and kinds > 2 and not kind.indexed
    return f"{layers}, indices shared" if apart else layers


def _indexed(model: Architecture) -> frozenset[int]:
    indexer = model.attention.indexer
    if indexer is None:
        return frozenset()
    return frozenset(range(model.layers)) if indexer.layers is None else indexer.layers


def _block(model: Architecture, title: str, numbers: Sequence[int], kind: _Kind) -> Component:
    hidden = model.hidden
    parts = [norm("Input norm", "input_layernorm", hidden)]
    if kind.delta and model.delta is not None:
        parts.append(delta_attention(model.delta, hidden))
    else:
        parts.append(latent_attention(model, kind.indexed))
    parts.append(norm("Post-attention norm", "post_attention_layernorm", hidden))
    if kind.dense or model.experts is None:
        parts.append(
            _feed_forward("Dense feed-forward", "mlp", hidden, model.dense_width, model.mlp_bias)
        )
    else:
        parts.append(_moe(model, model.experts))
    if model.residual_scores:
        parts += _residual("Attention residual", "self_attention_res", hidden)
        parts += _residual("Feed-forward residual", "mlp_res", hidden)
    return Component(title, "", parts=tuple(parts), numbers=tuple(numbers))


def _moe(model: Architecture, experts: Experts) -> Component:
    hidden = model.hidden
    narrow = experts.hidden or hidden
    router = [Weight("weight", (experts.routed, hidden))]
    if experts.score_bias:
        router.append(Weight("e_score_correction_bias", (experts.routed,), dtype="float32"))
    parts = [Component("Router", "gate", tuple(router))]
    if experts.hidden is not None:
        parts.append(plain("Routed down-projection", "routed_expert_down_proj", narrow, hidden))
    parts.append(
        Component(
            "Routed experts",
            "experts",
            parts=_matrices(model.naming, narrow, experts.width, "experts"),
            numbers=tuple(range(experts.routed)),
            active=experts.active,
        )
    )
    if experts.hidden is not None:
        if experts.normed:
            parts.append(norm("Routed norm", "routed_expert_norm", narrow))
        parts.append(plain("Routed up-projection", "routed_expert_up_proj", hidden, narrow))
    if experts.shared:
        parts.append(
            _feed_forward(
                "Shared experts" if experts.shared > 1 else "Shared expert",
                "shared_experts",
                hidden,
                experts.shared * experts.width,
                model.mlp_bias,
            )
        )
    name = "mlp" if model.naming == "deepseek" else "block_sparse_moe"
    return Component("Mixture of experts", name, parts=tuple(parts))


# gate, up, down
_MATRICES: dict[Naming, tuple[str, str, str]] = {
    "deepseek": ("gate_proj", "up_proj", "down_proj"),
    "kimi": ("w1", "w3", "w2"),
}


def _matrices(
    naming: Naming, hidden: int, width: int, quantised: str, bias: bool = False
) -> tuple[Component, ...]:
    gate, up, down = _MATRICES[naming]
    return (
        linear("Gate projection", gate, width, hidden, bias, quantised),
        linear("Up-projection", up, width, hidden, bias, quantised),
        linear("Down-projection", down, hidden, width, bias, quantised),
    )


def _feed_forward(title: str, name: str, hidden: int, width: int, bias: bool) -> Component:
    return Component(title, name, parts=_matrices("deepseek", hidden, width, "linear", bias))


def _residual(title: str, name: str, hidden: int) -> list[Component]:
    return [
        norm(f"{title} norm", f"{name}_norm", hidden),
        plain(f"{title} scores", f"{name}_proj", 1, hidden),
    ]


def _prediction(model: Architecture, layers: str) -> Component:
    """The layers for multi-token prediction: a block, an embedding and a head each."""
    hidden, table = model.hidden, (Weight("weight", (model.vocabulary, model.hidden)),)
    numbers = tuple(range(model.layers, model.layers + model.mtp_layers))
    kind = _Kind(
        delta=False, dense=model.experts is None, indexed=model.attention.indexer is not None
    )
    block = _block(model, "", (), kind)
    parts = (
        Component("Embedding", "embed_tokens", table, kind="lookup"),
        norm("Embedding norm", "enorm", hidden),
        norm("Hidden state norm", "hnorm", hidden),
        plain("Joint projection", "eh_proj", hidden, 2 * hidden),
        Component("Block", "", parts=block.parts),
        norm("Final norm", "shared_head.norm", hidden),
        Component("Head", "shared_head.head", table),
    )
    title = "MTP layer" if model.mtp_layers == 1 else "MTP layers"
    return Component(title, layers, parts=parts, numbers=numbers, kind="apart")


def _vision(tower: VisionTower, hidden: int) -> list[Component]:
    inner, bias = tower.hidden, tower.bias
    block = (
        norm("Attention norm", "norm0", inner, bias),
        plain("Query, key and value", "wqkv", 3 * tower.attention, inner, bias),
        plain("Output projection", "wo", inner, tower.attention, bias),
        norm("Feed-forward norm", "norm1", inner, bias),
        plain("Up-projection", "mlp.fc0", tower.width, inner, bias),
        plain("Down-projection", "mlp.fc1", inner, tower.width, bias),
    )
    patch = [Weight("weight", (inner, tower.channels, tower.patch, tower.patch))]
    if bias:
        patch.append(Weight("bias", (inner,)))
    table = Weight("weight", (*tower.positions, inner))
    vision = Component(
        "Vision tower",
        "vision_tower",
        parts=(
            Component("Patch embedding", "patch_embed.proj", tuple(patch)),
            Component("Position table", "patch_embed.pos_emb", (table,)),
            Component(
                "Vision blocks",
                "encoder.blocks",
                parts=block,
                numbers=tuple(range(tower.layers)),
            ),
            norm("Final norm", "encoder.final_layernorm", inner, bias),
        ),
        kind="apart",
    )
    wide = tower.merged * inner
    projections = (
        plain("First projection", "proj.0", wide, wide, bias),
        plain("Second projection", "proj.2", hidden, wide, bias),
    )
    # with biases a norm comes before the projections, without them one comes after
    gain = norm("Norm", "pre_norm", inner, True) if bias else norm("Norm", "post_norm", hidden)
    parts = (gain, *projections) if bias else (*projections, gain)
    return [vision, Component("Vision projector", "mm_projector", parts=parts, kind="apart")]
