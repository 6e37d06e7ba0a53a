"""The key-value path's kernel equals its definition, bit for bit, at any size."""

import pytest
import torch
from helpers import (
    DTYPES,
    ORDERS,
    PAIRS,
    assert_same,
    name_of,
    on_each_instruction_set,
    output_dtype,
    random_gain,
    random_rows,
)
from kv_rows import ALL_RULES, K2, ROTATIONS, V32, check, groups_gain, path, some_positions

import latentkv
from latentkv import definition
from latentkv.contracts import RULES


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


@pytest.mark.parametrize("rule", ["", "act_quant"])
def test_outputs_past_the_caches(rule):
    # Above 16 MiB the latent is written past the caches, by other instructions.
    rows = 17 * 2**20 // 1024 + 3
    contract = path(rotation="half_each_step", rule=rule, group=128)
    check(contract, random_rows(rows, 576), groups_gain(512, 128), some_positions(rows))
