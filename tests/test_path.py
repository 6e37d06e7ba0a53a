"""The key-value path's kernel equals its definition, bit for bit, whatever the arrangement."""

import ctypes
import ctypes.util
import hashlib
import math

import pytest
import torch
from helpers import (
    DTYPES,
    INSTRUCTION_SETS,
    ORDERS,
    PAIRS,
    assert_same,
    check_python,
    from_bits,
    name_of,
    on_each_instruction_set,
    output_dtype,
    random_gain,
    random_rows,
)

import latentkv
from latentkv import (
    KVContract,
    LatentQuant,
    NormContract,
    RopeContract,
    _library,
    definition,
    models,
)
from latentkv.contracts import RULES

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# Layout and rounding; the models' are half_each_step (K2), interleaved_result (V3.2), none (K3).
ROTATIONS = ("", "half_each_step", "half_result", "interleaved_each_step", "interleaved_result")
ALL_RULES = ("", *RULES)
POSITIONS = 60  # a short table: thousands are built here; test_the_models_sizes has long ones
K2, V32 = (models.get(name).kv for name in ("kimi-k2", "deepseek-v3.2-exp"))


def path(
    width=512,
    key_width=64,
    order="cast_then_gain",
    rotation="",
    rule="",
    group=None,
    eps=1e-6,
    max_positions=POSITIONS,
):
    """A contract with a short table; the group is the whole latent if none is named."""
    rope = None
    if rotation:
        layout, _, rounding = rotation.partition("_")
        rope = RopeContract(
            key_width, 10000.0, 40.0, 1, 3, "inverse", rounding, layout, max_positions
        )
    quant = LatentQuant(group or width, rule) if rule else None
    return KVContract(NormContract(width, eps, order), key_width, rope, quant)


