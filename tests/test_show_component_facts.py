"""Pages of single components follow their facts: lines, contracts, and what a wrong one does."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import seeds

from latentkv import describe, models
from latentkv.contracts import LatentQuant, NormContract
from latentkv.describe_components import path_facts
from latentkv.models import spec
from latentkv.models.spec import Fact

MODELS = [models.get(name) for name in models.names()]


def ranges(place: spec.Place) -> set[tuple[spec.File, int]]:
    return {
        (place.file, number)
        for lines in place.lines
        for number in range(lines.first, lines.last + 1)
    }


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_lines_lie_within_the_passages_and_meet_those_of_the_steps(model):
    every = path_facts(model)
    for facts in every.components:
        code = ranges(facts.code)
        assert {file for file, _ in code} == {model.kv_latent_norm.code.file}
        steps = [step for step in model.compression.steps if step.name == facts.component]
        for step in steps:  # each line of the step, or the head of its range
            assert ranges(step.place) & code
        calls = [facts.call.place] if facts.call else [step.place for step in steps]
        for call in calls:
            assert (call.file, call.lines[0].first) in code
        shown = {one for source in facts.sources for one in ranges(source.place)}
        assert code & shown
        firsts = [lines.first for lines in facts.code.lines]
        assert firsts == sorted(firsts)
    query = every.query_norm
    assert ranges(query.call.place) <= ranges(query.code)
    assert ranges(query.arithmetic) <= ranges(query.code)
    # the class's default is the same line, the construction another one of the same passage
    assert query.eps.lines[0] == model.kv_latent_norm.eps.lines[0]
    assert ranges(query.eps) <= ranges(query.code)


def test_rotations_follow_their_contracts():
    k2 = describe.component(models.get("kimi-k2"), "rotation")
    v32 = describe.component(models.get("deepseek-v3.2-exp"), "rotation")
    assert (k2.arithmetic.roundings, v32.arithmetic.roundings) == (5, 1)
    for formula, first, second in (
        (k2.formula, "k^{R}_i", "k^{R}_{i+32}"),
        (v32.formula, "k^{R}_{2i}", "k^{R}_{2i+1}"),
    ):
        assert first + r"&=k_{2i}\cos(p\,\omega_i)-k_{2i+1}\sin(p\,\omega_i)\\" in formula
        assert second + r"&=k_{2i+1}\cos(p\,\omega_i)+k_{2i}\sin(p\,\omega_i)\\" in formula
    assert r"\frac{1}{32\,\theta^{2i/64}}" in k2.formula and r"\theta&=50000" in k2.formula
    assert r"\frac{1/\theta^{2i/64}}{40}" in v32.formula and r"\frac{i-10}{13}" in v32.formula


def test_the_formula_of_the_rotation_is_what_the_definition_computes():
    """In fp64, by the formula's own numbers: pairs, ramp, factor, layout."""
    torch = pytest.importorskip("torch")
    from latentkv.definition.rope import rotary_table, rotate

    for name in ("kimi-k2", "deepseek-v3.2-exp"):
        model = models.get(name)
        formula = describe.component(model, "rotation").formula
        theta = float(re.search(r"\\theta&=(\d+)", formula)[1])
        low, length = map(int, re.search(r"\\frac\{i-(\d+)\}\{(\d+)\}", formula).groups())
        factor = float(re.search(r"(\d+)\\,\\theta|\}\}\{(\d+)\}", formula).expand(r"\1\2"))
        half = "_{i+32}" in formula
        key, position = torch.randn(64, generator=torch.Generator().manual_seed(1)), 777
        wanted = torch.empty(64, dtype=torch.float64)
        for i in range(32):
            r = min(1, max(0, (i - low) / length))
            own = theta ** (-2 * i / 64)
            angle = position * ((1 - r) * own + r * own / factor)
            x, y = key[2 * i].item(), key[2 * i + 1].item()
            first, second = (i, i + 32) if half else (2 * i, 2 * i + 1)
            wanted[first] = x * math.cos(angle) - y * math.sin(angle)
            wanted[second] = y * math.cos(angle) + x * math.sin(angle)
        rope = dataclasses.replace(model.kv.rope, max_positions=position + 1)
        turned = rotate(key, torch.tensor(position), rope, rotary_table(rope))
        # an fp32 angle below 777 is off by its frequency's 2^-24 of it and a rounding of 2^-15,
        # 6e-5 in all, which turns features of at most 3
        torch.testing.assert_close(turned.double(), wanted, rtol=0, atol=2e-4)


def changed(model, **facts):
    return dataclasses.replace(
        model,
        **{name: Fact(value, getattr(model, name).place) for name, value in facts.items()},
    )


