"""`latentkv show` against the seed pages, field by field."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import seeds
from typer.testing import CliRunner

from latentkv import describe, models
from latentkv.cli import app
from latentkv.compare import compare
from latentkv.contracts import LatentQuant, NormContract
from latentkv.models import spec
from latentkv.models.spec import Fact, Model

KEYS = (
    "model title path call learned summary module formula eps order input output arithmetic "
    "parameters verdict compression code sources"
).split()
NAMES = {"Kimi K2": "kimi-k2", "Kimi K3": "kimi-k3", "DeepSeek-V3.2-Exp": "deepseek-v3.2-exp"}
SEEDS = seeds.load() if seeds.SHARED.exists() else {}

needs_shared = pytest.mark.skipif(not seeds.SHARED.exists(), reason=seeds.MISSING)


def shown(*arguments: str):
    result = CliRunner().invoke(app, ["show", "--json", *arguments])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(params=NAMES, ids=NAMES.values())
def pair(request):
    """A seed page and what `show --json` says."""
    if not SEEDS:
        pytest.skip(seeds.MISSING)
    return SEEDS[request.param], shown(NAMES[request.param])


def axes(shape: list[dict]) -> list[tuple[str, str]]:
    return [(str(axis["size"] or axis["symbol"]), axis["name"]) for axis in shape]


@needs_shared
def test_there_are_three_seed_pages_one_for_each_model():
    assert set(SEEDS) == set(NAMES)
    assert tuple(NAMES.values()) == models.names()


def test_keys(pair):
    _, page = pair
    assert list(page) == KEYS


def test_labels_equal_the_seed(pair):
    seed, page = pair
    assert page["model"] == seed.model
    assert page["title"] == seed.title
    assert page["path"] == seed.path
    assert page["learned"] is seed.learned is True
    assert page["call"]["expression"] == seed.call
    assert page["call"]["file"] == seed.code_file
    assert page["formula"] == seed.formula
    assert page["module"]["name"] == seed.call.split("(")[0].removeprefix("self.")


def test_input_and_output_equal_the_seed(pair):
    seed, page = pair
    assert (page["input"]["symbol"], axes(page["input"]["shape"])) == seed.input
    assert (page["output"]["symbol"], axes(page["output"]["shape"])) == seed.output


def test_parameters_equal_the_seed(pair):
    seed, page = pair
    width, instances, counted, total = seed.totals
    ours = page["parameters"]
    assert ours["per_instance"] == width == seed.per_instance
    assert ours["calculation"]["per_instance"] == seed.calculation
    assert (ours["instances"], ours["total"]) == (instances, total)
    assert ours["counts"]["instances"] == counted
    assert ours["calculation"]["total"] == f"{width} × {instances} = {total:,}"


@pytest.mark.parametrize(
    ("name", "instances", "total", "said"),
    [
        ("kimi-k2", 61, 31_232, "60 MoE blocks and 1 dense"),
        ("kimi-k3", 24, 12_288, "the other 69 layers"),
        ("deepseek-v3.2-exp", 61, 31_232, "58 MoE blocks and 3 dense; the checkpoint's MTP layer"),
    ],
)
def test_the_whole_model_is_counted_beside_the_seeds_count(name, instances, total, said):
    ours = shown(name)["parameters"]
    assert ours["whole_model_instances"] == instances
    assert ours["whole_model_total"] == total
    assert said in ours["counts"]["whole_model_instances"]


def test_code_ranges_and_heading_equal_the_seed(pair):
    seed, page = pair
    assert page["code"]["file"] == seed.code_file
    assert page["code"]["heading"] == seed.code_heading
    assert page["code"]["ranges"] == list(seed.excerpts)


def test_sources_equal_the_seed(pair):
    seed, page = pair
    assert len(page["sources"]) == len(seed.sources)
    for ours, theirs in zip(page["sources"], seed.sources, strict=True):
        for label in ("id", "grade", "repository", "file", "revision", "lines"):
            assert ours[label] == getattr(theirs, label)


def test_prose_carries_the_seeds_facts_in_other_words(pair):
    seed, page = pair
    prose = [
        (seed.summary, page["summary"]),
        (seed.verdict, page["verdict"]),
        (seed.owner, page["module"]["gain"]["owner"]),
        *zip(
            (source.claim for source in seed.sources),
            (source["claim"] for source in page["sources"]),
            strict=True,
        ),
    ]
    for theirs, ours in prose:
        wanted = seeds.terms(theirs)
        assert len(wanted) >= 3, theirs
        assert seeds.terms(ours) >= wanted, (theirs, ours, wanted - seeds.terms(ours))
        assert set(re.findall(r"\d+", ours)) == set(re.findall(r"\d+", theirs))
        assert ours != theirs


def test_claims_add_no_fact_of_their_own(pair):
    seed, page = pair
    for theirs, ours in zip(seed.sources, page["sources"], strict=True):
        assert seeds.terms(ours["claim"]) <= seeds.terms(theirs.claim)
        for projection in ("down-projection", "up-projection", "RMSNorm"):
            assert ours["claim"].count(projection) == theirs.claim.count(projection)


def test_the_cited_sentence_is_carried_with_its_lines(pair):
    # Kimi K3's page tells where eps comes from in the place where the others tell the arithmetic.
    seed, page = pair
    field = "eps" if "default" in seed.sentence else "arithmetic"
    ours = page[field]
    sentence = ours["origin" if field == "eps" else "sentence"]
    assert (ours["file"], ours["lines"]) == (seed.sentence_file, seed.sentence_lines)
    wanted = seeds.terms(seed.sentence)
    assert len(wanted) >= 3
    assert seeds.terms(sentence) >= wanted
    assert sentence != seed.sentence


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        ("cast_then_gain", ("float32", "cast back", "gain")),
        ("gain_then_cast", ("float32", "gain", "cast back")),
    ],
)
def test_the_arithmetic_in_words_follows_the_contracts_order(order, steps):
    pages = [shown(name) for name in models.names()]
    for page in (page for page in pages if page["order"] == order):
        places = [page["arithmetic"]["sentence"].index(step) for step in steps]
        assert places == sorted(places)
    assert {page["order"] for page in pages} == {"cast_then_gain", "gain_then_cast"}


def test_the_order_is_the_one_that_the_models_own_code_has(pair):
    # The line of the product: the gain times a cast value, or a cast of the product.
    seed, page = pair
    last = int(page["arithmetic"]["lines"].split("–")[1])
    product = seed.line(last)
    assert product and "self.weight *" in product
    cast_last = re.search(r"\(self\.weight \* \w+\)\.to\(", product)
    assert page["order"] == ("gain_then_cast" if cast_last else "cast_then_gain")


def test_the_arithmetic_begins_where_the_input_dtype_is_kept(pair):
    seed, page = pair
    first = int(page["arithmetic"]["lines"].split("–")[0])
    assert re.search(r"dtype = \w+\.dtype", seed.line(first) or "")


def test_the_lines_of_eps_are_its_default_and_the_construction(pair):
    seed, page = pair
    default, construction = map(int, page["eps"]["lines"].split(", "))
    assert re.search(r"def __init__\(.*eps(: float)? ?= ?1e-6", seed.line(default) or "")
    assert page["eps"]["value"] == 1e-6
    built = seed.line(construction) or ""
    assert f"self.{page['module']['name']} = {page['module']['class']}(" in built
    assert built.endswith("kv_lora_rank)")  # nothing but the width is passed


def test_the_line_of_the_call_is_where_it_stands(pair):
    seed, page = pair
    line = page["call"]["line"]
    if seed.call_line is not None:
        assert line == seed.call_line
    else:
        assert seed.call in (seed.line(line) or "")


@pytest.mark.parametrize(
    ("name", "value", "differs", "lines"),
    [
        ("kimi-k2", 1e-6, False, "47"),
        ("kimi-k3", 1e-5, True, "245"),
        ("deepseek-v3.2-exp", 1e-6, False, "45"),
    ],
)
def test_the_configurations_eps_stands_beside_the_one_applied(name, value, differs, lines):
    config = shown(name)["eps"]["config"]
    assert (config["value"], config["differs"]) == (value, differs)
    assert (config["file"], config["lines"]) == ("config.json", lines)
    assert config["note"]


def test_no_line_of_the_models_code_is_shown(pair):
    # The definition stands in its place. Lines too short to be anyone's are let through.
    seed, page = pair
    ours = json.dumps(page, ensure_ascii=False)
    source = page["code"]["definition"]["source"]
    assert source.startswith("def rms_norm(") and '"""' not in source
    assert "def fold(" in source  # with what it computes with
    for lines in seed.excerpts.values():
        for line in map(str.strip, lines):
            if len(line) > 30:
                assert line not in ours


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