def groups_gain(width, group, dtype=BF16, seed=1):
    """2^-16 to 2^8 by group: the floors under a scale lie between, and fp16 has subnormals."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-16, 9, (width // group, 1), generator=generator).float()
    values = random_gain(width, FP32, seed).view(-1, group) * torch.exp2(exponents)
    return values.flatten().to(dtype)


def some_positions(*shape, dtype=torch.int64, seed=2, below=POSITIONS):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, below, shape, generator=generator, dtype=dtype)


def check(contract, down, gain, positions=None, what=""):
    """On each instruction set: values, dtypes, and outputs without strides of their own."""
    right = definition.compress_kv(down, gain, contract, positions)

    def on(name):
        actual = latentkv.compress_kv(down, gain, contract, positions)
        for value, expected, part in zip(actual, right, ("latent", "key"), strict=True):
            assert value.is_contiguous()
            assert_same(value, expected, f"{name} {what} {part}")

    on_each_instruction_set(on)


# 126 is three vectors of 32 and a rest, in two groups of 63, one vector and a rest; 34 is also
# one vector and a rest. Rows: none, less than a chunk (32), one more than it, and eight of them
# where the dtypes are equal: mixed dtypes share the walk over rows with those.
@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_same_bits_as_the_definition(pair, order, rotation):
    most = 257 if pair[0] == pair[1] else 33
    down = random_rows(most, 160, dtype=pair[0], seed=3)
    down[2, :63] = 0  # a group of zeros
    gain, positions = groups_gain(126, 63, pair[1]), some_positions(most)
    for rule in ALL_RULES:
        contract = path(126, 34, order, rotation, rule, 63)
        right = definition.compress_kv(down, gain, contract, positions)
        assert right[0].dtype == output_dtype(*pair, order) and right[1].dtype == pair[0]

        def on(name, contract=contract, right=right, rule=rule):
            for rows in (0, 1, 3, 4, 5, 33, most):
                part = slice(0, rows)
                actual = latentkv.compress_kv(down[part], gain, contract, positions[part])
                for value, expected in zip(actual, right, strict=True):
                    assert_same(value, expected[part], f"{name} {rows} {rule}")

        on_each_instruction_set(on)


@pytest.mark.parametrize("model", [K2, V32], ids=["kimi-k2", "deepseek-v3.2-exp"])
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_the_models_sizes(pair, model):
    # 33 rows of the real widths, at positions to the end of the real table.
    down, gain = random_rows(33, 576, dtype=pair[0]), groups_gain(512, 128, pair[1])
    last = model.rope.max_positions - 1
    positions = some_positions(33, below=last)
    positions[5] = last
    check(model, down, gain, positions)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_every_tail_of_a_group(dtype):
    # 1 to 67 features: every tail of every vector, up to two of 32 and a rest; three groups, so
    # that one begins at every alignment and the last ends with the row.
    for group in range(1, 68):
        width = 3 * group
        down, gain = (
            random_rows(3, width, dtype=dtype, seed=group),
            groups_gain(width, group, dtype),
        )
        for rule in RULES:
            order = ORDERS[group % 2]
            check(path(width, 0, order, "", rule, group), down, gain, what=f"group {group} {rule}")


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_every_tail_of_a_key(dtype, rotation):
    # To two vectors of 32 and a rest; then around the 128 pairs that are worked on at once.
    for key_width in (*range(2, 70, 2), 254, 256, 258, 300, 512, 514):
        contract = path(5, key_width, "gain_then_cast", rotation, max_positions=64)
        down = random_rows(3, 5 + key_width, dtype=dtype, seed=key_width)
        check(contract, down, random_gain(5, dtype), torch.tensor([0, 63, 17]), f"{key_width}")


@pytest.mark.parametrize(("width", "group"), [(1, 1), (5, 5), (5, 1), (96, 32), (130, 65)])
@pytest.mark.parametrize("key_width", [0, 2, 6, 34, 62, 64, 300])
def test_other_widths_than_the_models(width, group, key_width):
    # Latent and key together: where one ends, the other begins, at any alignment.
    down = random_rows(5, width + key_width, seed=width + key_width)
    for rotation in ROTATIONS if key_width else ("",):
        for rule in ALL_RULES:
            contract = path(width, key_width, ORDERS[width % 2], rotation, rule, group)
            check(
                contract, down, groups_gain(width, group), some_positions(5), f"{rotation} {rule}"
            )


def views():
    """Layouts in which the rows come, and others: name -> view [..., 576]."""
    batch = random_rows(3, 5, 4, 576, seed=23)
    return {
        "row": random_rows(576, seed=24),
        "packed": random_rows(7, 576, seed=25),
        "slice-2112": random_rows(7, 2112, seed=20)[:, 1536:],  # behind the query's 1,536
        "slice-2112-from-3": random_rows(7, 2112, seed=20)[:, 3:579],
        "slice-3d": random_rows(2, 3, 640, seed=21)[..., 32:608],
        "slice-3d-one-row-each": random_rows(40, 3, 640, seed=21)[:, :1, :576],
        "every-second-row": random_rows(80, 576, seed=27)[::2],
        "permuted": batch.permute(2, 0, 1, 3),
        "permuted-slice": batch[:, 1:4].permute(1, 2, 0, 3),
        "expanded": random_rows(1, 576, seed=28).expand(40, 576),
        "expanded-inside": random_rows(4, 1, 576, seed=29).expand(4, 3, 576),
        "expanded-outside": random_rows(3, 576, seed=30).expand(4, 3, 576),
        "overlapping": random_rows(1300, seed=31).as_strided((5, 576), (100, 1)),
        "size-one-dims": random_rows(4, 576, seed=32).as_strided((1, 4, 1, 576), (7, 576, 3, 1)),
        "five-dims": random_rows(2, 2, 2, 2, 640, seed=33)[..., :576].permute(3, 1, 0, 2, 4),
        "no-rows": random_rows(4, 576, seed=34)[:0],
        "no-rows-inside": torch.empty(2, 0, 576, dtype=BF16),
    }


@pytest.mark.parametrize("layout", views())
def test_any_leading_strides(layout):
    down, gain = views()[layout], groups_gain(512, 128)
    packed = down.clone(memory_format=torch.contiguous_format)
    positions = some_positions(*down.shape[:-1])
    for contract in (
        path(rotation="half_each_step"),
        path(order="gain_then_cast", rotation="interleaved_result", rule="act_quant", group=128),
        path(rule="vllm_fused", group=128),
        path(order="gain_then_cast", rule="vllm_fused", group=128),
    ):
        right = definition.compress_kv(packed, gain, contract, positions)
        assert_same(definition.compress_kv(down, gain, contract, positions)[0], right[0])

        def on(name, contract=contract, right=right):
            actual = latentkv.compress_kv(down, gain, contract, positions)
            for value, expected in zip(actual, right, strict=True):
                assert value.is_contiguous()
                assert_same(value, expected, name)

        on_each_instruction_set(on)


def position_views(dtype):
    """Positions of rows [3, 4, ...]: name -> tensor that is, or broadcasts to, [3, 4]."""
    many = some_positions(6, 8, dtype=dtype)
    return {
        "one for all": many[0, 0],
        "one for all, in a list": many[0, :1],
        "last dimension": many[0, :4],
        "last dimension, strided": many[0, ::2],
        "first dimension": many[:3, :1],
        "first dimension, strided": many[::2, 1:2],
        "full": many[:3, :4].clone(),
        "slice": many[1:4, 2:6],
        "strided": many[::2, ::2],
        "transposed": some_positions(4, 3, dtype=dtype).t(),
        "expanded": many[:3, :1].expand(3, 4),
        "one expanded": many[0, 0].expand(3, 4),
    }


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=name_of)
@pytest.mark.parametrize("view", position_views(torch.int64))
def test_any_positions(view, dtype):
    down, gain = random_rows(3, 4, 576), random_gain(512)
    positions = position_views(dtype)[view]
    every = positions.expand(3, 4).long().contiguous()
    for contract in (path(rotation="half_each_step"), path(rotation="interleaved_result")):
        check(contract, down, gain, positions)
        _, key = latentkv.compress_kv(down, gain, contract, positions)
        assert_same(key, latentkv.compress_kv(down, gain, contract, every)[1])
        for i in range(3):  # each row by itself, with a position of its own
            for j in range(4):
                alone = latentkv.compress_kv(down[i, j], gain, contract, every[i, j])[1]
                assert_same(key[i, j], alone, f"{i} {j}")


def test_leading_dims_are_a_matter_of_shape(instruction_set):
    contract = path(rotation="half_each_step", rule="act_quant", group=128)
    down, gain, positions = random_rows(12, 576), groups_gain(512, 128), some_positions(12)
    flat = latentkv.compress_kv(down, gain, contract, positions)
    for leading in ((3, 4), (12, 1), (2, 1, 6), (2, 3, 2)):
        shaped = latentkv.compress_kv(
            down.reshape(*leading, 576), gain, contract, positions.reshape(leading)
        )
        for value, expected in zip(shaped, flat, strict=True):
            assert_same(value, expected.reshape(*leading, -1))


# The chunk of 32 rows and its neighbours; many of them.
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 257])
@pytest.mark.parametrize("rule", ALL_RULES)
def test_a_row_does_not_depend_on_the_batch(instruction_set, rule, rows):
    # Alone, and first, in the middle and last among rows of NaN, infinity and huge values.
    contract = path(rotation="half_each_step", rule=rule, group=128)
    row, gain = random_rows(576, seed=5), groups_gain(512, 128)
    alone = latentkv.compress_kv(row, gain, contract, torch.tensor(17))
    for other in (math.nan, math.inf, 3e38):
        for place in sorted({0, rows // 2, rows - 1}):
            down = torch.full((rows, 576), other, dtype=BF16)
            down[place] = row
            positions = torch.full((rows,), 59)
            positions[place] = 17
            for value, expected in zip(
                latentkv.compress_kv(down, gain, contract, positions), alone, strict=True
            ):
                assert_same(value[place], expected, f"{place} of {rows} beside {other}")


def test_the_definition_does_not_depend_on_the_batch():
    down, gain, positions = random_rows(257, 576), groups_gain(512, 128), some_positions(257)
    for rule in ALL_RULES:
        contract = path(rotation="interleaved_result", rule=rule, group=128)
        right = definition.compress_kv(down, gain, contract, positions)
        for row in (0, 128, 255, 256):
            alone = definition.compress_kv(down[row], gain, contract, positions[row])
            for value, expected in zip(alone, right, strict=True):
                assert_same(value, expected[row], f"{row} {rule}")


@pytest.mark.parametrize(
    ("rotation", "rule"),
    [("half_each_step", ""), ("interleaved_result", "act_quant"), ("", "vllm_fused")],
)
def test_any_number_of_threads(threads, rotation, rule):
    # 1,021 rows are 16 shares of a thread; a prime, so that no split is even.
    contract = path(rotation=rotation, rule=rule, group=128)
    down, gain = random_rows(1021, 2112, seed=1)[:, 1536:], groups_gain(512, 128)
    positions = some_positions(1021, dtype=torch.int32)
    right = definition.compress_kv(down, gain, contract, positions)
    batch = down[:1020].unflatten(0, (4, 255)).transpose(0, 1)  # a run ends inside a share
    turned = positions[:1020].unflatten(0, (4, 255)).transpose(0, 1)
    for count in (1, 2, 7):
        torch.set_num_threads(count)

        def on(name, count=count):
            actual = latentkv.compress_kv(down, gain, contract, positions)
            across = latentkv.compress_kv(batch, gain, contract, turned)
            for value, other, expected in zip(actual, across, right, strict=True):
                assert_same(value, expected, f"{name} {count} threads")
                packed = other.transpose(0, 1).reshape(1020, -1)
                assert_same(packed, expected[:1020], f"{name} {count} threads, transposed")

        on_each_instruction_set(on)
        assert torch.get_num_threads() == count


@pytest.mark.parametrize("rule", ["", "act_quant"])
def test_outputs_past_the_caches(rule):
    # Above 16 MiB the latent is written past the caches, by other instructions.
    rows = 17 * 2**20 // 1024 + 3
    contract = path(rotation="half_each_step", rule=rule, group=128)
    check(contract, random_rows(rows, 576), groups_gain(512, 128), some_positions(rows))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_any_alignment(instruction_set, dtype):
    # Offsets of 1 to 31 elements: every alignment within 64 bytes.
    gain, positions = groups_gain(130, 65, dtype), some_positions(5)
    down = random_rows(5, 164, dtype=dtype)
    contract = path(130, 34, "gain_then_cast", "half_each_step", "act_quant", 65)
    right = definition.compress_kv(down, gain, contract, positions)

    def moved(value, by):
        storage = torch.full((value.numel() + 64,), 99).to(value.dtype)
        return storage[by : by + value.numel()].view(value.shape).copy_(value)

    for offset in range(1, 32):
        actual = latentkv.compress_kv(
            moved(down, offset), moved(gain, 32 - offset), contract, moved(positions, offset)
        )
        for value, expected in zip(actual, right, strict=True):
            assert_same(value, expected, f"offset {offset}")


@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_special_values_anywhere(pair, rule):
    # In each place of a vector and of the tail, of the latent and of the key: 35 is a vector of 32
    # and a rest, 34 too. 7 groups of 5: a special value leaves the six others alone.
    width, key_width, special = 35, 34, torch.finfo(pair[0])
    base = random_rows(69, 69, dtype=pair[0], seed=8)
    gain, positions = groups_gain(width, 5, pair[1]), some_positions(69)
    diagonal = torch.eye(69, dtype=torch.bool)
    for order in ORDERS:
        contract = path(width, key_width, order, "half_each_step", rule, 5)
        for value in (math.nan, math.inf, -math.inf, 0.0, -0.0, special.max, special.tiny):
            check(contract, base.masked_fill(diagonal, value), gain, positions, f"{value}")
        for value in (math.nan, math.inf, 0.0, torch.finfo(pair[1]).max, torch.finfo(pair[1]).tiny):
            scale = gain.clone()
            scale[12], scale[34] = value, -value
            check(contract, base[:3], scale, positions[:3], f"{value} in the gain")
        for value in (0.0, -0.0, math.nan, math.inf, special.max, special.tiny, special.tiny / 4):
            rows = torch.full((2, 69), value, dtype=pair[0])
            check(contract, rows, gain, positions[:2], f"{value} throughout")


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=name_of)
def test_all_65536_values_as_key(dtype, rotation):
    # Infinities, NaN, subnormals, overflow; beside their neighbours and beside anything.
    values = from_bits(range(65536), dtype)
    shuffled = values[torch.randperm(65536, generator=torch.Generator().manual_seed(0))]
    contract = path(1, 64, rotation=rotation)
    positions = some_positions(1024)
    for keys in (values, shuffled):
        down = torch.cat([torch.ones(1024, 1, dtype=dtype), keys.view(1024, 64)], -1)
        check(contract, down, torch.ones(1, dtype=dtype), positions)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=name_of)
def test_all_65536_values_as_latent(dtype, rule):
    # Rows of ones with eps too small to count: the gain is the latent, each value of the format.
    # Groups of 2 (one magnitude) and of 512 (from order, and from shuffling, both kinds).
    values = from_bits(range(65536), dtype)
    shuffled = values[torch.randperm(65536, generator=torch.Generator().manual_seed(0))]
    finite = torch.where(shuffled.isfinite(), shuffled, 1)
    ones = torch.ones(1, 65536, dtype=dtype)
    for gain, group in ((values, 2), (values, 512), (shuffled, 2), (finite, 512)):
        for order in ORDERS:
            contract = path(65536, 0, order, "", rule, group, eps=2.0**-126)
            check(contract, ones, gain, what=f"{group} {order}")


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_inputs_stay_as_they_are(instruction_set, dtype):
    inputs = (random_rows(5, 576, dtype=dtype), random_gain(512, dtype), some_positions(5))
    copies = [value.clone() for value in inputs]
    for rotation in ROTATIONS:
        for rule in ALL_RULES:
            contract = path(rotation=rotation, rule=rule, group=128)
            down, gain, positions = inputs
            outputs = latentkv.compress_kv(down, gain, contract, positions)
            again = latentkv.compress_kv(down, gain, contract, positions)
            for value, copy in zip(inputs, copies, strict=True):
                assert_same(value, copy)
            owners = {v.untyped_storage().data_ptr() for v in (*inputs, *outputs, *again)}
            assert len(owners) == 7  # nothing shares memory with anything


def test_negated_views(instruction_set):
    # torch keeps a sign as a flag on a view: it must have been applied before memory is read.
    contract = path(rotation="half_each_step", rule="act_quant", group=128)
    down, gain, positions = random_rows(5, 576), groups_gain(512, 128), some_positions(5)
    flagged = torch._neg_view(down)
    assert flagged.is_neg()
    right = definition.compress_kv(-down, gain, contract, positions)
    negated = torch._neg_view(-positions)
    for actual in (
        latentkv.compress_kv(flagged, gain, contract, positions),
        latentkv.compress_kv(-down, gain, contract, negated),
    ):
        for value, expected in zip(actual, right, strict=True):
            assert_same(value, expected)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=name_of)
def test_autocast_changes_nothing(instruction_set, dtype):
    contract = path(rotation="half_each_step", rule="act_quant", group=128)
    down, gain, positions = random_rows(5, 576, dtype=dtype), random_gain(512), some_positions(5)
    right = definition.compress_kv(down, gain, contract, positions)
    with torch.autocast("cpu", dtype=FP16):
        actual = latentkv.compress_kv(down, gain, contract, positions)
        defined = definition.compress_kv(down, gain, contract, positions)
    for value, other, expected in zip(actual, defined, right, strict=True):
        assert_same(value, expected)
        assert_same(other, expected)


SUBNORMALS = """
import torch, latentkv
from latentkv import definition
from helpers import ORDERS, assert_same, on_each_instruction_set
from test_path import ROTATIONS, ALL_RULES, path, some_positions

