"""Every citation of `latentkv show` leads to a file: its repository, path and revision."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pages import shown
from rich.console import Console
from typer.testing import CliRunner

from latentkv import describe, models
from latentkv.cli import app
from latentkv.contracts import RULES, LatentQuant
from latentkv.models.spec import Fact, File, Model
from latentkv.screen import Screen

by_model = pytest.mark.parametrize("name", models.names())


def every(value: Any) -> Iterator[Any]:
    """A JSON value and all that it holds."""
    yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from every(item)
        else:
            yield item


def text(name: str, columns: int) -> str:
    result = CliRunner().invoke(app, ["show", name], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.stdout


@by_model
def test_the_files_are_found_by_their_names(name):
    page = shown(name)
    files = page["files"]
    names = [file["name"] for file in files]
    assert len(set(names)) == len(names) >= 2
    full = {(file["repository"], file["path"], file["revision"]) for file in files}
    cited = [one for one in every(page) if isinstance(one, dict) and "lines" in one]
    assert len(cited) >= 10
    for one in cited:
        if "repository" in one and "grade" in one:  # a source, which has the path in full
            assert (one["repository"], one["file"], one["revision"]) in full
            continue
        (file,) = (file for file in files if file["name"] == one["file"])
        for key in {"repository", "revision", "copy_of"} & set(one):
            assert one[key] == file[key]
    assert page["call"]["file"] in names and page["code"]["file"] in names


@by_model
def test_no_text_of_the_page_names_another_file(name):
    page = shown(name)
    names = {file["name"] for file in page["files"]}
    names |= {file["path"] for file in page["files"]} | {page["code"]["definition"]["file"]}
    for said in every(page):
        if isinstance(said, str):
            for found in re.findall(r"[\w./-]+\.(?:py|json|ya?ml)\b", said):
                assert found in names, said


def test_the_files_of_v32_are_its_code_its_configuration_and_a_copy():
    assert shown("deepseek-v3.2-exp")["files"] == [
        {
            "name": "model.py",
            "repository": "deepseek-ai/DeepSeek-V3.2-Exp",
            "path": "inference/model.py",
            "revision": "87e509a2e5a1",
            "copy_of": "",
        },
        {
            "name": "config.json",
            "repository": "huggingface/transformers",
            "path": "src/transformers/models/deepseek_v32/deepseek_files/config.json",
            "revision": "a10b6fa87498",
            "copy_of": "deepseek-ai/DeepSeek-V3.2-Exp",
        },
        {
            "name": "config_671B_v3.2.json",
            "repository": "deepseek-ai/DeepSeek-V3.2-Exp",
            "path": "inference/config_671B_v3.2.json",
            "revision": "87e509a2e5a1",
            "copy_of": "",
        },
    ]


def test_the_page_ends_with_the_files():
    page = re.sub(r"\s+", " ", text("kimi-k2", 100))
    assert page.endswith(
        "Files cited 2 modeling_deepseek.py "
        "moonshotai/Kimi-K2-Instruct / modeling_deepseek.py, revision fd1984e2b7a3 "
        "config.json mfarisadip/Kimi-K2-Mini / k2-mini-broken/config.json, "
        "revision 0fd6b81d9108, a copy of moonshotai/Kimi-K2-Instruct's "
    )


def with_positions(model: Model, file: File) -> Model:
    """The model, its number of positions read in another file."""
    return dataclasses.replace(model, max_positions=Fact(131072, file.at(7)))


@pytest.mark.parametrize(
    ("file", "name", "configuration"),
    [
        (File("a/b", "sizes.json", "1"), "sizes.json", "config.json"),
        (File("a/b", "x/config.json", "1"), "x/config.json", "k2-mini-broken/config.json"),
        (File("a/b", "config.json", "1"), "b/config.json", "k2-mini-broken/config.json"),
        (
            File("a/b", "k2-mini-broken/config.json", "1"),
            "b/k2-mini-broken/config.json",
            "Kimi-K2-Mini/k2-mini-broken/config.json",
        ),
        (
            File("mfarisadip/Kimi-K2-Mini", "k2-mini-broken/config.json", "1"),
            "mfarisadip/Kimi-K2-Mini/k2-mini-broken/config.json@1",
            "mfarisadip/Kimi-K2-Mini/k2-mini-broken/config.json@0fd6b81d9108",
        ),
    ],
)
def test_a_fact_of_another_file_brings_it_and_names_tell_the_two_apart(file, name, configuration):
    page = describe.page(with_positions(models.get("kimi-k2"), file))
    assert [one.name for one in page.files][0] == "modeling_deepseek.py"
    assert {one.name for one in page.files[1:]} == {name, configuration}
    assert page.compression.max_positions.file == name
    assert page.eps.config.file == configuration
    assert page.compression.rotation.settings[0].file == configuration
    (added,) = (one for one in page.files if one.name == name)
    assert (added.repository, added.path, added.revision) == (
        file.repository,
        file.path,
        file.revision,
    )


@pytest.mark.parametrize("columns", [60, 80, 85, 100])
@by_model
def test_a_tensor_is_broken_after_a_dot_if_no_line_holds_it(name, columns):
    lines = [line.strip() for line in text(name, columns).splitlines()]
    for weight in shown(name)["compression"]["weights"]:
        tensor = weight["tensor"]
        if len(tensor) + 4 <= columns:
            assert any(line.endswith(tensor) for line in lines), tensor
        else:
            pairs = [(one, two) for one, two in zip(lines, lines[1:], strict=False) if one]
            assert any(one.endswith(".") and one + two == tensor for one, two in pairs), tensor


def test_words_are_broken_at_their_marks_then_anywhere(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    screen = Screen()
    screen.console = Console(width=30, color_system=None)
    given = {"n": f"a.{'b' * 10}_{'c' * 20} {'x' * 30}"}
    with screen.console.capture() as capture:
        screen.console.print(screen.fields(given, stacked=True))
    lines = [line.strip() for line in capture.get().splitlines()]
    assert lines == ["n", "a.", f"{'b' * 10}_", "c" * 20, "x" * 26, "x" * 4]


def test_the_choices_of_a_rotation_are_told():
    k2, v32 = (re.sub(r"\s+", " ", text(name, 100)) for name in ("kimi-k2", "deepseek-v3.2-exp"))
    for said in (
        "power: the factor multiplies theta^(2i/64), whose reciprocal is then taken",
        "each_step: cos, sin, each product and their sum are rounded to the key's dtype",
        "half: all first elements of the pairs come before all second ones",
    ):
        assert said in k2
    for said in (
        "inverse: the reciprocal of theta^(2i/64) is taken, which is then divided by the factor",
        "result: everything is computed in float32 and rounded once",
        "interleaved: pairs stay side by side",
        "max_seq_len is 16,384 (line 56)",
    ):
        assert said in v32


def test_each_rule_is_told_in_words_of_its_own():
    v32 = models.get("deepseek-v3.2-exp")
    told = {}
    for rule in RULES:
        kv = dataclasses.replace(v32.kv, quant=LatentQuant(128, rule))
        steps = describe.page(dataclasses.replace(v32, kv=kv)).compression.steps
        (does,) = (step.does for step in steps if step.name == "quantisation")
        assert f" by {rule}: " in does
        told[rule] = does.replace(rule, "")
    assert len(set(told.values())) == len(RULES)
    assert "max(amax, 1e-4) × fp32(1/448), rounded up to a power of two" in told["act_quant"]
    before = "before the norm's last rounding"
    assert [rule for rule in RULES if before in told[rule]] == ["vllm_fused"]
