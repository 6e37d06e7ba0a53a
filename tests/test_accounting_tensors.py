"""Every tensor of a checkpoint: names, shapes and dtypes of what was published, one by one."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import tracemalloc
from collections.abc import Iterator

import pytest
from helpers import check_python
from published import K3_INDEX, needs_shared
from whole_models import (
    BF16,
    E4M3,
    FP32,
    U8,
    V2_LITE,
    V3,
    Row,
    size_of,
    small,
    table,
)

from latentkv import models
from latentkv.accounting import Tensor, digest, tensors
from latentkv.models.architecture import Storage

K2, K3, V32 = models.names()

# Kimi K3's published index, by pattern. "layers." stands behind "language_model.model.".
K3_LAYERS = {
    "input_layernorm.weight": Row(93, (7168,), BF16),
    "post_attention_layernorm.weight": Row(93, (7168,), BF16),
    "self_attention_res_norm.weight": Row(93, (7168,), BF16),
    "self_attention_res_proj.weight": Row(93, (1, 7168), BF16),
    "mlp_res_norm.weight": Row(93, (7168,), BF16),
    "mlp_res_proj.weight": Row(93, (1, 7168), BF16),
    "self_attn.g_proj.weight": Row(93, (12288, 7168), BF16),
    "self_attn.o_proj.weight": Row(93, (7168, 12288), BF16),
    "self_attn.q_proj.weight": Row(69, (12288, 7168), BF16),
    "self_attn.k_proj.weight": Row(69, (12288, 7168), BF16),
    "self_attn.v_proj.weight": Row(69, (12288, 7168), BF16),
    "self_attn.q_conv1d.weight": Row(69, (12288, 1, 4), FP32),
    "self_attn.k_conv1d.weight": Row(69, (12288, 1, 4), FP32),
    "self_attn.v_conv1d.weight": Row(69, (12288, 1, 4), FP32),
    "self_attn.A_log": Row(69, (128,), FP32),
    "self_attn.dt_bias": Row(69, (12288,), FP32),
    "self_attn.o_norm.weight": Row(69, (128,), FP32),
    "self_attn.f_a_proj.weight": Row(69, (128, 7168), BF16),
    "self_attn.f_b_proj.weight": Row(69, (12288, 128), BF16),
    "self_attn.b_proj.weight": Row(69, (96, 7168), BF16),
    "self_attn.q_a_proj.weight": Row(24, (1536, 7168), BF16),
    "self_attn.q_a_layernorm.weight": Row(24, (1536,), BF16),
    "self_attn.q_b_proj.weight": Row(24, (18432, 1536), BF16),
    "self_attn.kv_a_proj_with_mqa.weight": Row(24, (576, 7168), BF16),
    "self_attn.kv_a_layernorm.weight": Row(24, (512,), BF16),
    "self_attn.kv_b_proj.weight": Row(24, (24576, 512), BF16),
    "mlp.gate_proj.weight": Row(1, (33792, 7168), BF16),
    "mlp.up_proj.weight": Row(1, (33792, 7168), BF16),
    "mlp.down_proj.weight": Row(1, (7168, 33792), BF16),
    "block_sparse_moe.gate.weight": Row(92, (896, 7168), BF16),
    "block_sparse_moe.gate.e_score_correction_bias": Row(92, (896,), FP32),
    "block_sparse_moe.routed_expert_down_proj.weight": Row(92, (3584, 7168), BF16),
    "block_sparse_moe.routed_expert_up_proj.weight": Row(92, (7168, 3584), BF16),
    "block_sparse_moe.routed_expert_norm.weight": Row(92, (3584,), BF16),
    "block_sparse_moe.shared_experts.gate_proj.weight": Row(92, (6144, 7168), BF16),
    "block_sparse_moe.shared_experts.up_proj.weight": Row(92, (6144, 7168), BF16),
    "block_sparse_moe.shared_experts.down_proj.weight": Row(92, (7168, 6144), BF16),
    "block_sparse_moe.experts.N.w1.weight_packed": Row(92 * 896, (3072, 1792), U8),
    "block_sparse_moe.experts.N.w1.weight_scale": Row(92 * 896, (3072, 112), U8),
    "block_sparse_moe.experts.N.w3.weight_packed": Row(92 * 896, (3072, 1792), U8),
    "block_sparse_moe.experts.N.w3.weight_scale": Row(92 * 896, (3072, 112), U8),
    "block_sparse_moe.experts.N.w2.weight_packed": Row(92 * 896, (3584, 1536), U8),
    "block_sparse_moe.experts.N.w2.weight_scale": Row(92 * 896, (3584, 96), U8),
}
K3_TABLE = {
    "language_model.lm_head.weight": Row(1, (163840, 7168), BF16),
    "language_model.model.embed_tokens.weight": Row(1, (163840, 7168), BF16),
    "language_model.model.norm.weight": Row(1, (7168,), BF16),
    "language_model.model.output_attn_res_norm.weight": Row(1, (7168,), BF16),
    "language_model.model.output_attn_res_proj.weight": Row(1, (1, 7168), BF16),
    **{f"language_model.model.layers.N.{name}": row for name, row in K3_LAYERS.items()},
    "mm_projector.proj.0.weight": Row(1, (4096, 4096), BF16),
    "mm_projector.proj.2.weight": Row(1, (7168, 4096), BF16),
    "mm_projector.post_norm.weight": Row(1, (7168,), BF16),
    "vision_tower.encoder.blocks.N.wqkv.weight": Row(27, (4608, 1024), BF16),
    "vision_tower.encoder.blocks.N.wo.weight": Row(27, (1024, 1536), BF16),
    "vision_tower.encoder.blocks.N.mlp.fc0.weight": Row(27, (4096, 1024), BF16),
    "vision_tower.encoder.blocks.N.mlp.fc1.weight": Row(27, (1024, 4096), BF16),
    "vision_tower.encoder.blocks.N.norm0.weight": Row(27, (1024,), BF16),
    "vision_tower.encoder.blocks.N.norm1.weight": Row(27, (1024,), BF16),
    "vision_tower.encoder.final_layernorm.weight": Row(1, (1024,), BF16),
    "vision_tower.patch_embed.pos_emb.weight": Row(1, (64, 64, 1024), BF16),
    "vision_tower.patch_embed.proj.weight": Row(1, (1024, 3, 14, 14), BF16),
}


def scaled(*rows: tuple[str, int, tuple[int, int], tuple[int, int]]) -> Iterator[tuple[str, Row]]:
    """A module's weight in e4m3, and its scales, written out in both shapes."""
    for module, count, shape, scales in rows:
        yield f"{module}.weight", Row(count, shape, E4M3)
        yield f"{module}.weight_scale_inv", Row(count, scales, FP32)


