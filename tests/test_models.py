"""The models' facts: reachable by name, complete, and equal to the published files."""

from __future__ import annotations

import dataclasses
import gzip
import json
import subprocess
import sys

import pytest
from published import K3, K3_INDEX, V32, agrees, needs_shared

from latentkv import models
from latentkv.models.spec import Fact, File, Lines, Model, Place

every_model = pytest.mark.parametrize("name", models.names())


def facts(model: Model) -> dict[str, Fact]:
    every = [*vars(model).items(), *vars(model.kv_latent_norm).items()]
    if model.rotation is not None:
        every += vars(model.rotation).items()
    return {name: value for name, value in every if isinstance(value, Fact)}


def test_names():
    assert models.names() == ("kimi-k2", "kimi-k3", "deepseek-v3.2-exp")


@every_model
def test_a_model_answers_to_its_name_and_its_repository(name):
    model = models.get(name)
    assert model.name == name
    for given in (name.upper(), f"  {name}\n", model.repository, model.repository.lower()):
        assert models.get(given) is model


def test_an_unknown_name_is_refused_in_plain_words():
    with pytest.raises(models.UnknownModelError) as caught:
        models.get("kimi-k22")
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).startswith("unknown model 'kimi-k22', did you mean kimi-k2?")
    assert all(name in str(caught.value) for name in models.names())


def test_every_beginning_of_a_name_suggests_a_name_that_begins_so():
    for name in models.names():
        for length in range(1, len(name)):
            with pytest.raises(models.UnknownModelError) as caught:
                models.get(name[:length])
            assert f"did you mean {name[:length]}" in str(caught.value)


@pytest.mark.parametrize("given", [None, 2, b"kimi-k2"])
def test_a_name_that_is_no_string_is_refused(given):
    with pytest.raises(TypeError, match="must be a str"):
        models.get(given)


@pytest.mark.parametrize(
    ("name", "order", "block_eps"),
    [
        ("kimi-k2", "cast_then_gain", 1e-6),
        ("kimi-k3", "cast_then_gain", 1e-5),
        ("deepseek-v3.2-exp", "gain_then_cast", 1e-6),
    ],
)
def test_contracts(name, order, block_eps):
    norms = models.get(name).norms
    assert {norms.kv_latent.order, norms.q_latent.order, norms.block.order} == {order}
    assert norms.kv_latent.eps == norms.q_latent.eps == 1e-6
    assert norms.block.eps == block_eps
    assert (norms.kv_latent.width, norms.q_latent.width, norms.block.width) == (512, 1536, 7168)


@every_model
def test_every_fact_has_a_place(name):
    found = facts(models.get(name))
    assert len(found) >= (15 if name == "kimi-k3" else 22)
    for fact in found.values():
        file = fact.place.file
        assert file.repository.count("/") == 1 and file.path and len(file.revision) == 12


def test_a_contract_and_its_source_cannot_disagree():
    k2 = models.get("kimi-k2")
    with pytest.raises(ValueError, match="kv_latent.width is 512, its source says 513"):
        dataclasses.replace(k2, kv_lora_rank=Fact(513, k2.kv_lora_rank.place))


def fact(value, like: Fact) -> Fact:
    return dataclasses.replace(like, value=value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("theta", 10000.0, "kv.rope.theta is 50000.0, its source says 10000.0"),
        ("factor", 64.0, "kv.rope.factor is 32.0, its source says 64.0"),
        ("original", 8192, "kv.rope.low is 19, its source says 21"),
        ("beta_fast", 32.0, "kv.rope.low is 19, its source says 8"),
        ("mscale", 0.707, "mscale 0.707 and mscale_all_dim 1.0 differ"),
    ],
)
def test_a_rotation_and_its_source_cannot_disagree(name, value, said):
    k2 = models.get("kimi-k2")
    wrong = dataclasses.replace(k2.rotation, **{name: fact(value, getattr(k2.rotation, name))})
    with pytest.raises(ValueError, match=f"kimi-k2: {said}"):
        dataclasses.replace(k2, rotation=wrong)


def test_the_parts_of_a_path_cannot_disagree():
    k2, k3, v32 = map(models.get, models.names())
    with pytest.raises(ValueError, match="kv.rope.max_positions is 131072, its source says 4096"):
        dataclasses.replace(k2, max_positions=fact(4096, k2.max_positions))
    with pytest.raises(ValueError, match="kv.key_width is 64, its source says 32"):
        dataclasses.replace(k2, qk_rope_head_dim=fact(32, k2.qk_rope_head_dim))
    with pytest.raises(ValueError, match="kv.rope and rotation must both be there, or neither"):
        dataclasses.replace(k2, rotation=None)
    with pytest.raises(ValueError, match="kv.rope and rotation must both be there, or neither"):
        dataclasses.replace(k3, rotation=k2.rotation)
    with pytest.raises(ValueError, match="kv.norm and norms.kv_latent differ"):
        dataclasses.replace(k2, kv=dataclasses.replace(k2.kv, norm=v32.kv.norm))


def test_the_steps_are_those_of_the_contract():
    v32 = models.get("deepseek-v3.2-exp")
    with pytest.raises(ValueError, match="deepseek-v3.2-exp: the steps are .*quantisation.*once"):
        dataclasses.replace(v32, kv=dataclasses.replace(v32.kv, quant=None))
    for steps in (v32.compression.steps[1:], v32.compression.steps * 2):
        short = dataclasses.replace(v32.compression, steps=steps)
        with pytest.raises(ValueError, match="kv wants each of cache, down-projection, norm,"):
            dataclasses.replace(v32, compression=short)


