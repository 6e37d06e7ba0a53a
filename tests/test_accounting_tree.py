"""Whole models counted: totals known by heart, and a tree that adds up at every node."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest
from whole_models import V2_LITE, V3, pattern, table, titled, totals, whole

from latentkv import describe, models
from latentkv.accounting import Node, tree

K2, K3, V32 = models.names()
every_model = pytest.mark.parametrize(
    "model", [K2, K3, V32, V3, V2_LITE], ids=[K2, K3, V32, "deepseek-v3", "deepseek-v2-lite"]
)


@pytest.mark.parametrize(
    ("model", "stored", "others"),
    [
        (K2, 1_026_408_232_448, {}),
        (V32, 685_355_329_792, {"language model": 671_877_944_064}),
        (
            K3,
            2_779_931_837_184,
            {"without padding": 2_779_931_834_976, "language model": 2_779_484_478_208},
        ),
        (V3, 684_489_845_504, {"language model": 671_026_419_200}),
        (V2_LITE, 15_706_484_224, {}),
    ],
    ids=[K2, V32, K3, "deepseek-v3", "deepseek-v2-lite"],
)
def test_totals_to_the_last_parameter(model, stored, others):
    found = totals(model)
    assert found.pop("stored") == stored == whole(model).root.total
    assert {name: found.pop(name) for name in others} == others
    assert set(found) == {"active", "active, with embedding"}


def own(node: Node) -> int:
    """Learned values of a node's own weights: rotary frequencies are stored and not learned."""
    if node.name.endswith("rotary_emb"):
        assert node.shapes == ((56,),) and node.total == 0
        return 0
    return sum(map(math.prod, node.shapes))


@every_model
def test_every_node_adds_up(model):
    root = whole(model).root
    for node in root.walk():
        assert node.total == node.per_instance * node.instances, node.name
        assert node.share == node.total / root.total, node.name
        each = own(node)
        for child in node.children:
            times, rest = divmod(child.instances, node.instances)
            assert rest == 0 < times, child.name
            each += child.per_instance * times
        assert node.per_instance == each, node.name
        assert 0 <= node.active <= node.total, node.name
        assert node.active >= sum(child.active for child in node.children), node.name
    assert (root.instances, root.share) == (1, 1.0)


@every_model
def test_the_shares_of_all_weights_are_the_whole(model):
    root = whole(model).root
    totals_of_own = [own(node) * node.instances for node in root.walk()]
    assert sum(totals_of_own) == root.total
    # of some hundred shares below 1 each is rounded once, and so is each sum
    assert sum(one / root.total for one in totals_of_own) == pytest.approx(1, abs=1e-13)
    # some ten children, each share rounded once, by 2^-54 of 1 at most, and each sum by 2^-53
    assert sum(child.share for child in root.children) == pytest.approx(1, abs=1e-15)


@every_model
def test_tree_and_tensors_hold_the_same_parameters(model):
    by_node: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    for node in whole(model).root.walk():
        if own(node):
            by_node[pattern(node.name)] += own(node) * node.instances
            weights[pattern(node.name)] += len(node.shapes) * node.instances
    by_tensor: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for name, parameters in table(model).parameters.items():
        if parameters:
            by_tensor[name.rpartition(".")[0]] += parameters
            held[name.rpartition(".")[0]] += table(model).rows[name].count
    assert by_node == by_tensor
    assert weights == held  # as many weights as tensors that hold some
    assert sum(by_tensor.values()) == whole(model).root.total


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        (K2, {"Dense blocks": 1, "MoE blocks": 60}),
        (V32, {"Dense blocks": 3, "MoE blocks": 58}),
        (K3, {"KDA layers, dense": 1, "KDA layers": 68, "MLA layers": 24}),
    ],
)
def test_the_kinds_of_layers_are_all_the_layers(model, kinds):
    (layers,) = titled(model, "Layers" if model == K3 else "Transformer blocks")
    assert {node.title: node.instances for node in layers.children} == kinds
    facts = models.get(model)
    assert sum(kinds.values()) == facts.layers.value
    assert (
        sum(n for title, n in kinds.items() if "dense" in title.lower()) == facts.dense_layers.value
    )


@pytest.mark.parametrize(("name", "instances"), [(K2, 60), (K3, 24), (V32, 58)])
def test_the_latent_norm_is_counted_as_on_its_page(name, instances):
    model = models.get(name)
    page = describe.page(model)
    known = page.parameters
    assert (known.per_instance, known.instances) == (512, instances)
    nodes = titled(name, page.title)
    assert {node.per_instance for node in nodes} == {known.per_instance}
    assert {node.name for node in nodes} == {f"{model.compression.prefix}.{model.compression.norm}"}
    # the page counts the blocks named in its path, and the model without the MTP layer
    (blocks,) = titled(name, page.path[1].partition(" ")[2])
    counted = [node for node in blocks.walk() if node.title == page.title]
    assert [node.instances for node in counted] == [known.instances]
    assert [node.total for node in counted] == [known.total]
    extra = model.mtp_layers.value
    assert sum(node.instances for node in nodes) == known.whole_model_instances + extra
    assert sum(node.total for node in nodes) == known.whole_model_total + extra * 512