def with_quantisation(model: Model) -> spec.Compression:
    steps = model.compression.steps
    added = dataclasses.replace(steps[1], name="quantisation")
    return dataclasses.replace(model.compression, steps=(*steps, added))


# What follows was worked out by hand, from the sizes of MODELS.md and the records of layouts.py:
# (parameters of down-projection, norm and up-projection; their sum; times the page's blocks; times
# the whole model's layers).
WEIGHTS = {
    "kimi-k2": ([4_128_768, 512, 8_388_608], 12_517_888, 751_073_280, 763_591_168),
    "kimi-k3": ([4_128_768, 512, 12_582_912], 16_712_192, 401_092_608, 401_092_608),
    "deepseek-v3.2-exp": (
        [4_128_768, 512, 16_777_216],
        20_906_496,
        1_212_576_768,
        1_275_296_256,
    ),
}
# record: (bytes of a token in one layer, in all layers, of a full layer, of the full model)
RECORDS = {
    "kimi-k2": {"bfloat16": (1152, 70_272, 150_994_944, 9_210_691_584)},
    "kimi-k3": {"bfloat16": (1152, 27_648, 1_207_959_552, 28_991_029_248)},
    "deepseek-v3.2-exp": {
        "bfloat16": (1152, 70_272, 188_743_680, 11_513_364_480),
        "fp8_ds_mla": (656, 40_016, 107_479_040, 6_556_221_440),
    },
}
HEADS = {"kimi-k2": 64, "kimi-k3": 96, "deepseek-v3.2-exp": 128}
by_model = pytest.mark.parametrize("name", models.names())


