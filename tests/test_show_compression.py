"""What `latentkv show` says of the compression around the norm: steps, sizes, rotation, records."""

from __future__ import annotations

import pytest
import seeds
from pages import shown

from latentkv import models

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
    assert "act_quant: max(amax, 1e-4) × fp32(1/448), rounded up" in v32["quantisation"]


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
    if name == "kimi-k3" and seeds.SHARED.exists():
        assert "q_head_dim ** (-0.5)" in seeds.load()["Kimi K3"].line(int(told["lines"]))


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
