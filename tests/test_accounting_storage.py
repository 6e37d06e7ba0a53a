"""How weights are stored: packed codes, tiles with a scale each, and what is left as it is."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_models import BF16, BYTES, E4M3, FP32, I32, K2, THINKING, U8, V3, small, table, titled

from latentkv import models
from latentkv.accounting import Tensor, tensors
from latentkv.models.architecture import Architecture, Storage, VisionTower

TOWER = VisionTower(  # Kimi K2.5's: each linear layer and norm has a bias
    layers=27,
    hidden=1152,
    width=4304,
    attention=1152,
    patch=14,
    channels=3,
    positions=(64, 64),
    merged=4,
    bias=True,
)
ROUTED = re.compile(r"\.experts\.\d+\.")
LINEAR = {
    "q_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_b_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
}


def stored(architecture: Architecture, *modules: str) -> dict[str, tuple]:
    """Name, shape, dtype and parameters of these modules' tensors."""
    found = {}
    for one in tensors(architecture):
        if one.name.rpartition(".")[0] in modules:
            found[one.name.rpartition(".")[2]] = (one.shape, one.dtype, one.parameters)
    assert found, modules
    return found


def rows_of(width: int, **storage: object) -> dict[str, tuple]:
    """A routed expert's down-projection of ``width`` rows and 32 columns, and the others' 32 rows
    of ``width`` columns."""
    return stored(
        small(Storage(quantised="experts", **storage), hidden=width),  # type: ignore[arg-type]
        "model.layers.1.mlp.experts.3.gate_proj",
    )


@pytest.mark.case("F26-01")
def test_int4_weights_lie_in_words_of_eight():
    assert stored(THINKING, "model.layers.1.mlp.experts.0.gate_proj") == {
        "weight_packed": ((2048, 896), I32, 14_680_064),
        "weight_scale": ((2048, 224), BF16, 0),
        "weight_shape": ((2,), I32, 0),
    }
    assert stored(THINKING, "model.layers.60.mlp.experts.383.down_proj") == {
        "weight_packed": ((7168, 256), I32, 14_680_064),
        "weight_scale": ((7168, 64), BF16, 0),
        "weight_shape": ((2,), I32, 0),
    }
    # what other software takes the codes for
    assert 2048 * 896 == 1_835_008 == 14_680_064 // 8
    for module in ("self_attn.o_proj", "mlp.shared_experts.up_proj", "mlp.gate"):
        kinds = stored(THINKING, f"model.layers.1.{module}")
        assert kinds["weight"][1] == BF16 and "weight_packed" not in kinds
    total = titled(K2, "Routed experts")[0].total
    experts = (one for one in tensors(THINKING) if ".mlp.experts." in one.name)
    assert sum(one.parameters for one in experts) == total == 1_014_686_023_680


@pytest.mark.parametrize(
    ("vision", "frequencies", "tensors_in_all", "bytes_in_all", "parameters"),
    [
        # moonshotai/Kimi-K2-Thinking
        (None, 128, 208_276, 594_205_920_512, 1_026_408_232_448),
        # moonshotai/Kimi-K2.5
        (TOWER, 0, 208_550, 595_148_192_736, 1_026_879_376_368),
    ],
    ids=["K2-Thinking", "K2.5"],
)
def test_int4_checkpoints_have_their_published_sizes(
    vision, frequencies, tensors_in_all, bytes_in_all, parameters
):
    # Shapes in int64 would be 552,960 bytes more.
    attention = dataclasses.replace(K2.attention, frequencies=frequencies)
    found = table(dataclasses.replace(THINKING, attention=attention, vision=vision))
    assert (found.tensors, found.bytes) == (tensors_in_all, bytes_in_all)
    assert sum(found.parameters.values()) == parameters


@pytest.mark.parametrize(
    ("bits", "columns", "words"),
    [(4, 64, 8), (4, 60, 8), (4, 57, 8), (8, 64, 16), (8, 61, 16), (2, 64, 4), (2, 49, 4)]
    + [(3, 64, 7), (3, 60, 6), (3, 61, 7), (1, 64, 2), (1, 65, 3)],
)
def test_integers_of_any_width_fill_whole_words(bits, columns, words):
    # A word holds 32 // bits of them, so 10 of 3 bits, and the last word of a row may be part full.
    found = rows_of(columns, format="int", bits=bits, group=32)
    assert found == {
        "weight_packed": ((32, words), I32, 32 * columns),
        "weight_scale": ((32, math.ceil(columns / 32)), BF16, 0),
        "weight_shape": ((2,), I32, 0),
    }


@pytest.mark.parametrize(
    ("columns", "packed", "groups"), [(64, 32, 2), (63, 32, 2), (33, 17, 2), (32, 16, 1)]
)
def test_mxfp4_weights_lie_two_in_a_byte(columns, packed, groups):
    assert rows_of(columns, format="mxfp4", group=32) == {
        "weight_packed": ((32, packed), U8, 32 * columns),
        "weight_scale": ((32, groups), U8, 0),
    }


