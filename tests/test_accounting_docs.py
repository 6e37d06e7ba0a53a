"""docs/accounting.md: its blocks run, and each of its numbers is what the package says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from whole_models import K2, THINKING, V2_LITE, table, titled, totals

from latentkv import models
from latentkv.models.architecture import Architecture

PAGE = (Path(__file__).parents[1] / "docs/accounting.md").read_text(encoding="utf-8")
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
NAMES = models.names()


def rows(header: str) -> dict[str, list[str]]:
    """The table under this header: first column, and the others."""
    found = {}
    for line in PROSE.split(header)[1].split("\n\n")[0].splitlines()[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[name] = cells
    return found


def numbers(text: str) -> set[int]:
    """Those with a thousands separator."""
    return {int(one.replace(",", "")) for one in re.findall(r"\b\d{1,3}(?:,\d{3})+\b", text)}


def test_its_blocks_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, object] = {}
    for block in blocks:  # one after the other, as it says
        exec(compile(block, "docs/accounting.md", "exec"), scope)
    assert len(blocks) == 3 and not scope["report"].matches


def test_its_totals_are_the_trees():
    told = rows("| `tree.totals` | Kimi K2 | Kimi K3 | DeepSeek-V3.2-Exp |")
    assert [models.get(name).display for name in NAMES] == [
        "Kimi K2",
        "Kimi K3",
        "DeepSeek-V3.2-Exp",
    ]
    for at, name in enumerate(NAMES):
        written = {total: cells[at] for total, cells in told.items() if cells[at]}
        assert written == {total: f"{n:,}" for total, n in totals(name).items()}
    for total in told:
        assert f"- **{total}**" in PROSE


def test_its_tensors_and_bytes_are_those_derived():
    told = rows("| | tensors | bytes | from |")
    for name in NAMES:
        tensors, size, origin = told[models.get(name).display]
        assert (tensors, size) == (f"{table(name).tensors:,}", f"{table(name).bytes:,}")
        assert (origin == "derived alone") == (models.get(name).published is None)


def test_its_other_large_numbers_are_derived_too():
    lite = totals(V2_LITE)
    attention = dataclasses.replace(K2.attention, frequencies=128)
    thinking = table(dataclasses.replace(THINKING, attention=attention))
    experts = titled("kimi-k3", "Routed experts")
    known = {
        lite["active"],
        lite["active, with embedding"],
        sum(node.instances for node in experts),
        experts[0].children[0].per_instance,
        k3.architecture.experts.hidden,
        k3.architecture.hidden,
        thinking.parameters[INT4_EXPERTS] // thinking.rows[INT4_EXPERTS].count,
        thinking.bytes,
    }
    tables = PROSE.split("| `tree.totals`")[1].split("\n\n")[0]
    tables += PROSE.split("| | tensors | bytes")[1].split("\n\n")[0]
    assert numbers(PROSE) - numbers(tables) == known


K3_EXPERTS = "language_model.model.layers.N.block_sparse_moe.experts.N.w1.weight_packed"
INT4_EXPERTS = "model.layers.N.mlp.experts.N.gate_proj.weight_packed"
SCALES = "model.layers.N.self_attn.kv_a_proj_with_mqa.weight_scale_inv"
k2, k3, v32 = map(models.get, NAMES)


def kinds() -> tuple[int, ...]:
    """Kimi K3's layers with KDA and dense, with KDA, with MLA."""
    (node,) = titled(k3.name, "Layers")
    return tuple(child.instances for child in node.children)


def shape(model: str | Architecture, name: str) -> tuple[int, ...]:
    return table(model).rows[name].shape


SENTENCES = {
    "Kimi K3's {} layers are {} with KDA and a dense feed-forward part, {} with KDA and experts, "
    "{} with MLA": lambda: (sum(kinds()), *kinds()),
    "one of the {} with KDA": lambda: (sum(kinds()[:2]),),
    "here {} × {} = 82,432": lambda: (k3.moe_layers, k3.architecture.experts.routed),
    "Kimi K2 counts {} instances and that of DeepSeek-V3.2-Exp {},": lambda: (
        k2.instances,
        v32.instances,
    ),
    "dense blocks as well: {} of each": lambda: {k2.mla_layers.value, v32.mla_layers.value},
    "each A_log as {} values for {} heads": lambda: (
        *k3.architecture.delta.decay,
        k3.architecture.delta.heads,
    ),
    "({} of {}, {} of {}, {} of {})": lambda: [
        number
        for model in (k2, k3, v32)
        for number in (model.architecture.experts.active, model.architecture.experts.routed)
    ],
    "a tile of {} × {} |": lambda: k2.architecture.storage.block,
    "one a group of {} |": lambda: (k3.architecture.storage.group,),
    "The {} rows of `kv_a_proj_with_mqa` have {} × {} scales": lambda: (
        k2.down_width,
        *shape(k2.name, SCALES),
    ),
    "covers {} rows, those of the shared key": lambda: (k2.qk_rope_head_dim.value,),
    "[{}, {}] bytes hold {} × {}": lambda: (
        *shape(k3.name, K3_EXPERTS),
        *titled(k3.name, "Routed experts")[0].children[0].shapes[0],
    ),
    "Kimi-K2-Thinking's [{}, {}] words": lambda: shape(THINKING, INT4_EXPERTS),
    "Each layer holds {} rotary frequencies": lambda: (k2.architecture.attention.frequencies,),
}


@pytest.mark.parametrize("said", SENTENCES)
def test_its_small_numbers_are_derived(said):
    wanted = re.escape(said).replace(r"\{\}", r"(\d+)")
    found = re.search(wanted, " ".join(PROSE.split()))
    assert found, "the page no longer says so"
    assert [int(one) for one in found.groups()] == list(SENTENCES[said]())
