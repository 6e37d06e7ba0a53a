"""`latentkv show` and `latentkv check` with the path of a configuration in place of a name."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import configs
import pytest
from helpers import check_python
from pages import shown
from test_terminal import run, words
from typer.testing import CliRunner

from latentkv import _library, models
from latentkv.cli import app
from latentkv.conformance.path import identify_path, known
from latentkv.conformance.path.survey import subject

KINDS = ("deepseek_v3", "deepseek_v32", "kimi_k25", "kimi_linear", "minicpm3")


def write(folder, config):
    """A folder named after the type, with the configuration in it."""
    place = folder / f"tiny-{config['model_type']}"
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(config, indent=2))
    return str(place)


def check(*arguments):
    return CliRunner().invoke(app, ["check", *arguments])


@pytest.mark.parametrize("columns", ["30", "60", "100", "160"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_fits_its_width_and_says_what_json_says(kind, columns, tmp_path):
    place = write(tmp_path, configs.small(kind))
    environment = {"COLUMNS": columns, "NO_COLOR": "1"}
    result = CliRunner().invoke(app, ["show", place], env=environment)
    assert result.exit_code == 0 and not result.stderr
    assert max(map(len, result.stdout.splitlines())) <= int(columns)
    assert not re.search(r"[ \t]$", result.stdout, re.M)
    page = shown(place)
    said = [page["model"], page["arithmetic"], page["order_origin"], page["rotation"]]
    said += [one["width_origin"] for one in page["norms"]]
    said += [one["eps_origin"] for one in page["norms"]]
    said += [f"{one['parameters']:,}" for one in page["totals"]]
    said += [one["text"] for one in (*page["notes"], *page["unknown"])]
    text = words(result.stdout)
    assert not [one for one in said if words(one) not in text]


def test_the_page_is_printed_where_the_stream_carries_ascii_alone(tmp_path):
    place = write(tmp_path, configs.small("deepseek_v32"))
    result = run("show", place, COLUMNS="60", PYTHONIOENCODING="ascii")
    assert result.returncode == 0 and not result.stderr
    assert "y = gamma_KV * x / sqrt(m2(x) + eps)" in result.stdout
    assert "?" not in result.stdout


def test_a_folder_its_file_and_a_file_beside_have_the_same_page(tmp_path, monkeypatch):
    place = write(tmp_path, configs.small())
    page = shown(place)
    assert page == shown(f"{place}/config.json")
    assert page["model"] == "tiny-deepseek_v3" and page["follows"] == "kimi-k2"
    latent = page["norms"][0]["contract"]
    assert latent == {"width": 16, "eps": 1e-6, "order": "cast_then_gain"}
    assert page["path"]["rope"]["low"] == 10
    # (16 + 64) values of 2 bytes, in 4 layers
    assert [one["bytes_per_token"] for one in page["records"]] == [640]
    assert any("rms_norm_eps is 1e-05" in note["text"] for note in page["notes"])


def test_a_latent_of_some_layers_alone_is_cached_in_those(tmp_path):
    [record] = shown(write(tmp_path, configs.small("kimi_linear")))["records"]
    assert (record["layers"], record["bytes_per_token"]) == (1, 160)


def test_a_name_wins_over_a_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "kimi-k2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert shown("kimi-k2")["model"] == "Kimi K2"


def test_what_is_neither_name_nor_path_is_refused_with_a_hint():
    for command in ("show", "check"):
        result = CliRunner().invoke(app, [command, "kimi-k9"])
        assert result.exit_code == 2
        assert "unknown model 'kimi-k9', did you mean kimi-k3?" in result.stderr
        assert "A path of a config.json" in result.stderr


def test_a_configuration_that_gives_no_contract_is_refused(tmp_path):
    place = write(tmp_path, configs.small() | {"model_type": "longcat_flash"})
    for command in ("show", "check"):
        result = CliRunner().invoke(app, [command, place])
        assert result.exit_code == 2
        assert result.stderr.startswith("latentkv: config.json 2: model_type")
        assert "after the gain" in result.stderr


def test_a_configuration_is_shown_without_torch(tmp_path):
    place = write(tmp_path, configs.small())
    code = (
        "import sys; from latentkv.cli import app\n"
        f"app(['show', {place!r}], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    assert "Key–value latent RMSNorm" in check_python(code, PYTHONIOENCODING="utf-8")


def test_a_named_models_page_imports_nothing_of_configurations():
    code = (
        "import sys; from latentkv.cli import app\n"
        "app(['show', 'kimi-k2'], standalone_mode=False)\n"
        "assert not [one for one in sys.modules if one.startswith('latentkv.models.config')]\n"
    )
    check_python(code, PYTHONIOENCODING="utf-8")


THEIRS = """
def norm(x, gain, eps):
    wide = x.float()
    return gain * (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)