torch.set_num_threads(1)  # no worker starts before a mode is set
# Subnormal everywhere: rows, gain, products, scales. 140 x 512 is more than one thread's share.
steps = torch.arange(-288.0, 288.0).repeat(140, 1)
down, positions = steps * 2.0**-149, some_positions(140)
gain = torch.arange(1.0, 513.0) * 2.0**-140
ones = torch.ones(512)
kinds = list(zip(ORDERS * 3, (*ROTATIONS, ""), ALL_RULES))
gains = ((ones, 1.0), (gain * 2.0**75, 2.0**-126))
cases = [(g, path(512, 64, order, rotation, rule, 128, eps))
         for g, eps in gains for order, rotation, rule in kinds]
right = [definition.compress_kv(down, g, c, positions) for g, c in cases]
subnormal = [[((v != 0) & (v.abs() < 2.0**-126)).sum().item() for v in r] for r in right]
assert sum(latent > 14_000 for latent, _ in subnormal) >= 5
assert all(key > 8_900 for _, key in subnormal)
torch.set_num_threads(2)
assert torch.set_flush_denormal(True)
torch.ones(1_000_000) * 2  # workers start with the mode, and keep it

def flushes():
    return bool(torch.ones((), dtype=torch.int32).view(torch.float32) * 1 == 0)

