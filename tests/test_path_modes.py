"""Threads, autocast, flushing and rounding modes change none of the path's bits."""

import ctypes
import ctypes.util

import pytest
import torch
from helpers import (
    INSTRUCTION_SETS,
    assert_same,
    check_python,
    name_of,
    on_each_instruction_set,
    random_gain,
    random_rows,
)
from kv_rows import ALL_RULES, ROTATIONS, check, groups_gain, path, some_positions

import latentkv
from latentkv import _library, definition

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


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
from kv_rows import ALL_RULES, ROTATIONS, path, some_positions

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
if latentkv._library.backend() == "cpu":  # elsewhere that has just been done
    check("definition", definition)
"""

# Behind the former, in the same process.
SUBNORMAL_GRADIENTS = """
from kv_gradients import Case, backward

torch.set_num_threads(1)
torch.set_flush_denormal(False)  # of the calling thread, which works alone for now
steps = torch.arange(-288.0, 288.0).repeat(140, 1)
cases = []
for order in ORDERS:
    for rotation, eps in zip(ROTATIONS[1:], (2.0**-126, 1.0) * 2):
        case = Case(steps * 2.0**-149, path(order=order, rotation=rotation, eps=eps))
        case.gain = torch.full((512,), 1.5)
        case.dlatent = steps[:, :512] * 2.0**-148
        case.dkey = steps[:, 512:] * 2.0**-149
        cases.append(case)
right = [case.right() for case in cases]
assert all(r[0][:, 512:].count_nonzero() > 8_900 for r in right)
assert all(r[0].abs().max() < 2.0**-126 for r in right[1::2])
torch.set_num_threads(2)
assert torch.set_flush_denormal(True)
torch.ones(1_000_000) * 2  # workers start with the mode, and keep it

def check(name):
    for case, expected in zip(cases, right):
        # the operators: autograd's own thread has a mode of its own
        rstd = definition.reciprocal_rms(case.down[:, :512], case.contract.norm)
        for a, b in zip(backward(case, rstd), expected): assert_same(a, b, name)
        for a, b in zip(case.gradients(), expected): assert_same(a, b, name)
        for a, b in zip(case.right(), expected): assert_same(a, b, "definition")

on_each_instruction_set(check)
assert bool(torch.ones((), dtype=torch.int32).view(torch.float32) * 1 == 0)
"""


def test_flushing_has_no_effect():
    # In a process of its own: the mode of worker threads can't be taken back. The variable keeps
    # OpenMP from starting one before the mode is set.
    check_python(SUBNORMALS + SUBNORMAL_GRADIENTS, OMP_NUM_THREADS="1")


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