@pytest.mark.parametrize(
    ("name", "up", "scale", "positions"),
    [
        ("kimi-k2", 16384, 0.13086079996295005, 131072),
        ("kimi-k3", 24576, 0.07216878364870322, 1048576),
        ("deepseek-v3.2-exp", 32768, 0.1352337788608801, 163840),
    ],
)
def test_sizes_of_the_path(name, up, scale, positions):
    model = models.get(name)
    assert (model.down_width, model.up_width, model.head_width) == (576, up, 192)
    assert model.softmax_scale == scale
    assert model.max_positions.value == positions


def test_models_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        models.get("kimi-k2").name = "kimi-k4"


@pytest.mark.parametrize("lines", [(0, 3), (-1, 0), (5, 4)])
def test_lines_that_run_backwards_are_refused(lines):
    with pytest.raises(ValueError, match="must run upwards"):
        Lines(*lines)


def test_a_place_without_lines_is_refused():
    with pytest.raises(ValueError, match="at least one line"):
        Place(File("owner/name", "a.py", "0" * 12), ())


def test_lines_are_written_with_an_en_dash():
    assert File("owner/name", "a.py", "0" * 12).at(227, (340, 403)).label == "227, 340–403"


def test_no_torch():
    script = "import sys, latentkv.models; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@needs_shared
def test_kimi_k3_agrees_with_its_published_configuration():
    model, text = models.get("kimi-k3"), (K3 / "config.json").read_text("utf-8")
    agrees(model.hidden_size, text, "hidden_size")
    agrees(model.kv_lora_rank, text, "kv_lora_rank")
    agrees(model.q_lora_rank, text, "q_lora_rank")
    agrees(model.qk_rope_head_dim, text, "qk_rope_head_dim")
    agrees(model.qk_nope_head_dim, text, "qk_nope_head_dim")
    agrees(model.v_head_dim, text, "v_head_dim")
    agrees(model.heads, text, "num_attention_heads")
    agrees(model.max_positions, text, "max_position_embeddings")
    agrees(model.layers, text, "num_hidden_layers")
    agrees(model.dense_layers, text, "first_k_dense_replace")
    agrees(model.mtp_layers, text, "num_nextn_predict_layers")
    agrees(model.kv_latent_norm.gain_dtype, text, "dtype")
    eps = model.kv_latent_norm.eps_config
    agrees(eps, text, "rms_norm_eps")
    assert (eps.value, eps.place.label) == (1e-5, "245")
    config = json.loads(text)["text_config"]
    assert config["rms_norm_eps"] == model.norms.block.eps != model.norms.kv_latent.eps
    assert config["mla_use_nope"] is True and model.kv.rope is None
    assert not any(key.startswith("rope") for key in config)
    (listed,) = model.mla_layers.place.lines
    cited = "\n".join(text.splitlines()[listed.first - 1 : listed.last]).rstrip(",")
    layers = json.loads("{" + cited + "}")["full_attn_layers"]
    assert layers == config["linear_attn_config"]["full_attn_layers"]
    assert len(layers) == model.mla_layers.value


@needs_shared
def test_kimi_k3s_published_index_holds_as_many_gains():
    with gzip.open(K3_INDEX, "rt", encoding="utf-8") as file:
        names = json.load(file)["weight_map"]
    model = models.get("kimi-k3")
    suffix = f".self_attn.{model.kv_latent_norm.module}.weight"
    gains = [name for name in names if name.endswith(suffix)]
    assert len(gains) == model.instances == model.mla_layers.value == 24
    path = model.compression
    for part in (path.down, path.norm, path.up):
        first, last = f"{path.prefix}.{part}.weight".split("N")
        assert sum(name.startswith(first) and name.endswith(last) for name in names) == 24
    layers = sorted(int(name.removesuffix(suffix).rpartition(".")[2]) for name in gains)
    config = json.loads((K3 / "config.json").read_text("utf-8"))["text_config"]
    # the configuration counts from 1, the tensors from 0
    assert [n + 1 for n in layers] == config["linear_attn_config"]["full_attn_layers"]


@needs_shared
def test_deepseek_v32_agrees_with_its_published_configuration():
    model = models.get("deepseek-v3.2-exp")
    text = (V32 / "config_671B_v3.2.json").read_text("utf-8")
    agrees(model.hidden_size, text, "dim")
    agrees(model.kv_lora_rank, text, "kv_lora_rank")
    agrees(model.q_lora_rank, text, "q_lora_rank")
    agrees(model.qk_rope_head_dim, text, "qk_rope_head_dim")
    agrees(model.qk_nope_head_dim, text, "qk_nope_head_dim")
    agrees(model.v_head_dim, text, "v_head_dim")
    agrees(model.heads, text, "n_heads")
    agrees(model.layers, text, "n_layers")
    agrees(model.dense_layers, text, "n_dense_layers")
    assert "eps" not in text  # which is why the class's default applies to every norm
    for key in ("theta", "factor", "beta", "mscale", "max_seq_len"):
        assert key not in text  # which is why model.py's defaults apply to the rotation
    assert text.splitlines()[21].strip() == '"scale_fmt": "ue8m0",'  # cited by quantisation