def compressed(name: str) -> dict:
    return shown(name)["compression"]


@by_model
def test_the_parameters_of_the_compression(name):
    weights, told = compressed(name)["weights"], compressed(name)["together"]
    each, together, total, whole = WEIGHTS[name]
    assert [weight["step"] for weight in weights] == ["down-projection", "norm", "up-projection"]
    assert [weight["shape"] for weight in weights] == [[576, 7168], [512], [256 * HEADS[name], 512]]
    numbers = [weight["parameters"] for weight in weights]
    assert [one["per_instance"] for one in numbers] == each
    assert (told["per_instance"], told["total"], told["whole_model_total"]) == (
        together,
        total,
        whole,
    )
    for key in ("per_instance", "total", "whole_model_total"):
        assert sum(one[key] for one in numbers) == told[key]
    for one in (*numbers, told):
        for key in ("per_instance", "total", "whole_model_total"):
            # the norm's own count is no product
            assert one["calculation"][key].split(" = ")[-1] == f"{one[key]:,}"
    assert numbers[0]["calculation"]["per_instance"] == "576 × 7,168 = 4,128,768"
    assert numbers[1] == shown(name)["parameters"]


@by_model
def test_the_tensors_have_the_names_of_the_checkpoint(name):
    prefix = "language_model." if name == "kimi-k3" else ""
    assert [weight["tensor"] for weight in compressed(name)["weights"]] == [
        f"{prefix}model.layers.N.self_attn.{part}.weight"
        for part in ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj")
    ]


@by_model
def test_the_steps_and_their_shapes(name):
    steps = {step["name"]: step for step in compressed(name)["steps"]}
    # V3.2 caches the latent before it is up-projected, the Kimi models what comes of it.
    after = {"deepseek-v3.2-exp": ["rotation", "quantisation", "cache", "up-projection"]}.get(
        name, ["up-projection", "rotation", "cache"]
    )
    assert list(steps) == ["down-projection", "norm", *after]

    def sizes(side: dict) -> tuple:
        return side["shape"], side["heads"], [(p["name"], p["width"]) for p in side["parts"]]

    latent, key = ("latent", 512), ("key", 64)
    hidden = (["B", "T", 7168], 1, [("hidden state", 7168)])
    both = (["B", "T", 576], 1, [latent, key])
    only_latent, only_key = (["B", "T", 512], 1, [latent]), (["B", "T", 64], 1, [key])
    heads = HEADS[name]
    expanded = (["B", "T", 256 * heads], heads, [("content key", 128), ("value", 128)])
    expected = {
        "down-projection": (hidden, both),
        "norm": (only_latent, only_latent),
        "rotation": (only_key, only_key),
        "quantisation": (only_latent, only_latent),
        "cache": (both, both),
        "up-projection": (only_latent, expanded),
    }
    for step in steps.values():
        assert (sizes(step["input"]), sizes(step["output"])) == expected[step["name"]]
        assert step["file"] == shown(name)["code"]["file"] and step["lines"] and step["expression"]


