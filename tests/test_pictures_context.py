"""Cache bytes against context length: the numbers, and that the lines are where they say."""

import dataclasses
import math
import re
import xml.etree.ElementTree as ET

import pytest
from helpers import check_python
from pictures import SVG, check, name_and_description, size, texts

from latentkv import layouts, models
from latentkv.atlas.pictures import bar, context, plot, table

MODELS = [models.get(name) for name in models.names()]
LAST = {model.display: model.max_positions.value for model in MODELS}
LATENT, EXPANDED = (
    "latent and shared key, bfloat16",
    "expanded: every head's key and value, bfloat16",
)


def numbers(model, what):
    return {
        row.positions: row.bytes for row in table(MODELS) if (row.model, row.what) == (model, what)
    }


@pytest.mark.case("F26-12")
def test_one_latent_a_token_and_the_layers_that_cache():
    """576 features once, not keys and values; Kimi K3's 24 layers, not its 93."""
    for model, token in (
        ("Kimi K2", 70_272),
        ("DeepSeek-V3.2-Exp", 70_272),
        ("Kimi K3", 27_648),
    ):
        found = numbers(model, LATENT)
        assert min(found) == 1024
        assert all(size == token * positions for positions, size in found.items())
    fp8 = numbers("DeepSeek-V3.2-Exp", "latent and shared key, fp8_ds_mla")
    assert fp8[65_536] == 61 * 656 * 65_536


def test_expanded_keys_and_values_by_hand():
    for model, heads, layers in (
        ("Kimi K2", 64, 61),
        ("Kimi K3", 96, 24),
        ("DeepSeek-V3.2-Exp", 128, 61),
    ):
        token = heads * (128 + 64 + 128) * 2 * layers
        assert numbers(model, EXPANDED)[1024] == 1024 * token


def test_each_line_ends_at_the_models_last_position():
    for model in MODELS:
        last = model.max_positions.value
        rows = [row for row in table(MODELS) if row.model == model.display]
        assert max(row.positions for row in rows) == last
        (bf16,) = (row.bytes for row in rows if row.what == LATENT and row.positions == last)
        record = layouts.plain(model.kv)
        assert bf16 == layouts.bytes_per_model(record, last, model.mla_layers.value)


@pytest.mark.parametrize("chosen", [MODELS, MODELS[:1], MODELS[1:], MODELS[::-1]], ids=len)
def test_a_plot_is_a_picture(chosen):
    svg = plot(chosen)
    check(svg)
    assert svg == plot(chosen)


def test_every_end_is_labelled_with_its_bytes():
    said = texts(plot(MODELS))
    told = name_and_description(plot(MODELS))[1]
    for row in table(MODELS):
        if row.positions == LAST[row.model]:
            amount = context.amount(row.bytes)
            labels = zip(said, said[1:], strict=False)
            assert any(name == row.model and text.endswith(amount) for name, text in labels)
            assert f"{row.model}, {row.what}: {amount} at {row.positions:,}" in told


def test_lines_of_one_kind_share_a_dash_and_each_model_has_a_marker():
    root = ET.fromstring(plot(MODELS))
    dashes = [
        node.get("stroke-dasharray")
        for node in root.iter(f"{SVG}path")
        if node.get("class") == "accent"
    ]
    # Seven lines, and the key's three.
    assert sorted(map(str, dashes)) == sorted(["None"] * 4 + ["7 2 1.5 2"] * 4 + ["5 3"] * 2)
    shapes = [
        re.sub(r"^M[\d.]+ [\d.]+", "", node.attrib["d"])
        for node in root.iter(f"{SVG}path")
        if node.get("class") == "ink"
    ]
    assert sorted(shapes.count(shape) for shape in set(shapes)) == [4, 4, 6]  # both ends of lines


def test_lines_lie_where_the_axes_say():
    """A line's ends against the ticks: bytes by the labelled rules, positions by their labels."""
    root = ET.fromstring(plot(MODELS))
    ticks = {
        node.text: (float(node.attrib["x"]), float(node.attrib["y"]) - 4)
        for node in root.iter(f"{SVG}text")
        if node.get("class") == "muted" and node.text
    }
    decade = (ticks["100 MB"][1] - ticks["100 GB"][1]) / 3
    octave = (ticks["524,288"][0] - ticks["1,024"][0]) / 9

    def place(positions, bytes_):
        return (
            ticks["1,024"][0] + math.log2(positions / 1024) * octave,
            ticks["1 GB"][1] - math.log10(bytes_ / 10**9) * decade,
        )

    ends = []
    for node in root.iter(f"{SVG}path"):
        found = re.fullmatch(r"M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)", node.attrib["d"])
        if node.get("class") == "accent" and found:
            ends.append(tuple(map(float, found.groups())))
    wanted = [
        (*place(1024, rows[1024]), *place(max(rows), rows[max(rows)]))
        for rows in (
            numbers(model, what)
            for model, what in dict.fromkeys((row.model, row.what) for row in table(MODELS))
        )
    ]
    assert len(ends) == 7
    for drawn, stated in zip(ends, wanted, strict=True):
        # coordinates have two decimals: 0.005 here and at a tick, and 0.01 / 3 a decade over four
        assert drawn == pytest.approx(stated, abs=0.05)


def test_what_is_not_counted_is_said():
    sentence = "Kimi K3 caches in 24 of 93 layers; the state of its 69 KDA layers is not counted."
    assert sentence in name_and_description(plot(MODELS))[1]
    assert "state" in " ".join(texts(plot(MODELS)))
    assert "KDA" not in plot([models.get("kimi-k2")])
    assert "Kimi K2 and DeepSeek-V3.2-Exp have one line" in name_and_description(plot(MODELS))[1]


def test_amounts_have_three_digits_and_a_decimal_unit():
    for size_, text in (
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (9_210_691_584, "9.21 GB"),
        (100 * 10**6, "100 MB"),
        (999_600_000, "1 GB"),
        (1_546_188_226_560, "1.55 TB"),
        (12_345 * 10**12, "12,300 TB"),
    ):
        assert context.amount(size_) == text


def test_too_few_models_or_positions_are_refused():
    for function in (plot, table):
        with pytest.raises(ValueError, match="at least one model is needed"):
            function([])
    k3 = models.get("kimi-k3")
    short = dataclasses.replace(k3, max_positions=dataclasses.replace(k3.max_positions, value=1024))
    with pytest.raises(ValueError, match="Kimi K3 takes 1,024 positions: the plot begins at 1,024"):
        table([short])


def test_a_bar_is_as_long_as_its_share():
    for share, width in ((0, "0"), (1e-9, "0.5"), (0.25, "15"), (1, "60")):
        filled = ET.fromstring(bar(share))[1]
        assert filled.attrib["width"] == width
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="a share is from 0 to 1"):
            bar(wrong)


def test_pictures_import_no_torch():
    code = "import sys, latentkv.atlas.pictures; print('torch' in sys.modules)"
    assert check_python(code) == "False\n"


def test_a_picture_is_wide_enough_for_a_phone():
    assert size(plot(MODELS))[0] == 340
