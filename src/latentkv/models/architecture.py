"""A whole model as sizes: what is built, how often, and how its checkpoint stores it. No torch.

Plain numbers: of the three models taken from their facts, of any other from its configuration.
`accounting` makes the tree of components and the list of tensors from them. Layers are counted
from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Naming = Literal["deepseek", "kimi"]
Format = Literal["plain", "fp8_block", "mxfp4", "int"]


@dataclass(frozen=True)
class Storage:
    """How a checkpoint stores weights.

    Arguments:
        dtype: of what is not quantised.
        format: of what is: ``"plain"`` for nothing; ``"fp8_block"``, float8_e4m3fn with one float32
            scale a tile; ``"mxfp4"``, two 4-bit codes a byte with one e8m0 scale a group;
            ``"int"``, integers of ``bits`` bits in int32 words, with one scale a group and the
            unpacked shape beside them.
        block: rows and columns of a tile, of fp8_block.
        group: values that share a scale, of mxfp4 and int.
        bits: of an integer.
        quantised: ``"linear"``, each linear layer of the blocks, or ``"experts"``, those of the
            routed experts alone.
        ignored: modules that are left as they are: names, or "re:" and a regular expression.
        norm_dtype: of the RMSNorms' gains, where it is another, and was not read but is likely.
    """

    dtype: str = "bfloat16"
    format: Format = "plain"
    block: tuple[int, int] = (128, 128)
    group: int = 32
    bits: int = 4
    quantised: Literal["linear", "experts"] = "linear"
    ignored: tuple[str, ...] = ()
    norm_dtype: str = ""


@dataclass(frozen=True)
class Indexer:
    """Scores all earlier tokens, of which sparse attention reads the best.

    ``layers`` are those that have one; None for every layer with latent attention.
    """

    heads: int
    width: int
    layers: frozenset[int] | None = None


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention.

    ``q_rank`` is None where one matrix gives the query; ``bias`` is that of both
    down-projections and of the output, ``gate`` an output gate of full rank. ``frequencies`` are
    those that the checkpoint stores with each layer's rotation, though they are not learned.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    bias: bool = False
    gate: bool = False
    indexer: Indexer | None = None
    frequencies: int = 0


@dataclass(frozen=True)
class DeltaAttention:
    """Kimi delta attention (KDA), which keeps a state instead of a cache.

    ``decay`` is the stored shape of A_log, whose first ``heads`` values are in use;
    ``full_rank_gate`` is False where the output gate has a bottleneck of ``width``;
    ``fp32`` says whether convolutions, A_log, dt_bias and the output's norm are stored as such.
    """

    layers: frozenset[int]
    heads: int
    width: int
    taps: int
    decay: tuple[int, ...]
    full_rank_gate: bool
    fp32: bool


@dataclass(frozen=True)
class Experts:
    """A mixture of experts.

    ``hidden`` is the width of what the routed experts read and write; None for the model's own;
    ``normed`` says whether what they write is normalised before it is widened again.
    ``score_bias`` is the correction that is added to the scores to choose experts.
    """

    routed: int
    active: int
    shared: int
    width: int
    hidden: int | None = None
    normed: bool = False
    score_bias: bool = True


@dataclass(frozen=True)
class VisionTower:
    """A vision transformer and the projector into the language model.

    ``attention`` is the width of the queries together; ``patch`` the sides of a patch,
    ``positions`` those of the learned position table; ``merged`` is how many patches become one
    token. With ``bias``, each linear layer and norm has one, and the projector's norm comes first.
    """

    layers: int
    hidden: int
    width: int
    attention: int
    patch: int
    channels: int
    positions: tuple[int, int]
    merged: int
    bias: bool


@dataclass(frozen=True)
class Titles:
    """What the model calls its parts."""

    container: str = "transformer blocks"
    attention: str = "Latent attention"
    compression: str = "Key–value compression"
    norm: str = "Key–value latent RMSNorm"


@dataclass(frozen=True)
class Architecture:
    """A whole model.

    Arguments:
        naming: how the checkpoint names the experts: "deepseek", ``mlp.experts.0.gate_proj``, or
            "kimi", ``block_sparse_moe.experts.0.w1``.
        prefix: what stands before the language model's names.
        vocabulary, hidden: rows and columns of the embedding.
        layers: of the language model, without those for multi-token prediction.
        dense: the layers without experts.
        dense_width: the width of their feed-forward part.
        tied: whether the head is the embedding.
        residual_scores: whether each layer weighs the outputs of earlier ones (Kimi K3).
        mtp_layers: layers for multi-token prediction, each with an embedding and a head.
    """

    naming: Naming
    prefix: str
    vocabulary: int
    hidden: int
    layers: int
    dense: frozenset[int]
    dense_width: int
    attention: LatentAttention
    storage: Storage
    experts: Experts | None = None
    delta: DeltaAttention | None = None
    vision: VisionTower | None = None
    mtp_layers: int = 0
    tied: bool = False
    mlp_bias: bool = False
    residual_scores: bool = False
    titles: Titles = Titles()


@dataclass(frozen=True)
class Published:
    """What is known of the published checkpoint itself.

    Arguments:
        tensors: how many names its index has.
        bytes: the index's total size.
        digest: SHA-256 of the sorted names, each followed by a newline. Where only tables by
            pattern were read, Kimi K2's, the names are the derived ones.
        shapes: whether shapes and dtypes were read, which an index doesn't have.
        source: where it was read.
    """

    tensors: int
    bytes: int
    digest: str
    shapes: bool
    source: str
