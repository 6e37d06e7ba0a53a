"""Whole models as tests count them: a table of tensors by pattern, and models of other sizes."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from latentkv import models
from latentkv.accounting import Node, Tree, digest, tensors, tree
from latentkv.models.architecture import (
    Architecture,
    Experts,
    LatentAttention,
    Storage,
)

BF16, FP32, E4M3, U8, I32, I64 = (
    "bfloat16",
    "float32",
    "float8_e4m3fn",
    "uint8",
    "int32",
    "int64",
)
BYTES = {BF16: 2, FP32: 4, E4M3: 1, U8: 1, I32: 4, I64: 8}

# The sizes of deepseek-ai/DeepSeek-V3's config.json, which R1 shares.
V3 = Architecture(
    naming="deepseek",
    prefix="",
    vocabulary=129280,
    hidden=7168,
    layers=61,
    dense=frozenset({0, 1, 2}),
    dense_width=18432,
    attention=LatentAttention(heads=128, q_rank=1536, kv_rank=512, nope=128, rope=64, value=128),
    experts=Experts(routed=256, active=8, shared=1, width=2048),
    mtp_layers=1,
    storage=Storage(format="fp8_block", block=(128, 128)),
)
# Those of deepseek-ai/DeepSeek-V2-Lite: q_lora_rank is null, nothing is quantised.
V2_LITE = Architecture(
    naming="deepseek",
    prefix="",
    vocabulary=102400,
    hidden=2048,
    layers=27,
    dense=frozenset({0}),
    dense_width=10944,
    attention=LatentAttention(heads=16, q_rank=None, kv_rank=512, nope=128, rope=64, value=128),
    experts=Experts(routed=64, active=6, shared=2, width=1408, score_bias=False),
    storage=Storage(),
)
K2 = models.get("kimi-k2").architecture
# moonshotai/Kimi-K2-Thinking has the same sizes, and routed experts of 4 bits.
THINKING = dataclasses.replace(
    K2, storage=Storage(format="int", bits=4, group=32, quantised="experts")
)


def small(storage: Storage, prefix: str = "", routed: int = 12, hidden: int = 64) -> Architecture:
    """Two layers, the second with as many experts as it takes to have numbers of two digits."""
    return Architecture(
        naming="deepseek",
        prefix=prefix,
        vocabulary=40,
        hidden=hidden,
        layers=2,
        dense=frozenset({0}),
        dense_width=96,
        attention=LatentAttention(heads=2, q_rank=16, kv_rank=32, nope=8, rope=4, value=8),
        experts=Experts(routed=routed, active=2, shared=1, width=32),
        storage=storage,
    )


class Row(NamedTuple):
    """As many tensors of one name but for their numbers, all of one shape and dtype."""

    count: int
    shape: tuple[int, ...]
    dtype: str


class Table(NamedTuple):
    """A model's tensors, added up; ``parameters`` is by pattern."""

    rows: dict[str, Row]
    parameters: dict[str, int]
    tensors: int
    bytes: int
    digest: str


def pattern(name: str) -> str:
    """The name with N for the number of a layer, an expert or a block."""
    return _NUMBERED.sub("s.N.", name)


_NUMBERED = re.compile(r"s\.\d+\.")  # not of the projector's two projections, proj.0 and proj.2


@functools.cache
def table(model: str | Architecture) -> Table:
    """Of a model's name, or of sizes. Kimi K3's 497,220 tensors are looked at once a session."""
    source = models.get(model) if isinstance(model, str) else model
    names: list[str] = []
    kinds: Counter[tuple[str, tuple]] = Counter()
    for one in tensors(source):
        names.append(one.name)
        kinds[pattern(one.name), one[1:]] += 1
    assert len(set(names)) == len(names), "a name occurs twice"
    rows: dict[str, Row] = {}
    parameters: dict[str, int] = {}
    for (name, (shape, dtype, size, held, _)), count in kinds.items():
        assert name not in rows, f"{name} has two shapes or dtypes"
        assert size == math.prod(shape) * BYTES[dtype], name
        rows[name] = Row(count, shape, dtype)
        parameters[name] = count * held
    return Table(rows, parameters, len(names), size_of(rows), digest(names))


def size_of(rows: Mapping[str, Row]) -> int:
    return sum(row.count * math.prod(row.shape) * BYTES[row.dtype] for row in rows.values())


@functools.cache
def whole(model: str | Architecture) -> Tree:
    return tree(models.get(model) if isinstance(model, str) else model)


def titled(model: str | Architecture, title: str) -> list[Node]:
    """All nodes with this title."""
    found = [node for node in whole(model).root.walk() if node.title == title]
    assert found, f"no node is called {title}"
    return found


def totals(model: str | Architecture) -> dict[str, int]:
    return {one.name: one.parameters for one in whole(model).totals}
