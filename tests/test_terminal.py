"""`latentkv` as a process: every width and encoding, misuse, help, and what it leaves alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from latentkv import models
from latentkv.describe import page
from latentkv.screen import to_ascii
from latentkv.terminal_compression import byte_diagram

DISPLAYED = [models.get(name).display for name in models.names()]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, without the caller's terminal settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTHONIOENCODING", "LC_ALL")
    }
    return subprocess.run(
        [sys.executable, "-m", "latentkv", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**kept, "PYTHONIOENCODING": "utf-8", **environment},
        timeout=60,
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("columns", ["30", "60", "100", "160"])
@pytest.mark.parametrize("arguments", [("show",), *(("show", name) for name in models.names())])
def test_the_page_fits_its_width(arguments, columns, encoding):
    result = run(*arguments, COLUMNS=columns, NO_COLOR="1", PYTHONIOENCODING=encoding)
    assert result.returncode == 0 and not result.stderr
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= int(columns)
    assert not re.search(r"[ \t]$", result.stdout, re.M)


def words(text: str) -> str:
    """Without layout: what a wrapped line, a table's rules and its columns leave."""
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("columns", ["40", "100", "200"])
@pytest.mark.parametrize("name", models.names())
def test_the_page_says_all_that_json_says(name, columns):
    page = json.loads(run("show", name, "--json").stdout)
    text = words(run("show", name, COLUMNS=columns).stdout)
    for said in (
        page["title"],
        " › ".join(page["path"]),
        "learned",
        " ".join(map(str, page["call"].values())),
        page["summary"],
        f"{page['code']['file']} {page['code']['heading']}",
        page["arithmetic"]["sentence"].rstrip("."),
        f"({page['arithmetic']['file']} {page['arithmetic']['lines']})",
        page["eps"]["origin"].rstrip("."),
        f"({page['eps']['file']} {page['eps']['lines']})",
        page["order"],
        page["module"]["gain"]["owner"],
        page["parameters"]["calculation"]["total"],
        page["parameters"]["calculation"]["whole_model_total"],
        page["parameters"]["counts"]["whole_model_instances"],
        page["verdict"],
        "512 kv latent]",
        *page["code"]["ranges"],
    ):
        assert words(said) in text, said
    for source in page["sources"]:
        for key in ("id", "grade", "claim", "repository", "file", "revision", "lines"):
            assert words(source[key]) in text


@pytest.mark.parametrize("columns", ["60", "100", "160"])
@pytest.mark.parametrize("name", models.names())
def test_the_page_says_all_of_the_compression(name, columns):
    told = json.loads(run("show", name, "--json").stdout)["compression"]
    text = words(run("show", name, COLUMNS=columns).stdout)
    said = [told["softmax"]["formula"], str(told["softmax"]["scale"])]
    for step in told["steps"]:
        said += [step["name"], step["expression"], step["does"].rstrip("."), step["note"]]
        said += [
            f"{step['file']} {step['lines']}",
            f"[{', '.join(map(str, step['output']['shape']))}]",
        ]
    for weight in told["weights"]:
        said += [weight["tensor"], *weight["parameters"]["calculation"].values()]
    said += told["together"]["calculation"].values()
    if told["rotation"]:
        said += [value for value in told["rotation"].values() if isinstance(value, str)]
    for setting in (told["max_positions"], *(told["rotation"] or {"settings": []})["settings"]):
        said += [f"({setting['file']} {setting['lines']})", setting["note"]]
    for record in told["records"]:
        said += [record["name"], f"{record['bytes']:,} bytes a token and layer"]
        said += record["calculation"].values()
    for one in said:
        assert words(one) in text, one


@pytest.mark.parametrize("name", ["kimi-k2", "deepseek-v3.2-exp"])
@pytest.mark.parametrize("width", range(28, 120))
def test_the_byte_diagram(name, width):
    for record in page(models.get(name)).compression.records:
        drawn = byte_diagram(record, width)
        lines = drawn.splitlines()
        plain = to_ascii(drawn).splitlines()
        assert max(map(len, lines)) <= width
        assert [len(line) for line in plain] == [len(line) for line in lines]
        offsets = [0, *(field.end for field in record.fields)]
        if lines[0].startswith("byte"):  # in a row: each offset above its rule
            rules = [match.start() for match in re.finditer("[┌┬┐]", lines[1])]
            assert rules == [match.start() for match in re.finditer("[└┴┘]", lines[-1])]
            assert [match.start() for match in re.finditer("│", lines[2])] == rules
            starts = [match.start() for match in re.finditer(r"\d+", lines[0])]
            assert (starts, list(map(int, re.findall(r"\d+", lines[0])))) == (rules, offsets)
            assert len({len(line) for line in lines[1:]}) == 1
        else:  # in a column: each offset before its rule
            assert [int(line.split()[0]) for line in lines if re.search("[┌├└]", line)] == offsets
            assert len({len(line) for line in lines}) == 1
        for field in record.fields:
            for text in (field.name, f"{field.count} {field.dtype}", f"{field.bytes:,} bytes"):
                assert f" {text} " in drawn


