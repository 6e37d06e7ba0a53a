"""The path's rows anywhere in memory, with any positions, in any batch, at any alignment."""

import math

import pytest
import torch
from helpers import DTYPES, assert_same, name_of, on_each_instruction_set, random_gain, random_rows
from kv_rows import ALL_RULES, ROTATIONS, check, groups_gain, path, some_positions, views

import latentkv
from latentkv import definition

BF16 = torch.bfloat16


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
