"""Pages of single components: every field, the numbers of the whole model, lines, misuse."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from configs import small
from latex2mathml.converter import convert
from pages import shown
from typer.testing import CliRunner

from latentkv import accounting, describe, models, pages
from latentkv.cli import app
from latentkv.describe_components import SCALE_FUNCTIONS
from latentkv.screen import to_ascii
from latentkv.terminal_formulas import as_lines, as_text

MODELS = [models.get(name) for name in models.names()]
EVERY = [(model, name) for model in MODELS for name in describe.components(model)]
LEARNED = ("down-projection", "norm", "up-projection", "query-norm")
BASE = (
    "model title path call learned summary formula input output arithmetic parameters verdict code "
    "sources files component accounting"
).split()
OWN = {
    "down-projection": ["weight"],
    "up-projection": ["weight"],
    "norm": ["module", "eps", "order", "compression"],
    "query-norm": ["module", "eps", "order"],
    "split": ["key"],
    "rotation": ["rotation", "softmax"],
    "cache": ["key", "max_positions", "records"],
}


def named(pair) -> str:
    model, name = pair
    return f"{model.name}-{name}"


@pytest.fixture(params=EVERY, ids=named)
def pair(request):
    return request.param


def test_each_model_has_a_page_for_each_step_the_split_and_the_querys_norm():
    for model in MODELS:
        wanted = {step.name for step in model.compression.steps} | {"split", "query-norm"}
        assert set(describe.components(model)) == wanted
    assert [name for _, name in EVERY].count("quantisation") == 1


def test_every_field_is_filled(pair):
    model, name = pair
    page = describe.component(model, name)
    assert page.component == name and page.model == model.display
    assert page.learned is (name in LEARNED)
    for text in (page.title, page.summary, page.formula, page.arithmetic.sentence):
        assert text.strip() == text != ""
    assert page.call.expression and page.call.file and page.call.line > 0
    for tensor in (*page.inputs, *page.outputs):
        assert tensor.symbol and tensor.dtype and tensor.shape[0].name == "batch"
        assert tensor.shape[-1].size
        assert tensor.note or name in ("norm", "query-norm")
    assert len(page.sources) >= 1 and page.files and page.code.ranges
    for card in page.sources:
        assert all(vars(card).values())
    assert (page.parameters is not None) is page.learned is bool(page.accounting)
    assert bool(page.verdict) is page.learned
    assert page.summary.endswith(".") and page.arithmetic.sentence.endswith(".")


def test_json_has_the_keys_of_every_page_and_its_own(pair):
    model, name = pair
    page = shown(model.name, name)
    assert sorted(page) == sorted([*BASE, *OWN.get(name, [])])
    positions = [pages._KEYS.index(key) for key in page]
    assert positions == sorted(positions)
    assert page == json.loads(json.dumps(describe.component(model, name).as_json()))


def test_the_breadcrumb_is_the_norms_and_its_groups_are_the_trees(pair):
    model, name = pair
    page, norm = describe.component(model, name), describe.page(model)
    assert page.path[:3] == norm.path[:3]
    assert page.path[3] == ("Query" if name == "query-norm" else norm.path[3])
    titles = {node.title for node in accounting.tree(model).root.walk()}
    assert set(page.path[2:]) <= titles


def nodes(model, name: str):
    last = {
        "down-projection": model.compression.down,
        "up-projection": model.compression.up,
        "norm": model.compression.norm,
        "query-norm": "q_a_layernorm",
    }[name]
    return [node for node in accounting.tree(model).root.walk() if node.name.split(".")[-1] == last]


@pytest.mark.parametrize(("model", "name"), [one for one in EVERY if one[1] in LEARNED])
def test_numbers_equal_the_tree_of_the_whole_model(model, name):
    page, found = describe.component(model, name), nodes(model, name)
    counted = page.parameters
    assert {node.per_instance for node in found} == {counted.per_instance}
    assert {node.title for node in found} == {page.title}
    own = sum(node.instances for node in found)
    assert own == counted.whole_model_instances + model.mtp_layers.value
    assert counted.whole_model_total == counted.per_instance * counted.whole_model_instances
    assert sum(row.parameters for row in page.accounting) == counted.per_instance
    for row in page.accounting:
        factors = [int(one.replace(",", "")) for one in row.calculation.split(" × ")]
        assert math.prod(factors) == row.parameters
    if isinstance(page, pages.MatrixPage):
        assert {shape for node in found for shape in node.shapes} == {page.weight.shape}


def test_the_rows_of_the_down_projection_are_those_of_latent_and_key():
    (latent, key) = describe.component(models.get("kimi-k2"), "down-projection").accounting
    assert (latent.component, latent.calculation) == ("Latent rows", "512 × 7,168")
    assert (key.component, key.calculation) == ("Shared key rows", "64 × 7,168")
    assert (latent.parameters, key.parameters) == (3_670_016, 458_752)


@pytest.mark.parametrize(
    ("name", "up", "rows"),
    [("kimi-k2", 16384, 64), ("kimi-k3", 24576, 96), ("deepseek-v3.2-exp", 32768, 128)],
)
def test_matrices_have_the_shapes_that_the_checkpoints_have(name, up, rows):
    model = models.get(name)
    assert describe.component(model, "down-projection").weight.shape == (576, 7168)
    page = describe.component(model, "up-projection")
    assert page.weight.shape == (up, 512)
    assert [row.calculation for row in page.accounting] == [f"{rows} × 128 × 512"] * 2
    assert describe.component(model, "query-norm").parameters.per_instance == 1536


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_sizes_equal_the_contracts(model):
    def size(name: str, side: str) -> int:
        return getattr(describe.component(model, name), side).shape[-1].size

    assert size("down-projection", "input") == model.hidden_size.value
    assert size("split", "input") == size("down-projection", "output") == model.kv.width
    split, kept = (describe.component(model, name) for name in ("split", "cache"))
    widths = [model.kv.norm.width, model.kv.key_width]
    assert [one.shape[-1].size for one in split.outputs] == widths
    assert [one.shape[-1].size for one in kept.inputs] == widths
    assert kept.inputs[1].symbol == describe.component(model, "rotation").output.symbol
    assert size("rotation", "input") == size("rotation", "output") == model.kv.key_width
    assert size("up-projection", "input") == model.kv.norm.width == size("norm", "output")
    heads, each = describe.component(model, "up-projection").output.shape[-2:]
    assert heads.size * each.size == model.up_width
    assert size("query-norm", "input") == model.norms.q_latent.width == model.q_lora_rank.value
    cache = describe.component(model, "cache")
    assert cache.records == describe.page(model).compression.records
    assert all(f"={record.bytes}" in cache.formula for record in cache.records)


def test_the_split_gives_two_tensors_and_each_has_its_own_shape():
    page = shown("kimi-k2", "split")
    assert [axis["size"] for axis in page["output"]["shape"]] == [None, None, 512]
    assert [axis["size"] for axis in page["key"]["shape"]] == [None, None, 64]
    text = CliRunner().invoke(app, ["show", "kimi-k2", "split"]).stdout
    assert "[B batch, T positions, 512 kv latent]" in text
    assert "k [B batch, T positions, 64 shared key]" in text
    assert text.count("576 kv latent and shared key") == 1  # what comes in


def test_sizes_have_their_thousands_apart():
    text = CliRunner().invoke(app, ["show", "kimi-k2", "down-projection"]).stdout
    assert "h [B batch, T positions, 7,168 hidden]" in text


def test_formulas_convert_to_mathml_without_a_rest(pair):
    formula = describe.component(*pair).formula
    inner = formula.removeprefix(r"\begin{aligned}").removesuffix(r"\end{aligned}")
    assert inner != formula
    for line in inner.split(r"\\"):
        assert line.count("&") == 1
        for cell in line.split("&"):  # latex2mathml has no aligned: each cell by itself
            text = "".join(ElementTree.fromstring(convert(cell)).itertext())
            assert not re.search(r"[\\{}&]", text), text


def test_formulas_read_as_text_without_a_rest(pair):
    page = describe.component(*pair)
    for unicode in (True, False):
        if "norm" not in page.component:  # whose formula has a drawing of its own
            text = "\n".join(as_lines(page.formula, unicode))
            assert not re.search(r"[\\{}&]", text), text
            assert text.isascii() or unicode
            signs = {line.index(" = ") for line in text.split("\n") if " = " in line}
            assert len(signs) <= 1
        for tensor in (*page.inputs, *page.outputs):
            assert not re.search(r"[\\{}&]", as_text(tensor.symbol, unicode))


@pytest.mark.parametrize(
    ("latex", "text", "plain"),
    [
        (r"\hat c^{KV}", "ĉᴷⱽ", "hat c^KV"),
        (r"\frac{1}{32\,\theta^{2i/64}}", "1/(32 θ^(2i/64))", "1/(32 theta^(2i/64))"),
        (r"W^{UK}_n\hat c", "W^UK_n ĉ", "W^UK_n hat c"),
        (r"\left[c;k^{R}\right]", "[c; k^R]", "[c; k^R]"),
        (r"10^{-4}-a_{i+1}", "10^(-4) - a_(i+1)", "10^(-4) - a_(i+1)"),
    ],
)
def test_latex_as_text(latex, text, plain):
    assert as_text(latex, True) == text
    assert as_text(latex, False) == plain


def test_code_is_the_definitions_own_or_says_that_there_is_none(pair):
    page = describe.component(*pair)
    if page.component in ("down-projection", "up-projection"):
        assert page.code.definition is None and "no function" in page.code.note
        return
    found = page.code.definition
    path = describe.__file__.replace("describe.py", found.file.removeprefix("latentkv/"))
    with open(path, encoding="utf-8") as file:
        lines = set(file.read().splitlines())
    assert {line for line in found.source.splitlines() if line} <= lines
    for function in found.function.split(", "):
        assert found.source.count(f"def {function}(") == 1


def test_the_quantisations_functions_are_those_that_the_definition_looks_up():
    from latentkv.definition import quant

    assert {rule: function.__name__ for rule, function in quant._SCALES.items()} == SCALE_FUNCTIONS


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_files_are_named_as_on_the_norms_page(model):
    known = {file.name: file for file in describe.page(model).files}
    for name in describe.components(model):
        page = describe.component(model, name)
        listed = {file.name: file for file in page.files}
        assert all(known.get(label, file) == file for label, file in listed.items())
        cited = {page.call.file, page.arithmetic.file, page.code.file}
        if isinstance(page, pages.RotationPage):
            settings = page.rotation.settings if page.rotation else ()
            cited |= {page.softmax.file, *(setting.file for setting in settings)}
        if isinstance(page, pages.CachePage):
            cited.add(page.max_positions.file)
        assert cited <= set(listed)
        places = {(file.repository, file.path, file.revision) for file in page.files}
        assert {(card.repository, card.file, card.revision) for card in page.sources} <= places


def test_kimi_k3_says_that_nothing_is_rotated():
    page = describe.component(models.get("kimi-k3"), "rotation")
    assert "Nothing is rotated" in page.summary and "nothing is rotated" in page.arithmetic.sentence
    assert page.rotation is None and page.arithmetic.roundings == 0
    assert page.formula == r"\begin{aligned}k&\mapsto k\end{aligned}"
    assert page.code.definition.function == "key_of"


def test_a_name_is_taken_in_any_case():
    assert shown("kimi-k2", " Query-NORM ") == shown("kimi-k2", "query-norm")
    assert shown("kimi-k2", "norm") == shown("kimi-k2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("kimi-k2", "rotatoin"), "did you mean rotation? Components: down-projection, split"),
        (("kimi-k2", "rotatoin"), "It has no quantisation: its contract caches"),
        (("kimi-k3", "quantisation"), "Kimi K3 has no quantisation: its contract caches"),
        (("deepseek-v3.2-exp", "x" * 99), "xxx...' of DeepSeek-V3.2-Exp. Components:"),
        (("deepseek-v3.2-exp", ""), "unknown component '' of DeepSeek-V3.2-Exp. Components:"),
        (("rotation",), "the model comes first: latentkv show MODEL rotation"),
        (("rotation", "kimi-k2"), "the model comes first: latentkv show MODEL rotation"),
    ],
)
def test_misuse_says_what_there_is(arguments, said):
    result = CliRunner().invoke(app, ["show", *arguments])
    assert result.exit_code == 2 and not result.stdout
    assert said in result.stderr


def test_a_configuration_has_no_page_of_a_component(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small()), "utf-8")
    result = CliRunner().invoke(app, ["show", str(path), "rotation"])
    assert result.exit_code == 2 and not result.stdout
    assert "a configuration has the page of its norm alone; leave out 'rotation'" in result.stderr
    assert all(name in result.stderr for name in models.names())


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("columns", [30, 100])
def test_a_page_fits_its_width_and_says_what_json_says(pair, columns, encoding, monkeypatch):
    model, name = pair
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    result = CliRunner(charset=encoding).invoke(app, ["show", model.name, name])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert not re.search(r"[ \t]$", result.stdout, re.M)
    page, text = shown(model.name, name), re.sub(r"\s", "", result.stdout)
    said = [
        page["title"],
        " ".join(map(str, page["call"].values())),
        page["summary"],
        page["arithmetic"]["sentence"].rstrip("."),
        page["verdict"],
        page["code"]["note"],
        *(row["calculation"] for row in page["accounting"]),
        *(source["claim"] for source in page["sources"]),
        *(file["repository"] for file in page["files"]),
        *page["code"]["ranges"],
    ]
    for one in said:
        wanted = one if encoding == "utf-8" else to_ascii(one)
        assert re.sub(r"\s", "", wanted) in text, one


def test_a_component_needs_no_torch_and_no_network():
    code = (
        "import sys; from latentkv import describe, models\n"
        "for name in models.names():\n"
        "    model = models.get(name)\n"
        "    for one in describe.components(model): describe.component(model, one).as_json()\n"
        "print(sorted({'torch', 'socket', 'rich', 'latex2mathml'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("name", ["down-projection", "up-projection"])
def test_a_matrix_says_how_the_checkpoint_has_it(name):
    said = {
        one: describe.component(models.get(one), name).arithmetic.sentence for one in models.names()
    }
    assert "a float32 scale for each tile of 128 × 128" in said["kimi-k2"]
    assert "e4m3" not in said["kimi-k3"]  # its attention is bfloat16


def test_a_record_that_the_models_own_file_does_not_keep_says_so():
    for name, own in (("kimi-k2", True), ("kimi-k3", True), ("deepseek-v3.2-exp", False)):
        sentence = describe.component(models.get(name), "cache").arithmetic.sentence
        assert ("The model's own file keeps every head's key and value." in sentence) == own
