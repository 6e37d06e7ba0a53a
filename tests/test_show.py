"""`latentkv show` against the seed pages, field by field."""

from __future__ import annotations

import json
import re

import pytest
import seeds
from pages import shown

from latentkv import models

KEYS = (
    "model title path call learned summary module formula eps order input output arithmetic "
    "parameters verdict compression code sources files component accounting"
).split()


NAMES = {"Kimi K2": "kimi-k2", "Kimi K3": "kimi-k3", "DeepSeek-V3.2-Exp": "deepseek-v3.2-exp"}
SEEDS = seeds.load() if seeds.SHARED.exists() else {}
needs_shared = pytest.mark.skipif(not seeds.SHARED.exists(), reason=seeds.MISSING)


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


def test_the_verdict_is_in_the_seeds_words(pair):
    seed, page = pair
    assert page["verdict"] == seed.verdict.replace("’", "'")


def test_prose_carries_the_seeds_facts_in_other_words(pair):
    seed, page = pair
    prose = [
        (seed.summary, page["summary"]),
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
