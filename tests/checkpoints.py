"""Tiny checkpoints on disk, written by safetensors, and the sizes of the model in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from latentkv.accounting import Tensor, tensors
from latentkv.models.architecture import (
    Architecture,
    DeltaAttention,
    Experts,
    Indexer,
    LatentAttention,
    Storage,
    VisionTower,
)

ATTENTION = LatentAttention(heads=2, q_rank=24, kv_rank=32, nope=8, rope=4, value=6)

TINY = Architecture(
    naming="deepseek",
    prefix="",
    vocabulary=50,
    hidden=40,
    layers=3,
    dense=frozenset({0}),
    dense_width=48,
    attention=ATTENTION,
    experts=Experts(routed=4, active=2, shared=1, width=16),
    mtp_layers=1,
    storage=Storage(),
)

# All that TINY lacks: two kinds of attention, an indexer, an output gate, narrow experts, vision.
KIMI = Architecture(
    naming="kimi",
    prefix="language_model.",
    vocabulary=50,
    hidden=40,
    layers=4,
    dense=frozenset({0}),
    dense_width=48,
    attention=replace(ATTENTION, gate=True, bias=True, indexer=Indexer(heads=2, width=8)),
    experts=Experts(routed=3, active=2, shared=2, width=64, hidden=32, normed=True),
    delta=DeltaAttention(
        layers=frozenset({0, 1}),
        heads=2,
        width=8,
        taps=4,
        decay=(4,),
        full_rank_gate=False,
        fp32=True,
    ),
    vision=VisionTower(
        layers=2,
        hidden=16,
        width=32,
        attention=24,
        patch=2,
        channels=3,
        positions=(4, 4),
        merged=4,
        bias=False,
    ),
    residual_scores=True,
    storage=Storage(format="mxfp4", group=32, quantised="experts"),
)


def blank(tensor: Tensor) -> torch.Tensor:
    """Zeros of its shape and dtype."""
    return torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype))


def write(
    folder: Path,
    held: Iterable[Tensor] | dict[str, torch.Tensor],
    *,
    shards: int = 1,
    config: Any = None,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """A folder with these tensors, in one file or in shards with an index."""
    if not isinstance(held, dict):
        held = {tensor.name: blank(tensor) for tensor in held}
    folder.mkdir(exist_ok=True)
    if shards == 1:
        save_file(held, folder / "model.safetensors")
    else:
        names, places = list(held), {}
        for shard in range(shards):
            file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            part = {name: held[name] for name in names[shard::shards]}
            save_file(part, folder / file)
            places |= dict.fromkeys(part, file)
        if metadata is None:
            metadata = {"total_size": sum(one.nbytes for one in held.values())}
        index = {"metadata": metadata, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def derived(architecture: Architecture) -> dict[str, torch.Tensor]:
    """All of a model's tensors, as its checkpoint would hold them."""
    return {tensor.name: blank(tensor) for tensor in tensors(architecture)}