def test_the_steps_are_told_by_the_contracts():
    k2, k3, v32 = (
        {step["name"]: step["does"] for step in compressed(name)["steps"]}
        for name in models.names()
    )
    assert "each product and their sum are rounded" in k2["rotation"]
    assert "half layout" in k2["rotation"] and "(2i, 2i + 1)" in k2["rotation"]
    assert "nothing is rotated" in k3["rotation"]
    assert "rounded once" in v32["rotation"] and "interleaved layout" in v32["rotation"]
    assert "4 groups of 128" in v32["quantisation"]
    assert "act_quant: max(amax, 1e-4) / 448, rounded up to a power" in v32["quantisation"]


def test_the_lines_of_the_steps_hold_their_expressions(pair):
    """As far as the seed shows these lines."""
    seed, page = pair
    seen = 0
    for step in page["compression"]["steps"]:
        numbers = [
            line
            for part in step["lines"].split(", ")
            for line in range(int(part.split("–")[0]), int(part.split("–")[-1]) + 1)
        ]
        found = "\n".join(filter(None, map(seed.line, numbers)))
        if found:
            seen += 1
            assert step["expression"].split("(")[0] in found, step
    assert seen >= (1 if page["model"] == "Kimi K3" else 3)


@pytest.mark.parametrize(
    ("name", "scale", "formula"),
    [
        (
            "kimi-k2",
            0.13086079996295005,
            "192^-0.5 × m^2, m = 0.1 × ln 32 + 1 = 1.3465735902799727",
        ),
        ("kimi-k3", 0.07216878364870322, "192^-0.5"),
        (
            "deepseek-v3.2-exp",
            0.1352337788608801,
            "192^-0.5 × m^2, m = 0.1 × ln 40 + 1 = 1.3688879454113936",
        ),
    ],
)
def test_the_softmax_scale(name, scale, formula):
    told = compressed(name)["softmax"]
    assert (told["scale"], told["formula"]) == (scale, formula)
    if name == "kimi-k3" and SEEDS:
        assert "q_head_dim ** (-0.5)" in SEEDS["Kimi K3"].line(int(told["lines"]))


def test_the_rotation():
    k2, k3, v32 = (compressed(name)["rotation"] for name in models.names())
    assert k3 is None

    def values(rotation: dict) -> dict:
        return {one["name"]: (one["value"], one["lines"]) for one in rotation["settings"]}

    assert values(k2) == {
        "theta": (50000, "48"),
        "factor": (32, "53"),
        "original positions": (4096, "56"),
        "beta_fast": (1, "51"),
        "beta_slow": (1, "52"),
        "mscale": (1, "54"),
        "mscale_all_dim": (1, "55"),
    }
    assert values(v32) == {
        "theta": (10000, "82"),
        "factor": (40, "83"),
        "original positions": (4096, "81"),
        "beta_fast": (32, "84"),
        "beta_slow": (1, "85"),
        "mscale": (1, "86, 536"),
    }
    assert (k2["low"], k2["high"], v32["low"], v32["high"]) == (19, 20, 10, 23)
    assert k2["ramp"] == "pairs 0 to 19 keep their frequency; from 20 to 31 it is divided by 32"
    assert "from 11 to 22 a ramp; from 23 to 31 it is divided by 40" in v32["ramp"]
    assert k2["stretched"] == "1 / (32 × theta^(2i/64))"
    assert v32["stretched"] == "(1 / theta^(2i/64)) / 40"
    for one in (*k2["settings"], *v32["settings"]):
        assert one["repository"].count("/") == 1 and len(one["revision"]) == 12