def config_eps(x, gain, eps):
    return norm(x, gain, 1e-5)

def unrotated(down, gain, eps, positions):
    return norm(down[:, :len(gain)], gain, eps), down[:, len(gain):]
"""


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("component", "function", "code"),
    [
        ([], "norm", 0),
        (["norm"], "config_eps", 1),
        (["path"], "unrotated", 0),
        (["path"], "norm", 2),
    ],
)
def test_an_implementation_is_held_against_a_configurations_contract(
    tmp_path, component, function, code
):
    place = write(tmp_path, configs.small("kimi_linear"))
    (tmp_path / "theirs.py").write_text(THEIRS)
    result = check(place, *component, "--impl", f"{tmp_path / 'theirs.py'}:{function}", "--json")
    assert result.exit_code == code, result.output
    if code < 2:
        [report] = json.loads(result.stdout)
        assert report["model"] == place
        assert report["grade"] == ("deviates" if code else "identical")


@pytest.mark.usefixtures("one_thread")
def test_a_rotating_configurations_path_is_held_by_our_own(tmp_path):
    place = write(tmp_path, configs.small("deepseek_v3", max_position_embeddings=4096))
    (tmp_path / "ours.py").write_text(
        "from latentkv import compress_kv, models\n"
        f"kv = models.from_config({place!r}).kv\n"
        "def path(down, gain, eps, positions):\n"
        "    return compress_kv(down, gain, kv, positions)\n"
    )
    result = check(place, "path", "--strict", "--impl", f"{tmp_path / 'ours.py'}:path")
    assert result.exit_code == 0, result.output


@pytest.mark.usefixtures("one_thread")
def test_transformers_class_is_built_with_the_configurations_own_rotation():
    # a base, a factor and a ramp that no model here has
    yarn = {**configs.YARN, "factor": 8.0, "original_max_position_embeddings": 512}
    given = configs.small(rope_theta=3e4, rope_scaling=yarn, max_position_embeddings=4096)
    held = subject("tiny", models.from_config(given))
    name = "transformers DeepseekV3"
    entry = next(one for one in known.found() if one.name == name)
    assert isinstance(entry, known.KnownPath), entry
    report = identify_path(entry.build(held), held.kv)
    assert (report.key, report.layout, report.roundings) == ("rotated", "half", "each_step")
    assert report.follows, report.reason


def test_a_path_without_a_contract_is_refused_with_the_reason(tmp_path):
    result = check(write(tmp_path, configs.small("minicpm3")), "path")
    assert result.exit_code == 2
    assert "config.json: key-value path: minicpm3 turns features i and i + width / 2" in (
        result.stderr
    )
    assert "Its norm can be checked" in result.stderr


def test_everything_found_here_is_held_against_a_configurations_contract(tmp_path):
    place = write(tmp_path, configs.small("kimi_linear"))
    result = subprocess.run(
        [sys.executable, "-m", "latentkv", "check", place, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    reports = {one["implementation"]: one for one in json.loads(result.stdout)}
    assert {one["model"] for one in reports.values()} == {place}
    # the compiled ones run in a process of their own, which reads the configuration again
    assert {"Kimi, torch.compile", "transformers KimiLinear"} <= reports.keys()
    assert reports["Kimi, eager PyTorch"]["grade"] == "identical"
    assert reports["DeepSeek, eager PyTorch"]["grade"] == "deviates"
    for name in _library.instruction_sets():
        assert reports[f"latentkv, {name}"]["grade"] == "identical"


def test_configurations_are_exported():
    assert {"ConfigError", "Configured", "from_config"} <= set(models.__all__)
    assert models.from_config(configs.small()).model_type == "deepseek_v3"
    with pytest.raises(AttributeError, match="no attribute 'from_confg'"):
        models.from_confg  # noqa: B018