def deepseek(
    heads: int, layers: int, dense: int, experts: int, vocabulary: int, gain: str = BF16
) -> dict[str, Row]:
    """The checkpoint of DeepSeek-V3, R1 and Kimi K2: the same names and widths."""
    moe, latent, one = layers - dense, "model.layers.N.self_attn", "model.layers.N.mlp"
    up, out, routed = 256 * heads, 128 * heads, moe * experts
    norms = {
        f"{latent}.q_a_layernorm": 1536,
        f"{latent}.kv_a_layernorm": 512,
        "model.layers.N.input_layernorm": 7168,
        "model.layers.N.post_attention_layernorm": 7168,
    }
    return {
        "model.embed_tokens.weight": Row(1, (vocabulary, 7168), BF16),
        "lm_head.weight": Row(1, (vocabulary, 7168), BF16),
        "model.norm.weight": Row(1, (7168,), gain),
        **{f"{name}.weight": Row(layers, (width,), gain) for name, width in norms.items()},
        f"{one}.gate.weight": Row(moe, (experts, 7168), BF16),
        f"{one}.gate.e_score_correction_bias": Row(moe, (experts,), FP32),
        **dict(
            scaled(
                (f"{latent}.q_a_proj", layers, (1536, 7168), (12, 56)),
                (f"{latent}.q_b_proj", layers, (192 * heads, 1536), (3 * heads // 2, 12)),
                (f"{latent}.kv_a_proj_with_mqa", layers, (576, 7168), (5, 56)),
                (f"{latent}.kv_b_proj", layers, (up, 512), (2 * heads, 4)),
                (f"{latent}.o_proj", layers, (7168, out), (56, heads)),
                (f"{one}.gate_proj", dense, (18432, 7168), (144, 56)),
                (f"{one}.up_proj", dense, (18432, 7168), (144, 56)),
                (f"{one}.down_proj", dense, (7168, 18432), (56, 144)),
                (f"{one}.shared_experts.gate_proj", moe, (2048, 7168), (16, 56)),
                (f"{one}.shared_experts.up_proj", moe, (2048, 7168), (16, 56)),
                (f"{one}.shared_experts.down_proj", moe, (7168, 2048), (56, 16)),
                (f"{one}.experts.N.gate_proj", routed, (2048, 7168), (16, 56)),
                (f"{one}.experts.N.up_proj", routed, (2048, 7168), (16, 56)),
                (f"{one}.experts.N.down_proj", routed, (7168, 2048), (56, 16)),
            )
        ),
    }


def mtp(gain: str = BF16) -> dict[str, Row]:
    """Layer 61, beside the block that it has as others do; eh_proj has no scales."""
    return {
        "model.layers.N.embed_tokens.weight": Row(1, (129280, 7168), BF16),
        "model.layers.N.enorm.weight": Row(1, (7168,), gain),
        "model.layers.N.hnorm.weight": Row(1, (7168,), gain),
        "model.layers.N.eh_proj.weight": Row(1, (7168, 14336), BF16),
        "model.layers.N.shared_head.norm.weight": Row(1, (7168,), gain),
        "model.layers.N.shared_head.head.weight": Row(1, (129280, 7168), BF16),
    }


INDEXER = {
    **dict(
        scaled(
            ("model.layers.N.self_attn.indexer.wq_b", 62, (8192, 1536), (64, 12)),
            ("model.layers.N.self_attn.indexer.wk", 62, (128, 7168), (1, 56)),
        )
    ),
    "model.layers.N.self_attn.indexer.k_norm.weight": Row(62, (128,), FP32),
    "model.layers.N.self_attn.indexer.k_norm.bias": Row(62, (128,), FP32),
    "model.layers.N.self_attn.indexer.weights_proj.weight": Row(62, (64, 7168), BF16),
}
K2_TABLE = deepseek(heads=64, layers=61, dense=1, experts=384, vocabulary=163840) | {
    # half of 7168 // 64, as if the keys were that wide: stored, not learned, not used
    "model.layers.N.self_attn.rotary_emb.inv_freq": Row(61, (56,), BF16),
}
V3_SIZES = {"heads": 128, "layers": 62, "dense": 3, "experts": 256, "vocabulary": 129280}
V3_TABLE = deepseek(**V3_SIZES) | mtp()
# V3.2's gains are in fp32; of V3.2-Exp's no more than the number of values is known.
V32_TABLE = deepseek(**V3_SIZES, gain=FP32) | mtp(gain=FP32) | INDEXER


@pytest.mark.parametrize(
    ("model", "wanted", "tensors_in_all", "bytes_in_all"),
    [
        (K3, K3_TABLE, 497_220, 1_560_860_324_864),
        (K2, K2_TABLE, 139_644, 1_029_173_256_720),
        (V32, V32_TABLE, 92_425, 689_471_107_200),
        (V3, V3_TABLE, 91_991, 688_574_839_360),
    ],
    ids=[K3, K2, V32, "deepseek-v3"],
)
def test_every_pattern_of_the_checkpoint(model, wanted, tensors_in_all, bytes_in_all):
    found = table(model)
    assert {name: found.rows.get(name) for name in wanted} == wanted
    assert set(found.rows) == set(wanted)
    assert found.tensors == sum(row.count for row in wanted.values()) == tensors_in_all
    assert found.bytes == size_of(wanted) == bytes_in_all


@pytest.mark.parametrize("model", [K2, K3])
def test_names_and_size_are_those_that_were_published(model):
    published, found = models.get(model).published, table(model)
    assert (found.tensors, found.bytes) == (published.tensors, published.bytes)
    assert found.digest == published.digest


def test_deepseek_v32_has_as_many_values_as_the_hub_says():
    # 685,396,921,376 with the scales, whatever their dtypes
    values = sum(row.count * math.prod(row.shape) for row in table(V32).rows.values())
    assert values == 685_396_921_376
    assert sum(table(V32).parameters.values()) == 685_355_329_792


@needs_shared
def test_the_published_index_itself_has_these_names_and_this_size():
    with gzip.open(K3_INDEX, "rt", encoding="utf-8") as opened:
        index = json.load(opened)
    names, published = index["weight_map"], models.get(K3).published
    assert digest(names) == published.digest
    assert len(names) == published.tensors == 497_220
    assert index["metadata"]["total_size"] == published.bytes == 1_560_860_324_864
    assert {one.name for one in tensors(models.get(K3))} == set(names)


def test_deepseek_v3_dtype_by_dtype():
    # What the hub says of deepseek-ai/DeepSeek-V3's files: BF16, F8_E4M3 and F32, values in each.
    found: dict[str, int] = {}
    for row in table(V3).rows.values():
        values = size_of({"": row._replace(dtype=U8)})
        found[row.dtype] = found.get(row.dtype, 0) + values
    assert found == {BF16: 3_918_786_560, E4M3: 680_571_043_840, FP32: 41_555_600}
    assert sum(found.values()) == 684_531_386_000
    assert sum(table(V3).parameters.values()) == 684_489_845_504  # without 41,540,496 scales


@pytest.mark.case("F24-06")
def test_a_model_without_a_query_latent_has_its_one_projection():
    found = table(V2_LITE)  # what the published checkpoint has
    assert (found.tensors, found.bytes) == (5_291, 2 * 15_706_484_224)
    attention = {name.split("self_attn.")[1] for name in found.rows if "self_attn" in name}
    assert attention == {
        f"{name}.weight"
        for name in ("q_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")
    }
    assert found.rows["model.layers.N.self_attn.q_proj.weight"] == Row(27, (3072, 2048), BF16)
    assert {row.dtype for row in found.rows.values()} == {BF16}


def test_only_dtypes_that_nobody_has_read_are_expected_ones():
    gains = ("layernorm.weight", "enorm.weight", "hnorm.weight", ".norm.weight", "_norm.weight")
    for one in tensors(models.get(V32)):
        wanted = one.name.endswith((*gains, "k_norm.bias", "weights_proj.weight"))
        assert one.expected == wanted, one.name
    for name in (K2, K3):
        assert not any(one.expected for one in tensors(models.get(name)))


def test_layers_and_experts_are_numbered_from_0_without_a_gap():
    names = [one.name for one in tensors(models.get(V32))]
    down = "self_attn.kv_a_proj_with_mqa.weight"
    assert {f"model.layers.{layer}.{down}" for layer in range(62)} <= set(names)
    assert {f"model.layers.61.mlp.experts.{n}.up_proj.weight" for n in range(256)} <= set(names)
    dense = {name.split(".")[2] for name in names if name.endswith("mlp.gate_proj.weight")}
    assert dense == {"0", "1", "2"}
    assert not any(".layers.62." in name or ".experts.256." in name for name in names)


def test_the_order_is_the_same_each_time():
    model = models.get(V32)
    first = list(tensors(model))
    assert first == list(tensors(model)) == list(tensors(model.architecture))
    assert first[0] == Tensor(
        "model.embed_tokens.weight", (129280, 7168), BF16, 1_853_358_080, 926_679_040, False
    )


def test_tensors_come_one_by_one():
    given = tensors(models.get(K3))
    assert iter(given) is given
    tracemalloc.start()
    try:
        many = sum(1 for _ in itertools.islice(given, 60_000))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert many == 60_000
    assert peak < 2_000_000  # 60,000 of them in a list are more than 12 MB


def test_the_digest_is_of_sorted_names_with_a_newline_each():
    names = ["b.weight", "a.weight", "a.bias"]
    # printf 'a.bias\na.weight\nb.weight\n' | sha256sum
    known = "ba3fa482d9bc9df1ea8e97f552ba89ba366bfa4310ee8f370ca04c918e10cacf"
    assert digest(names) == digest(iter(reversed(names))) == known
    assert digest(names[:2]) != known and digest([]) != known


def test_nothing_imports_torch():
    check_python(
        "import sys, latentkv.accounting as a, latentkv.models as m\n"
        "next(a.tensors(m.get('kimi-k2'))); a.tree(m.get('kimi-k3'))\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )


def test_a_plain_checkpoint_holds_each_weight_as_it_is():
    every = list(tensors(small(Storage())))
    assert all(one.name.endswith((".weight", ".e_score_correction_bias")) for one in every)
    assert {one.dtype for one in every if one.name.endswith(".weight")} == {BF16}
    assert all(one.parameters == math.prod(one.shape) for one in every)
