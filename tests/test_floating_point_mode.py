"""The caller's floating-point mode changes nothing, and is the caller's again afterwards."""

import ctypes
import ctypes.util

import pytest
import torch
from helpers import (
    INSTRUCTION_SETS,
    ORDERS,
    assert_same,
    check_python,
    contract,
    random_gain,
    random_rows,
)

import latentkv
from latentkv import _library, definition

# fesetround's numbers on x86-64: down, up, toward zero.
ROUNDING = {"down": 0x400, "up": 0x800, "zero": 0xC00}

SUBNORMALS = """
import torch, latentkv
from latentkv import _library, definition
from helpers import INSTRUCTION_SETS, assert_same, contract
from contextlib import nullcontext

torch.set_num_threads(1)  # no worker starts before a mode is set
# Subnormal everywhere: input, gain, sum, result. 300 x 512 is more than one thread's share.
steps = torch.arange(-256.0, 256.0).repeat(300, 1)
x, r = (steps * 2.0**-149), (steps.flip(0, 1) * 2.0**-140)
gain = torch.arange(1.0, 513.0) * 2.0**-140
ones = torch.ones(512)
rules = [contract(512, order, eps) for order in ("cast_then_gain", "gain_then_cast")
         for eps in (2.0**-126, 1.0)]
right = [(definition.rms_norm(x, ones, c), *definition.add_rms_norm(x, r, gain, c)) for c in rules]
assert right[0][0].count_nonzero() > 150_000
torch.set_num_threads(2)

def flushes():
    return bool(torch.ones((), dtype=torch.int32).view(torch.float32) * 1 == 0)

def check(expected_mode):
    for name in INSTRUCTION_SETS:
        with nullcontext() if name == "none" else _library.using_instruction_set(name):
            for compute in (latentkv, definition):
                for rule, expected in zip(rules, right):
                    y = compute.rms_norm(x, ones, rule)
                    both = compute.add_rms_norm(x, r, gain, rule)
                    for actual, value in zip((y, *both), expected):
                        assert_same(actual, value, f"{name} {compute.__name__} {rule}")
                    assert flushes() == expected_mode, (name, compute.__name__)
"""

MODES = {
    "on": "assert torch.set_flush_denormal(True); check(True)",
    # Workers inherit the mode of the thread that started them, and keep it.
    "workers started while on": (
        "assert torch.set_flush_denormal(True)\n"
        "torch.ones(1_000_000) * 2\n"
        "check(True)\n"
        "torch.set_flush_denormal(False)\n"
        "check(False)"
    ),
    "on for one thread of two": (
        "import threading\n"
        "torch.ones(1_000_000) * 2\n"
        "assert torch.set_flush_denormal(True)\n"
        "failed = []\n"
        "def other():\n"
        "    try: check(flushes())\n"
        "    except BaseException as error: failed.append(error)\n"
        "thread = threading.Thread(target=other); thread.start(); thread.join()\n"
        "assert not failed, failed\n"
        "check(True)"
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_flushing_has_no_effect(mode):
    # In a process of its own: the mode of worker threads can't be taken back.
    check_python(SUBNORMALS + MODES[mode])


def test_the_definition_with_flushing_on():
    check_python(SUBNORMALS + MODES["on"], LATENTKV_BACKEND="definition")


@pytest.mark.skipif(_library.backend() != "cpu", reason="the promise is the compiled kernels'")
@pytest.mark.parametrize("direction", ROUNDING)
def test_rounding_mode_has_no_effect(direction, threads):
    # One row stays on the calling thread; 1,021 go to workers as well. Several eps, because
    # fp32(eps) is a rounding too, and a mode may agree with nearest on one of them.
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    torch.set_num_threads(2)
    for rows in (1, 1021):
        x, residual = (random_rows(rows, 512, dtype=torch.float32, seed=s) for s in (1, 2))
        x, residual = x * 2.0**-8, residual * 2.0**-8  # where eps counts
        gain = random_gain(512, torch.float32)
        for eps in (1e-6, 1e-5, 1e-2, 0.1):
            for order in ORDERS:
                rule = contract(512, order, eps)
                right = definition.add_rms_norm(x, residual, gain, rule)
                for name in INSTRUCTION_SETS:
                    with _library.using_instruction_set(name):
                        before = libm.fegetround()
                        libm.fesetround(ROUNDING[direction])
                        try:
                            actual = latentkv.add_rms_norm(x, residual, gain, rule)
                            after = libm.fegetround()
                        finally:
                            libm.fesetround(before)
                    assert after == ROUNDING[direction]
                    for value, expected in zip(actual, right, strict=True):
                        assert_same(value, expected, f"{name} {eps} {order}")