def test_the_byte_diagram_in_full():
    (record,) = page(models.get("kimi-k2")).compression.records
    assert byte_diagram(record, 40).splitlines() == [
        "byte 0               1024          1152",
        "     ┌───────────────┬─────────────┐",
        "     │ latent        │ key         │",
        "     │ 512 bfloat16  │ 64 bfloat16 │",
        "     │ 1,024 bytes   │ 128 bytes   │",
        "     └───────────────┴─────────────┘",
    ]
    assert to_ascii(byte_diagram(record, 30)).splitlines() == [
        "   0 +--------------+",
        "     | latent       |",
        "     | 512 bfloat16 |",
        "     | 1,024 bytes  |",
        "1024 +--------------+",
        "     | key          |",
        "     | 64 bfloat16  |",
        "     | 128 bytes    |",
        "1152 +--------------+",
    ]


@pytest.mark.parametrize(
    "arguments",
    [("show",), ("show", "kimi-k3"), ("show", "deepseek-v3.2-exp"), ("show", "--json")],
)
@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONIOENCODING": ""}]
)
def test_a_stream_without_unicode_is_served(arguments, environment):
    result = run(*arguments, **environment)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    if environment["PYTHONIOENCODING"]:
        assert result.stdout.isascii()
        assert "?" not in result.stdout  # everything has a spelling of its own
    if "--json" in arguments:
        assert [page["model"] for page in json.loads(result.stdout)] == DISPLAYED


def test_colour_is_used_only_where_it_is_wanted():
    assert "\x1b[" in run("show", "kimi-k2", FORCE_COLOR="1", TERM="xterm-256color").stdout
    assert "\x1b" not in run("show", "kimi-k2").stdout


@pytest.mark.parametrize("arguments", [["show"], ["show", "--json"], ["show", "kimi-k2"]])
def test_a_reader_that_leaves_early_sees_no_traceback(arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "latentkv", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait(60)
    assert errors == b""


@pytest.mark.parametrize("arguments", ["'show'", "'show', 'kimi-k2'", "'show', '--json'", "'-h'"])
def test_torch_is_not_imported(arguments):
    script = (
        f"import sys; sys.argv = ['latentkv', {arguments}]\n"
        "from latentkv.cli import main\n"
        "try: main()\n"
        "finally: assert 'torch' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr.decode()


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("kimi-k22", "kimi-k2"),
        ("k2", "kimi-k2"),
        ("deepseek", "deepseek-v3.2-exp"),
        ("DeepSeek-V3.2", "deepseek-v3.2-exp"),
        ("moonshotai/Kimi-K2", "kimi-k2"),
        ("kimi_k3", "kimi-k3"),
        ("", ""),
        ("   ", ""),
        ("gpt", ""),
        ("–" * 5000, ""),
        ("../kimi-k2\n\x1b[0m", "kimi-k2"),
    ],
)
def test_an_unknown_model_is_misuse(given, nearest):
    result = run("show", given)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr and "\x1b" not in result.stderr
    assert len(result.stderr) < 400
    assert repr(given[:20])[:-1] in result.stderr
    assert all(name in result.stderr for name in models.names())
    assert ("did you mean" in result.stderr) == bool(nearest)
    assert f"did you mean {nearest}?" in result.stderr or not nearest


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "kimi-k2", "norm", "more"], "more"),
        (["show", "--yaml"], "--yaml"),
        (["shw"], "show"),
        ([], "show"),
    ],
)
def test_misuse_of_the_command_line(arguments, said):
    result = run(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert said in result.stdout + result.stderr


def test_help_names_the_models_and_the_commands():
    assert all(name in run("--help").stdout for name in models.names())
    assert "show" in run("--help").stdout
    text = run("show", "--help", COLUMNS="200").stdout
    assert "--json" in text and all(name in text for name in models.names())


def test_version_tells_what_runs():
    result = run("--version")
    assert result.returncode == 0, result.stderr
    told = dict(line.rsplit(" ", 1) for line in result.stdout.splitlines())
    assert list(told) == ["latentkv", "torch", "backend", "instruction set"]
    assert told["backend"] in ("definition", "cpu", "triton")