@by_model
def test_the_cache_records_and_what_they_add_up_to(name):
    records = compressed(name)["records"]
    assert {
        record["name"]: (
            record["bytes"],
            record["bytes_per_token"],
            record["bytes_per_layer"],
            record["bytes_per_model"],
        )
        for record in records
    } == RECORDS[name]
    for record in records:
        said = record["calculation"]
        assert said["per_token"].endswith(f"= {record['bytes_per_token']:,}")
        assert said["per_layer"].endswith(f"= {record['bytes_per_layer']:,}")
        assert said["per_model"].endswith(f"= {record['bytes_per_model']:,}")


def test_the_byte_maps():
    def fields(record: dict) -> list[tuple]:
        keys = ("name", "offset", "end", "count", "dtype", "bytes")
        return [tuple(field[key] for key in keys) for field in record["fields"]]

    plain, fp8 = compressed("deepseek-v3.2-exp")["records"]
    assert fields(plain) == [
        ("latent", 0, 1024, 512, "bfloat16", 1024),
        ("key", 1024, 1152, 64, "bfloat16", 128),
    ]
    assert fields(fp8) == [
        ("codes", 0, 512, 512, "float8_e4m3fn", 512),
        ("scales", 512, 528, 4, "float32", 16),
        ("key", 528, 656, 64, "bfloat16", 128),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e-6, "10⁻⁶"), (1e-5, "10⁻⁵"), (1e-4, "10⁻⁴"), (2.5e-6, "2.5 × 10⁻⁶"), (1.0, "10⁰")],
)
def test_powers_of_ten(value, text):
    assert describe.scientific(value) == text


def test_side_by_side_marks_what_differs_and_says_what_follows():
    comparison = compare([models.get(name) for name in models.names()])
    rows = {row.field: row for row in comparison.rows}
    alone = {field: [i for i in range(3) if row.stands_alone(i)] for field, row in rows.items()}
    assert rows["order"].differs and alone["order"] == [2]
    assert rows["eps in config"].differs and alone["eps in config"] == [1]
    assert rows["block norm"].differs and alone["block norm"] == [1]
    assert rows["instances"].differs and alone["instances"] == []
    assert rows["key rotation"].differs and alone["key rotation"] == []
    assert rows["rotary frequencies"].differs and rows["softmax scale"].differs
    assert alone["latent quantisation"] == [2]
    assert [cell.value for cell in rows["cache bytes a token"].cells] == [
        "bfloat16 1,152 × 61 = 70,272",
        "bfloat16 1,152 × 24 = 27,648",
        "bfloat16 1,152 × 61 = 70,272; fp8_ds_mla 656 × 61 = 40,016",
    ]
    assert rows["rotary frequencies"].cells[0].place == "config.json 48, 53"
    assert rows["key rotation"].cells[2].place == "model.py 568, 405–425"
    for same in ("eps applied", "parameters each", "query latent norm"):
        assert not rows[same].differs and alone[same] == []
    said = "\n".join(comparison.consequences)
    assert "cast_then_gain (Kimi K2, Kimi K3) rounds twice" in said
    assert "Kimi K3's configuration says 10⁻⁵ (config.json 245)" in said
    assert "DeepSeek-V3.2-Exp 58 MoE blocks, 61 over the whole model" in said
    assert "Kimi K2: half; DeepSeek-V3.2-Exp: interleaved; Kimi K3: not rotated at all" in said
    assert "1.81326 × 192^-0.5 in Kimi K2, 1 × 192^-0.5 in Kimi K3, 1.87385 × 192^-0.5" in said
    assert "in DeepSeek-V3.2-Exp attention reads what the latent's e4m3 codes stand for" in said
    assert "24 of Kimi K3's 93 layers keep a latent" in said
    assert "107,136 bytes a token instead of 27,648" in said  # 1,152 × 93, 1,152 × 24


def test_models_that_agree_have_no_consequences():
    k2 = models.get("kimi-k2")
    same = dataclasses.replace(k2, dense_layers=Fact(0, k2.dense_layers.place))
    comparison = compare([same, same, same])
    assert not any(row.differs for row in comparison.rows)
    assert comparison.consequences == ()


def test_the_definition_is_read_not_imported():
    from latentkv._source import definition

    found = definition(*describe.DEFINITION)
    path = Path(describe.__file__).parent / "definition" / "norm.py"
    kept = [line for line in found.source.splitlines() if line]
    assert set(kept) <= set(path.read_text("utf-8").splitlines())
    with pytest.raises(LookupError, match="no function nothing, it has fold"):
        definition("definition/norm.py", "nothing")