def test_another_width_is_refused_alone_and_another_page_with_its_contract():
    k2 = models.get("kimi-k2")
    with pytest.raises(ValueError, match="norms.block.width is 7168, its source says 4096"):
        changed(k2, hidden_size=4096)
    block = dataclasses.replace(k2.norms.block, width=4096)
    other = dataclasses.replace(
        k2,
        hidden_size=Fact(4096, k2.hidden_size.place),
        norms=dataclasses.replace(k2.norms, block=block),
    )
    page = describe.component(other, "down-projection")
    assert [row.parameters for row in page.accounting] == [512 * 4096, 64 * 4096]
    assert page.parameters.per_instance == 576 * 4096 and r"512\times4096" in page.formula
    assert page.input.shape[-1].size == 4096 and "hidden size 4,096" in page.sources[-1].claim


def test_another_order_is_another_querys_page_and_another_number_of_heads_another_matrix():
    k2 = models.get("kimi-k2")
    other = dataclasses.replace(
        k2.norms, q_latent=NormContract(k2.q_lora_rank.value, 1e-5, "gain_then_cast")
    )
    page = describe.component(dataclasses.replace(k2, norms=other), "query-norm")
    was = describe.component(k2, "query-norm")
    assert (was.arithmetic.roundings, page.arithmetic.roundings) == (2, 1)
    assert page.arithmetic.sentence != was.arithmetic.sentence and page.eps.config.differs
    assert "10^{-5}" in page.formula
    fewer = describe.component(changed(k2, heads=32), "up-projection")
    assert (
        fewer.parameters.per_instance
        == 32 * 256 * 512
        == sum(row.parameters for row in fewer.accounting)
    )
    assert r"n\le32" in fewer.formula and "heads 32" in fewer.sources[-1].claim


def test_a_changed_quantisation_is_another_page():
    v32 = models.get("deepseek-v3.2-exp")
    quant = LatentQuant(64, "sglang")
    page = describe.component(
        dataclasses.replace(v32, kv=dataclasses.replace(v32.kv, quant=quant)), "quantisation"
    )
    assert "s_g&=a_g/448" in page.formula and "|g|&=64" in page.formula
    assert page.arithmetic.roundings == 2 and "power of two" not in page.arithmetic.sentence
    assert "def _over_448(" in page.code.definition.source
    assert "Each group of 64" in page.summary


def test_facts_without_a_source_or_a_component_are_refused():
    facts = path_facts(models.get("kimi-k2"))
    with pytest.raises(ValueError, match="needs at least one source"):
        dataclasses.replace(facts.components[0], sources=())
    with pytest.raises(LookupError, match="'quantisation'; there are those of down-projection"):
        facts.of("quantisation")


# What the seed pages' excerpts say at lines that these pages cite.
SAID = {
    "kimi-k2": {
        ("query-norm", "eps", 665): "self.q_a_layernorm = DeepseekV3RMSNorm(config.q_lora_rank)",
        ("down-projection", "code", 670): "self.kv_a_proj_with_mqa = nn.Linear(",
        ("up-projection", "code", 676): "self.kv_b_proj = nn.Linear(",
        ("down-projection", "call", 776): "compressed_kv = self.kv_a_proj_with_mqa(hidden_states)",
        ("split", "call", 777): "compressed_kv, k_pe = torch.split(",
        ("up-projection", "call", 782): "self.kv_b_proj(self.kv_a_layernorm(compressed_kv))",
    },
    "kimi-k3": {
        ("query-norm", "eps", 368): "self.q_a_layernorm = KimiRMSNorm(self.q_lora_rank)",
        ("down-projection", "code", 378): "self.kv_a_proj_with_mqa = nn.Linear(",
        ("up-projection", "code", 384): "self.kv_b_proj = nn.Linear(",
        ("rotation", "code", 396): "assert self.use_nope",
        ("rotation", "call", 403): "self.rotary_emb = None",
    },
    "deepseek-v3.2-exp": {
        ("query-norm", "eps", 527): "self.q_norm = RMSNorm(self.q_lora_rank)",
        ("down-projection", "code", 529): "self.wkv_a = Linear(",
        ("up-projection", "code", 531): "self.wkv_b = ColumnParallelLinear(",
        ("down-projection", "call", 565): "kv = self.wkv_a(x)",
        ("split", "call", 566): "kv, k_pe = torch.split(kv, ",
        ("rotation", "call", 568): "k_pe = apply_rotary_emb(k_pe.unsqueeze(2), freqs_cis)",
    },
}


@pytest.mark.skipif(not seeds.SHARED.exists(), reason=seeds.MISSING)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_cited_lines_say_in_the_seeds_excerpts_what_they_are_cited_for(model):
    seed = seeds.load()[model.display]
    for (name, field, number), said in SAID[model.name].items():
        assert seed.line(number).strip().startswith(said)
        page = describe.component(model, name)
        if field == "call":
            assert page.call.line == number
        else:
            cited = page.code.ranges if field == "code" else page.eps.lines.split(", ")
            assert str(number) in [lines.split("–")[0] for lines in cited]
