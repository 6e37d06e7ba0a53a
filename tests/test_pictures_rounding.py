"""The rounding chain as a picture: its numbers are the definition's."""

import dataclasses

import pytest
import torch
from helpers import ORDERS, assert_same, contract, hex_bits
from pictures import check, name_and_description, text_boxes, texts

from latentkv import definition, models
from latentkv.atlas.pictures import chain, rounding

KIMI = models.get("kimi-k3")
DEEPSEEK = models.get("deepseek-v3.2-exp")
# Widths that fold evenly, unevenly, into nothing; eps of every length and size.
CONTRACTS = [
    KIMI.norms.kv_latent,
    DEEPSEEK.norms.kv_latent,
    KIMI.norms.q_latent,
    contract(1),
    contract(2),
    contract(3, "gain_then_cast", 1e-5),
    contract(100, eps=1.2345678901234567e-7),
    contract(48, eps=3e38),
    contract(48, eps=2.0**-126),
]


def bf16_row(values):
    return torch.tensor(values).bfloat16()


@pytest.mark.parametrize("stated", CONTRACTS, ids=str)
def test_a_chain_is_a_picture(stated):
    for whose in ("", "Kimi K3", "A name that is longer than a card is wide"):
        svg = chain(stated, whose)
        check(svg)
        assert svg == chain(stated, whose)


@pytest.mark.parametrize("stated", CONTRACTS[:3], ids=str)
def test_the_whole_example_has_the_definitions_bits(stated):
    shown = rounding.example(stated)
    assert len(shown.x) == len(shown.gain) == stated.width
    outputs = {}
    for order in ORDERS:
        ours = shown.walks[order]
        one = dataclasses.replace(stated, order=order)
        outputs[order] = definition.rms_norm(bf16_row(shown.x), bf16_row(shown.gain), one)
        assert_same(bf16_row(ours.y), outputs[order])
    first, second = (outputs[order] for order in ORDERS)
    assert shown.differing == tuple((first != second).nonzero().flatten().tolist())
    assert shown.feature == shown.differing[0]
    # docs/numerics.md: 26% of the outputs, here of one row.
    assert 0.2 < len(shown.differing) / stated.width < 0.32


@pytest.mark.parametrize("model", [KIMI, DEEPSEEK], ids=lambda model: model.name)
def test_each_step_shows_the_definitions_value(model):
    stated = model.norms.kv_latent
    shown = rounding.example(stated)
    i, said = shown.feature, texts(chain(stated, model.display))
    x, gain = bf16_row(shown.x), bf16_row(shown.gain)
    a, rho = x.float(), definition.reciprocal_rms(x, stated)
    total = definition.fold(a * a)
    mean = total / 512
    v = mean + torch.tensor(1e-6)
    chain_of = [a[i], (a * a)[i], total, mean, v, v.double().sqrt().float(), rho, (a * rho)[i]]
    wide = [f"0x{hex_bits(value)[0]:08X}" for value in chain_of]
    assert [text for text in said if text.startswith("0x") and len(text) == 10][:8] == wide
    for value in chain_of:
        assert f"{value.item():.9g}" in said
    h = (a * rho)[i].bfloat16()
    # Of each cast, the lower half of what it rounds, once where it arises and once where it is
    # dropped, and of the three the result.
    early, late = h.float() * gain[i].float(), (a * rho)[i] * gain[i].float()
    for value in ((a * rho)[i], early, late):
        assert said.count(f"{hex_bits(value)[0] & 0xFFFF:016b}") == 2
    for value in (h, early.bfloat16(), late.bfloat16()):
        assert f"0x{hex_bits(value)[0]:04X}" in said
    for order in ORDERS:
        y = definition.rms_norm(x, gain, dataclasses.replace(stated, order=order))[i]
        assert f"y = 0x{hex_bits(y)[0]:04X}" in said
        assert (
            f"0x{hex_bits(y)[0]:04X} = {y.item():.9g}"
            in name_and_description(chain(stated, model.display))[1]
        )
    assert f"{len(shown.differing)} of the row's 512 features differ." in said


def test_the_bits_are_grouped_as_sign_exponent_and_mantissa():
    stated = KIMI.norms.kv_latent
    shown = rounding.example(stated)
    said = texts(chain(stated))
    start = said.index("0x" + f"{hex_bits(bf16_row(shown.x).float()[shown.feature])[0]:08X}") + 1
    groups = said[start : start + 4]
    assert [len(group) for group in groups] == [1, 8, 7, 16]
    bits = f"{hex_bits(bf16_row(shown.x)[shown.feature])[0]:016b}"
    assert "".join(groups) == bits + "0" * 16


@pytest.mark.parametrize("model", [KIMI, DEEPSEEK], ids=lambda model: model.name)
def test_the_models_own_order_is_marked(model):
    svg = chain(model.norms.kv_latent, model.display)
    places = {text: box for text, box in text_boxes(svg)}
    mark = places[f"▶ {model.display}"]
    assert mark[0] == places[model.norms.kv_latent.order][0]
    assert f"{model.display} has {model.norms.kv_latent.order}." in name_and_description(svg)[1]
    assert not any("▶" in text for text in texts(chain(model.norms.kv_latent)))


def test_what_a_rounding_does_is_said():
    for wide, narrow, words in (
        (1.0, 1.0, "zeros dropped: exact"),
        (1 + 2**-8, 1.0, "half dropped: down, to even"),
        (1 + 3 * 2**-8, 1 + 2**-6, "half dropped: up, to even"),
        (1 + 2**-8 + 2**-20, 1 + 2**-7, "over half dropped: up"),
        (1 + 2**-9, 1.0, "under half dropped: down"),
    ):
        assert rounding.bf16(wide) == narrow
        assert rounding._why(wide, narrow) == words


def test_a_row_on_which_the_orders_agree_says_so():
    """Width 1 and a small eps: the normalised value is 1 or -1, and each product exact."""
    stated = contract(1, eps=2.0**-126)
    shown = rounding.example(stated)
    assert shown.differing == () and shown.feature == 0
    assert "Both orders give this row the same bits." in texts(chain(stated))