@pytest.mark.parametrize("name", [K2, K3, V32])
def test_the_compression_is_counted_as_on_its_page(name):
    model = models.get(name)
    page = describe.page(model).compression
    extra = model.mtp_layers.value
    for weight in page.weights:
        row, known = table(name).rows[weight.tensor], weight.parameters
        assert row.shape == weight.shape
        assert row.count == known.whole_model_instances + extra
        nodes = [n for n in whole(name).root.walk() if f"{n.name}.weight" == weight.tensor]
        assert {node.shapes for node in nodes} == {(weight.shape,)}
        assert {node.per_instance for node in nodes} == {known.per_instance}
        assert sum(n.total for n in nodes) == known.whole_model_total + extra * known.per_instance
    groups = titled(name, model.architecture.titles.compression)
    assert {node.per_instance for node in groups} == {page.together.per_instance}
    assert sum(n.instances for n in groups) == page.together.whole_model_instances + extra


def latent_attention(heads: int, extra: int = 0) -> int:
    query = 1536 * 7168 + 1536 + heads * (128 + 64) * 1536
    latent = (512 + 64) * 7168 + 512 + heads * (128 + 128) * 512
    return query + latent + 7168 * heads * 128 + extra


def by_hand_k2() -> int:
    expert = 3 * 7168 * 2048
    moe = 384 * 7168 + 384 + (8 + 1) * expert
    layers = 61 * (latent_attention(64) + 2 * 7168)
    return layers + 3 * 7168 * 18432 + 60 * moe + 7168 + 163840 * 7168


def by_hand_v32() -> int:
    indexer = 64 * 128 * 1536 + 128 * 7168 + 2 * 128 + 64 * 7168
    expert = 3 * 7168 * 2048
    moe = 256 * 7168 + 256 + (8 + 1) * expert
    layers = 61 * (latent_attention(128, indexer) + 2 * 7168)
    return layers + 3 * 3 * 7168 * 18432 + 58 * moe + 7168 + 129280 * 7168


def by_hand_k3() -> int:
    inner = 96 * 128
    # query, key, value, gate and output; convolutions of four taps; decay; write strength; norm
    delta = 5 * inner * 7168 + 3 * inner * 4
    delta += 96 + inner + 128 * 7168 + inner * 128 + 96 * 7168 + 128  # A_log: 96 values in use
    gated = latent_attention(96, 7168 * inner)
    expert = 3 * 3584 * 3072
    moe = 896 * 7168 + 896 + 2 * 7168 * 3584 + 3584 + 3 * 7168 * 6144 + 16 * expert
    norms = 4 * 7168 + 2 * 7168  # two of each kind, and two rows of residual scores
    layers = 69 * delta + 24 * gated + 93 * norms
    return layers + 3 * 7168 * 33792 + 92 * moe + 3 * 7168 + 163840 * 7168


def by_hand_v2_lite() -> int:
    attention = 16 * 192 * 2048 + 576 * 2048 + 512 + 16 * 256 * 512 + 2048 * 16 * 128
    expert = 3 * 2048 * 1408
    moe = 64 * 2048 + (6 + 2) * expert
    layers = 27 * (attention + 2 * 2048)
    return layers + 3 * 2048 * 10944 + 26 * moe + 2048 + 102400 * 2048


@pytest.mark.parametrize(
    ("model", "by_hand", "embedding"),
    [
        (K2, by_hand_k2, 163840 * 7168),
        (V32, by_hand_v32, 129280 * 7168),
        (K3, by_hand_k3, 163840 * 7168),
        (V2_LITE, by_hand_v2_lite, 102400 * 2048),
    ],
    ids=[K2, V32, K3, "deepseek-v2-lite"],
)
def test_active_parameters_by_hand(model, by_hand, embedding):
    found = totals(model)
    assert found["active"] == whole(model).root.active == by_hand()
    assert found["active, with embedding"] == found["active"] + embedding


def test_what_a_token_does_not_run_is_not_active():
    for title in ("Vision tower", "Vision projector"):
        (node,) = titled(K3, title)
        assert {part.active for part in node.walk()} == {0} and node.total > 0
    (mtp,) = titled(V32, "MTP layer")
    assert {part.active for part in mtp.walk()} == {0} and mtp.total == 13_477_385_728
    for model in (K2, K3, V32):
        (embedding, *rest) = titled(model, "Embedding")
        assert embedding.active == 0 and len(rest) == (model == V32)
        for experts in titled(model, "Routed experts"):
            routed, active = {K2: (384, 8), K3: (896, 16), V32: (256, 8)}[model]
            if experts.active:  # not those of the MTP layer
                assert experts.active * routed == experts.total * active


def test_parts_have_the_names_of_the_checkpoint():
    names = {node.name for node in whole(K3).root.walk()}
    assert "language_model.model.layers.N.block_sparse_moe.experts.N.w1" in names
    assert "language_model.model.layers.N.self_attn.q_conv1d" in names
    assert {"vision_tower.encoder.blocks.N.wqkv", "mm_projector.proj.2"} <= names
    titles = {node.title for node in whole(V32).root.walk()}
    assert {"Embedding", "Router", "Shared expert", "Indexer", "MTP layer", "Head"} <= titles


def test_sizes_alone_make_the_same_tree():
    for name in models.names():
        model = models.get(name)
        bare, named = tree(model.architecture), whole(name)
        assert (bare.root.children, bare.totals) == (named.root.children, named.totals)
        assert named.root.title == model.display


def test_a_tied_head_is_counted_once():
    tied = totals(dataclasses.replace(V2_LITE, tied=True))
    assert totals(V2_LITE)["stored"] - tied["stored"] == 102400 * 2048