def check(name, compute=latentkv):
    for (g, c), expected in zip(cases, right):
        for value, wanted in zip(compute.compress_kv(down, g, c, positions), expected):
            assert_same(value, wanted, f"{name} {c}")
        assert flushes()

on_each_instruction_set(check)
check("definition", definition)
"""


def test_flushing_has_no_effect():
    # In a process of its own: the mode of worker threads can't be taken back. The variable keeps
    # OpenMP from starting one before the mode is set.
    check_python(SUBNORMALS, OMP_NUM_THREADS="1")


def test_the_definition_with_flushing_on():
    check_python(SUBNORMALS, LATENTKV_BACKEND="definition", OMP_NUM_THREADS="1")


@pytest.mark.skipif(_library.backend() != "cpu", reason="the promise is the compiled kernels'")
@pytest.mark.parametrize("direction", [0x400, 0x800, 0xC00], ids=["down", "up", "zero"])
def test_rounding_mode_has_no_effect(direction, threads):
    # x86-64's numbers for fesetround. One row stays on the calling thread, 300 don't.
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    torch.set_num_threads(2)
    gain = groups_gain(512, 128)
    for rows in (1, 300):
        down, positions = random_rows(rows, 576, seed=rows), some_positions(rows)
        for rotation, rule in zip(ROTATIONS[1:] * 2, (*ALL_RULES, "", ""), strict=True):
            contract = path(rotation=rotation, rule=rule, group=128)
            right = definition.compress_kv(down, gain, contract, positions)
            for name in INSTRUCTION_SETS:
                with _library.using_instruction_set(name):
                    latentkv.compress_kv(down, gain, contract, positions)  # the table is there
                    before = libm.fegetround()
                    libm.fesetround(direction)
                    try:
                        actual = latentkv.compress_kv(down, gain, contract, positions)
                        after = libm.fegetround()
                    finally:
                        libm.fesetround(before)
                assert after == direction
                for value, expected in zip(actual, right, strict=True):
                    assert_same(value, expected, f"{name} {rotation} {rule}")


@pytest.mark.parametrize("direction", [0x400, 0x800, 0xC00], ids=["down", "up", "zero"])
def test_no_table_is_built_in_a_directed_mode(direction):
    # It would be shared by the whole process. Afterwards, the same contract works.
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    contract = path(16, 8, rotation="half_result", max_positions=direction)
    down, gain, positions = random_rows(3, 24), random_gain(16), torch.arange(3)
    before = libm.fegetround()
    libm.fesetround(direction)
    try:
        with pytest.raises(RuntimeError, match="doesn't round to nearest"):
            latentkv.compress_kv(down, gain, contract, positions)
    finally:
        libm.fesetround(before)
    check(contract, down, gain, positions)


def test_the_definition_when_it_is_asked_for():
    # The chain again with LATENTKV_BACKEND=definition: same functions, same bits.
    check_python(
        "import test_path as t\n"
        "assert t._library.backend() == 'definition' and t._library.instruction_sets() == ()\n"
        "for rotation in t.ROTATIONS:\n"
        "    t.test_same_bits_as_the_definition((t.BF16, t.FP32), 'cast_then_gain', rotation)\n"
        "for layout in ('row', 'permuted', 'no-rows'): t.test_any_leading_strides(layout)\n"
        "t.test_any_positions('transposed', t.torch.int32)\n"
        "t.test_inputs_stay_as_they_are('none', t.FP32)",
        LATENTKV_BACKEND="definition",
    )


TABLES = pytest.mark.parametrize(
    ("contract", "cos_digest", "sin_digest"),
    [
        pytest.param(K2.rope, "3b05a5603872", "c8da7598d957", id="kimi-k2"),
        pytest.param(V32.rope, "51c8a2ed3299", "be45c0593c65", id="deepseek-v3.2-exp"),
    ],
)


@TABLES
def test_the_tables_known_by_their_bits(contract, cos_digest, sin_digest):
    cos, sin = definition.rotary_table(contract).chunk(2, dim=-1)
    for part, digest in ((cos, cos_digest), (sin, sin_digest)):
        data = part.contiguous().numpy().astype("<f4").tobytes()
        assert hashlib.sha256(data).hexdigest()[:12] == digest


@TABLES
def test_any_libm_gives_the_tables(contract, cos_digest, sin_digest):
    # An fp64 value has 29 bits more than fp32; those of a middle are 1 and 28 zeros. The nearest
    # lies 6 ulps away (K2's cos; the others 25 to 119), and libms are wrong by less than one. The
    # hardest of all are then worked out with 40 digits.
    mpmath = pytest.importorskip("mpmath")
    table = definition.rotary_table(contract)
    angles = torch.arange(contract.max_positions).float().unsqueeze(-1)
    angles = angles * definition.rope.inverse_frequencies(contract)
    halves = zip(("cos", "sin"), table.chunk(2, dim=-1), strict=True)
    for name, part in halves:
        exact = getattr(torch, name)(angles.double())
        from_middle = ((exact.view(torch.int64) & (2**29 - 1)) - 2**28).abs()
        assert from_middle.min() > 4
        for at in from_middle.flatten().topk(100, largest=False).indices.tolist():
            with mpmath.workdps(40):
                value = getattr(mpmath, name)(mpmath.mpf(angles.flatten()[at].item()))
            mine = part[at // part.shape[1], at % part.shape[1]]
            below, above = (
                torch.nextafter(mine, torch.tensor(side * math.inf)).item() for side in (-1, 1)
            )
            assert abs(value - mine.item()) < min(abs(value - below), abs(value - above))


def like_the_models(rows=4096):
    """Keys and positions over the whole of K2's table, each row on a scale of its own."""
    return random_rows(rows, 64, dtype=FP32), some_positions(rows, below=131072)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_the_same_bits_as_transformers_rotation(dtype):
    # Their functions, given this table as they make theirs: cat(freqs, freqs) in the key's dtype.
    module = pytest.importorskip(
        "transformers.models.deepseek_v3.modeling_deepseek_v3", reason="transformers is missing"
    )
    key, positions = like_the_models()
    key = key.to(dtype)
    table = definition.rotary_table(K2.rope)
    cos, sin = (part[positions].repeat(1, 2).to(dtype) for part in table.chunk(2, dim=-1))
    # [batch, heads, tokens, features], and [batch, tokens, features] for cos and sin
    rows, around = key[None, None], (cos[None], sin[None])
    right = definition.rotate(key, positions, K2.rope, table)
    _, interleaved = module.apply_rotary_pos_emb_interleave(rows, rows, *around)
    assert_same(right, interleaved[0, 0])
    halves = torch.cat([rows[..., 0::2], rows[..., 1::2]], dim=-1)
    _, half = module.apply_rotary_pos_emb(halves, halves, *around)
    assert_same(right, half[0, 0])
    assert_same(latentkv.compress_kv(*beside(key), K2_KEY_ONLY, positions)[1], right)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_the_same_bits_as_a_complex_product(dtype):
    # DeepSeek's own way, from this table: view_as_complex, one product, one rounding.
    key, positions = like_the_models()
    key = key.to(dtype)
    table = definition.rotary_table(V32.rope)
    cos, sin = (part[positions] for part in table.chunk(2, dim=-1))
    pairs = torch.view_as_complex(key.float().unflatten(-1, (32, 2)))
    product = torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2).to(dtype)
    right = definition.rotate(key, positions, V32.rope, table)
    assert_same(right, product)
    assert_same(latentkv.compress_kv(*beside(key), V32_KEY_ONLY, positions)[1], right)


def beside(key):
    """Rows that end with this key, and a gain for the one feature in front of it."""
    ones = torch.ones(len(key), 1, dtype=key.dtype)
    return torch.cat([ones, key], dim=-1), ones[0]


ONE = NormContract(1, 1e-6, "cast_then_gain")
K2_KEY_ONLY, V32_KEY_ONLY = (KVContract(ONE, 64, model.rope, None) for model in (K2, V32))