@pytest.mark.parametrize("group", [16, 32, 64, 128])
def test_a_group_of_any_size_has_one_scale(group):
    for form in ("mxfp4", "int"):
        scales = rows_of(96, format=form, group=group)["weight_scale"]
        assert scales[0] == (32, math.ceil(96 / group))


@pytest.mark.case("F24-12")
@pytest.mark.parametrize("name", ["kimi-k2", "deepseek-v3.2-exp", "deepseek-v3"])
def test_a_ragged_tile_has_a_scale_of_its_own(name):
    # To dequantise row 575 is left to the part that loads weights.
    model = V3 if name == "deepseek-v3" else models.get(name).architecture
    assert stored(model, "model.layers.0.self_attn.kv_a_proj_with_mqa") == {
        "weight": ((576, 7168), E4M3, 4_128_768),
        "weight_scale_inv": ((5, 56), FP32, 0),
    }
    # 576 rows are four tiles and the half of one, whose 64 rows are those of the shared key
    assert 576 - 4 * 128 == 64 == model.attention.rope


@pytest.mark.parametrize(
    ("block", "tiles"), [((128, 128), (1, 1)), ((16, 32), (3, 2)), ((36, 64), (1, 1))]
)
def test_tiles_of_any_sides(block, tiles):
    one = small(Storage(format="fp8_block", block=block))
    found = stored(one, "model.layers.0.self_attn.kv_a_proj_with_mqa")
    assert found["weight"] == ((36, 64), E4M3, 36 * 64)
    assert found["weight_scale_inv"] == (tiles, FP32, 0)


def test_only_linear_layers_of_blocks_are_quantised():
    for name in ("kimi-k2", "deepseek-v3.2-exp"):
        for one in tensors(models.get(name)):
            module = one.name.removesuffix("_scale_inv").split(".")[-2]
            wanted = module in LINEAR or module in ("wq_b", "wk")
            assert (one.dtype == E4M3 or one.name.endswith("_scale_inv")) == wanted, one.name


@pytest.mark.parametrize("form", ["mxfp4", "int", "fp8_block"])
def test_a_mixture_may_be_quantised_alone(form):
    for one in tensors(small(Storage(format=form, quantised="experts"))):
        module, _, last = one.name.rpartition(".")
        assert (last != "weight" or one.dtype == E4M3) == (
            bool(ROUTED.search(module)) or last == "e_score_correction_bias"
        )


WITH, WITHOUT = "language_model.", ""


@pytest.mark.case("F24-01")
@pytest.mark.parametrize("form", ["fp8_block", "int", "mxfp4"])
@pytest.mark.parametrize("listed", [WITH, WITHOUT])
@pytest.mark.parametrize("checkpoint", [WITH, WITHOUT])
def test_a_list_is_meant_with_and_without_the_prefix(listed, checkpoint, form):
    last = "self_attn.kv_a_proj_with_mqa"
    module, other = (f"model.layers.{layer}.{last}" for layer in (0, 1))
    escaped = re.escape(listed + module)
    for ignored in (listed + module, f"re:{escaped}", f"re:{escaped}$"):
        every = tensors(small(Storage(format=form, ignored=(ignored,)), prefix=checkpoint))
        rows = {one.name: one.dtype for one in every if last in one.name}
        assert rows.pop(f"{checkpoint}{module}.weight") == BF16, ignored
        # nothing else of it; the same module of the other layer is quantised
        assert rows and all(name.startswith(f"{checkpoint}{other}.weight") for name in rows)
        weight = rows.get(f"{checkpoint}{other}.weight")
        assert weight == (E4M3 if form == "fp8_block" else None)


def test_a_name_leaves_one_module_alone():
    storage = Storage(format="fp8_block", ignored=("model.layers.1.mlp.experts.7.up_proj",))
    left = [
        one.name
        for one in tensors(small(storage))
        if one.dtype == BF16 and ROUTED.search(one.name) and one.name.endswith(".weight")
    ]
    assert left == ["model.layers.1.mlp.experts.7.up_proj.weight"]


@pytest.mark.parametrize(
    "ignored",
    [
        r".*experts\.\d\.",
        r".*experts\..\.",
        r".*experts\.\w\.",
        r".*experts\.[^x]\.",
    ]
    + [r".*experts\.\d\.(gate|up|down)_proj", r".*experts\.[0-9]\.", r".*ts\.(0|1|2|3|[4-9])\."],
)
def test_a_pattern_may_tell_experts_apart_without_naming_a_number(ignored):
    # Each matches the numbers of one digit, 0 to 9, and neither 10 nor 11.
    storage = Storage(format="mxfp4", quantised="experts", ignored=(f"re:{ignored}",))
    packed = {
        int(one.name.split(".")[5])
        for one in tensors(small(storage))
        if one.name.endswith("_packed")
    }
    assert packed == {10, 11}


