"""Pages follow their facts: another fact or contract is another page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pages import shown

from latentkv import describe, describe_formulas, describe_norms, models
from latentkv.contracts import LatentQuant, NormContract
from latentkv.models import spec
from latentkv.models.spec import Fact, Model


def test_without_a_model_there_are_three_objects():
    assert shown() == [shown(name) for name in models.names()]


@pytest.mark.parametrize("name", ["moonshotai/Kimi-K3", "KIMI-K3", " kimi-k3  "])
def test_names_and_repositories_show_the_same_page(name):
    assert shown(name) == shown("kimi-k3")


def changed(model: Model, **facts: int) -> Model:
    return dataclasses.replace(
        model,
        **{name: Fact(value, getattr(model, name).place) for name, value in facts.items()},
    )


def test_a_wrong_fact_changes_the_page():
    """Derived fields follow the facts, so the comparisons above would notice a wrong one."""
    k2, k3 = models.get("kimi-k2"), models.get("kimi-k3")
    page = describe.page(changed(k2, layers=62, mla_layers=62)).parameters
    assert (page.instances, page.total) == (61, 31_232)
    assert (page.whole_model_instances, page.whole_model_total) == (62, 31_744)
    assert describe.page(changed(k2, layers=62)).path[:2] == (
        "62 transformer blocks",
        "61 MoE blocks",
    )
    fewer = describe.page(changed(k3, mla_layers=23, heads=95, max_positions=1000))
    assert fewer.parameters.total == 11_776
    assert fewer.compression.weights[2].parameters.per_instance == 95 * 256 * 512
    (record,) = fewer.compression.records
    assert (record.bytes_per_token, record.bytes_per_layer) == (1152 * 23, 1_152_000)
    assert record.bytes_per_model == 1_152_000 * 23


def with_quantisation(model: Model) -> spec.Compression:
    steps = model.compression.steps
    added = dataclasses.replace(steps[1], name="quantisation")
    return dataclasses.replace(model.compression, steps=(*steps, added))


def test_a_changed_contract_changes_the_page():
    k2 = models.get("kimi-k2")
    other = NormContract(256, 2.5e-5, "gain_then_cast")
    page = describe.page(
        dataclasses.replace(
            k2,
            kv_lora_rank=Fact(256, k2.kv_lora_rank.place),
            norms=dataclasses.replace(k2.norms, kv_latent=other),
            kv=dataclasses.replace(k2.kv, norm=other, quant=LatentQuant(64, "sglang")),
            compression=with_quantisation(k2),
        )
    )
    assert r"\varepsilon&=2.5\times10^{-5}\end" in page.formula
    assert page.eps.value == 2.5e-5 and "ε = 2.5 × 10⁻⁵" in page.eps.origin
    assert page.eps.config.differs
    assert page.parameters.total == 256 * 60
    assert page.input.shape[-1].size == 256 and "256 of the 320" in page.input.note
    assert page.arithmetic.roundings == 1
    told = page.compression
    assert [weight.parameters.per_instance for weight in told.weights] == [
        320 * 7168,
        256,
        16384 * 256,
    ]
    quantisation = next(step for step in told.steps if step.name == "quantisation")
    assert "4 groups of 64" in quantisation.does and "by sglang: amax / 448." in quantisation.does
    assert [record.bytes for record in told.records] == [640, 256 + 4 * 4 + 128]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-6, "10⁻⁶"), (1e-5, "10⁻⁵"), (1e-4, "10⁻⁴"), (2.5e-6, "2.5 × 10⁻⁶"), (1.0, "10⁰")],
)
def test_powers_of_ten(value, text):
    assert describe_formulas.scientific(value) == text


def test_the_definition_is_read_not_imported():
    from latentkv._source import definition

    found = definition(*describe_norms.DEFINITION)
    path = Path(describe.__file__).parent / "definition" / "norm.py"
    kept = [line for line in found.source.splitlines() if line]
    assert set(kept) <= set(path.read_text("utf-8").splitlines())
    with pytest.raises(LookupError, match="no function nothing, it has fold"):
        definition("definition/norm.py", "nothing")