def reference(architecture: Architecture) -> Iterator[Tensor]:
    """Each module looked at by itself."""
    storage = architecture.storage
    prefix = architecture.prefix or "language_model."
    for one in tensors(dataclasses.replace(architecture, storage=Storage())):
        module, _, last = one.name.rpartition(".")
        if not _packs(module, last, storage.quantised) or _listed(module, prefix, storage.ignored):
            yield one
            continue
        rows, columns = one.shape
        values, groups = rows * columns, -(-columns // storage.group)
        if storage.format == "fp8_block":
            tiles = tuple(-(-n // side) for n, side in zip(one.shape, storage.block, strict=True))
            yield Tensor(one.name, one.shape, E4M3, values, values, False)
            yield _new(f"{one.name}_scale_inv", tiles, FP32)
        elif storage.format == "mxfp4":
            yield _new(f"{one.name}_packed", (rows, -(-columns // 2)), U8, values)
            yield _new(f"{one.name}_scale", (rows, groups), U8)
        else:
            words = -(-columns // (32 // storage.bits))
            yield _new(f"{one.name}_packed", (rows, words), I32, values)
            yield _new(f"{one.name}_scale", (rows, groups), BF16)
            yield _new(f"{one.name}_shape", (2,), I32, expected=True)


def _packs(module: str, last: str, quantised: str) -> bool:
    if last != "weight" or module.rpartition(".")[2] not in LINEAR:
        return False
    return quantised == "linear" or bool(ROUTED.search(module))


def _listed(module: str, prefix: str, ignored: tuple[str, ...]) -> bool:
    short = module.removeprefix(prefix)
    return any(
        re.match(one[3:], short) or re.match(one[3:], prefix + short)
        if one.startswith("re:")
        else one.removeprefix(prefix) == short
        for one in ignored
    )


def _new(
    name: str, shape: tuple[int, ...], dtype: str, parameters: int = 0, expected: bool = False
) -> Tensor:
    return Tensor(name, shape, dtype, math.prod(shape) * BYTES[dtype], parameters, expected)


MODULES = [one.name.rpartition(".")[0] for one in tensors(small(Storage()))]
# What lists of published checkpoints have, and what tells numbers apart in more ways than one.
PATTERNS = (
    [r".*self_attn.*", r".*mlp\.(gate|up|gate_up|down)_proj.*", r".*lm_head.*", r".*mlp.*_proj"]
    + [r".*\.experts\.1.*", r".*experts\.\d\.", r".*experts\.[02468]\.", r".*experts\..\..*up"]
    + [r"model\.layers\.1\..*", r"language_model\.model\.layers\.0.*", r".*\.\d\.mlp", r".*_proj$"]
    + [r".*experts\.\d+\.down_proj", r".*experts\.\w{2}\.", r"^model.*o_proj", r"layers"]
)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    module = draw(st.sampled_from(MODULES))
    prefix = draw(st.sampled_from([WITHOUT, WITH]))
    kind = draw(st.sampled_from(["name", "pattern", "blurred", "cut"]))
    if kind == "name":
        return prefix + module
    if kind == "pattern":
        return f"re:{draw(st.sampled_from(PATTERNS))}"
    parts = [re.escape(part) for part in (prefix + module).split(".")]
    if kind == "cut":
        return "re:" + r"\.".join(parts[: draw(st.integers(1, len(parts)))])
    at = draw(st.integers(0, len(parts) - 1))
    parts[at] = draw(st.sampled_from([r"\d", ".", ".*", r"\w", "[^1]", "..", r"\d+", "(0|11)"]))
    return "re:" + r"\.".join(parts)


@given(
    st.lists(patterns(), max_size=3).map(tuple),
    st.sampled_from([("fp8_block", 4), ("mxfp4", 4), ("int", 4), ("int", 3)]),
    st.sampled_from(["linear", "experts"]),
    st.sampled_from([WITHOUT, WITH]),
)
def test_any_list_of_ignored_modules(ignored, form, quantised, prefix):
    storage = Storage(
        format=form[0], bits=form[1], quantised=quantised, ignored=ignored, block=(16, 24)
    )
    model = small(storage, prefix=prefix)
    wanted = list(reference(model))
    for found, right in itertools.zip_longest(tensors(model), wanted):
        assert found == right


def test_an_fp8_checkpoints_names_mean_what_is_inside_them_and_ends_so():
    """As transformers takes modules_to_not_convert."""
    storage = Storage(format="fp8_block", ignored=("model.layers.0", "o_proj"))
    left = {
        one.name.rpartition(".")[0]
        for one in tensors(small(storage))
        if one.name.endswith("_proj.weight") and one.dtype == "bfloat16"
    }
    modules = {
        one.name.rpartition(".")[0]
        for one in tensors(small(Storage()))
        if one.name.endswith("_proj.weight")
    }
    assert left == {
        one for one in modules if one.startswith("model.layers.0.") or one.endswith(".o_proj")
    }
