"""Bad input is a clear error that names what was given and what is allowed, never a number.

On every backend with the same words: the last test runs this file again on the definition.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import assert_same, contract, random_gain, random_rows

import latentkv
from latentkv import _library, definition

X, GAIN, RULE = random_rows(4, 512), random_gain(512), contract(512)
LATENT = random_rows(4, 576)

# name -> x, residual (None: the form without), gain, contract, the error and its essential words
ARGUMENTS = {
    "width": (LATENT, None, GAIN, RULE, ValueError, r"x has shape \(4, 576\).*width, 512"),
    "width of contract": (X, None, GAIN, contract(576), ValueError, r"\(4, 512\).*width, 576"),
    "width of gain": (X, None, GAIN[:511], RULE, ValueError, r"gain has shape \(511,\).*512"),
    "longer gain": (X, None, random_gain(576), RULE, ValueError, r"gain has shape \(576,\).*512"),
    "width 0": (torch.empty(4, 0), None, torch.empty(0), RULE, ValueError, r"\(4, 0\).*width, 512"),
    "0-dim x": (torch.tensor(1.0), None, GAIN, RULE, ValueError, r"x has shape \(\).*width, 512"),
    "0-dim gain": (X, None, torch.tensor(1.0), RULE, ValueError, r"gain has shape \(\).*1-D.*512"),
    "2-D gain": (X, None, GAIN[None], RULE, ValueError, r"gain has shape \(1, 512\).*1-D.*512"),
    "grouped gain": (X, None, GAIN.repeat(2, 1), RULE, ValueError, r"gain has shape \(2, 512\)"),
    "expanded gain": (X, None, GAIN[:1].expand(512), RULE, ValueError, r"gain has strides \(0,\)"),
    "strided gain": (X, None, random_gain(1024)[::2], RULE, ValueError, r"gain has strides \(2,\)"),
    "transposed x": (
        random_rows(512, 4).t(), None, GAIN, RULE, ValueError,
        r"x has strides \(1, 4\); the last one must be 1: call x.contiguous",
    ),
    "every second feature": (
        random_rows(4, 1024)[:, ::2], None, GAIN, RULE, ValueError, r"x has strides \(1024, 2\)",
    ),
    "expanded features": (
        random_rows(4, 1).expand(4, 512), None, GAIN, RULE, ValueError, r"x has strides \(1, 0\)",
    ),
    "strided residual": (
        X, random_rows(512, 4).t(), GAIN, RULE, ValueError, r"residual has strides \(1, 4\)",
    ),
    "residual of another shape": (
        X, X[:3], GAIN, RULE, ValueError, r"residual is bfloat16 \(3, 512\).*bfloat16 \(4, 512\)",
    ),
    "residual to broadcast": (
        X, X[0], GAIN, RULE, ValueError, r"residual is bfloat16 \(512,\).*bfloat16 \(4, 512\)",
    ),
    "residual of another dtype": (
        X, X.float(), GAIN, RULE, ValueError, r"residual is float32 \(4, 512\).*bfloat16",
    ),
    "fp64 x": (
        X.double(), None, GAIN, RULE, TypeError,
        "x has dtype float64; allowed: bfloat16, float16, float32.*latentkv.definition",
    ),
    "fp64 gain": (X, None, GAIN.double(), RULE, TypeError, "gain has dtype float64; allowed"),
    "fp64 both": (X.double(), None, GAIN.double(), RULE, TypeError, "x has dtype float64"),
    "fp64 residual": (X, X.double(), GAIN, RULE, TypeError, "residual has dtype float64"),
    "int32 x": (X.int(), None, GAIN, RULE, TypeError, "x has dtype int32; allowed: bfloat16"),
    "bool x": (X > 0, None, GAIN, RULE, TypeError, "x has dtype bool; allowed: bfloat16"),
    "int64 gain": (X, None, GAIN.long(), RULE, TypeError, "gain has dtype int64; allowed"),
    "complex x": (X.cfloat(), None, GAIN, RULE, TypeError, "x has dtype complex64; allowed"),
    "fp8 x": (
        X.to(torch.float8_e4m3fn), None, GAIN, RULE, TypeError, "x has dtype float8_e4m3fn; allowed"
    ),
    "sparse x": (
        X.to_sparse(), None, GAIN, RULE, TypeError, "x must be a strided tensor, got .*sparse_coo"
    ),
    "sparse gain": (X, None, GAIN.to_sparse(), RULE, TypeError, "gain must be a strided tensor"),
    "gain elsewhere": (X, None, GAIN.to("meta"), RULE, ValueError, "gain is on meta but x on cpu"),
    "x elsewhere": (X.to("meta"), None, GAIN, RULE, ValueError, "gain is on cpu but x on meta"),
    "residual elsewhere": (
        X, X.to("meta"), GAIN, RULE, ValueError, "residual is on meta but x on cpu",
    ),
    "x None": (None, None, GAIN, RULE, TypeError, "x must be a tensor, got NoneType"),
    "x a list": ([[1.0] * 512], None, GAIN, RULE, TypeError, "x must be a tensor, got list"),
    "x an array": (
        np.ones((4, 512)), None, GAIN, RULE, TypeError, "x must be a tensor, got ndarray",
    ),
    "gain None": (X, None, None, RULE, TypeError, "gain must be a tensor, got NoneType"),
    "gain a float": (X, None, 1.5, RULE, TypeError, "gain must be a tensor, got float"),
    "residual a list": (X, [1.0], GAIN, RULE, TypeError, "residual must be a tensor, got list"),
    "contract None": (X, None, GAIN, None, TypeError, "contract must be a NormContract, got None"),
    "contract an eps": (
        X, None, GAIN, 1e-6, TypeError, r"contract must be a NormContract, got float: pass models",
    ),
    "contract a dict": (
        X, None, GAIN, {"width": 512}, TypeError, "contract must be a NormContract, got dict",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ARGUMENTS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_refused(case, mode):
    x, residual, gain, rule, error, words = ARGUMENTS[case]
    with mode():
        with pytest.raises(error, match=words):
            if residual is None:
                latentkv.rms_norm(x, gain, rule)
            else:
                latentkv.add_rms_norm(x, residual, gain, rule)
        if residual is None and isinstance(x, torch.Tensor):
            with pytest.raises(error, match=words):
                latentkv.add_rms_norm(x, x, gain, rule)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_a_residual_of_none(mode):
    with mode(), pytest.raises(TypeError, match="residual must be a tensor, got NoneType"):
        latentkv.add_rms_norm(X, None, GAIN, RULE)


def test_a_tensor_without_memory():
    # torch's placeholder for a zero gradient: a tensor, dense to look at, with a null pointer.
    zeros = torch._efficientzerotensor((4, 512), dtype=torch.bfloat16)
    with pytest.raises((ValueError, RuntimeError), match="last (stride|one must be 1)"):
        latentkv.rms_norm(zeros, GAIN, RULE)


@pytest.mark.parametrize("case", ["x", "gain", "residual"])
def test_an_input_that_needs_a_gradient(case):
    inputs = {"x": X.clone(), "residual": X.clone(), "gain": GAIN.clone()}
    inputs[case].requires_grad_()
    x, residual, gain = inputs["x"], inputs["residual"], inputs["gain"]
    calls = [lambda: latentkv.add_rms_norm(x, residual, gain, RULE)]
    if case != "residual":
        calls.append(lambda: latentkv.rms_norm(x, gain, RULE))
    for call in calls:
        with pytest.raises(NotImplementedError, match=r"no backward yet.*inference_mode.*detach"):
            call()
        with torch.no_grad():
            call()
        with torch.inference_mode():
            call()
    inputs[case].requires_grad_(False)
    assert not latentkv.rms_norm(x, gain, RULE).requires_grad


def test_gradient_transforms_are_refused():
    with pytest.raises(NotImplementedError, match="no backward yet"):
        torch.func.grad(lambda x: latentkv.rms_norm(x, GAIN, RULE).sum())(X.float())
    with pytest.raises(NotImplementedError, match="no backward yet"):
        torch.func.vjp(lambda g: latentkv.rms_norm(X, g, RULE), GAIN)


# torch's forward mode compiles its rules with what torch itself calls deprecated.
@pytest.mark.filterwarnings(r"ignore:.torch\.jit\.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("argument", ["x", "gain", "residual"])
def test_forward_derivatives_are_refused(argument):
    # A tangent must not vanish: zeros would be a wrong derivative.
    inputs = {"x": X.float(), "gain": GAIN.float(), "residual": X.float()}
    calls = [lambda v: latentkv.add_rms_norm(v["x"], v["residual"], v["gain"], RULE)[0]]
    if argument != "residual":
        calls.append(lambda v: latentkv.rms_norm(v["x"], v["gain"], RULE))
    for call in calls:
        value = inputs[argument]
        with pytest.raises(NotImplementedError):
            torch.func.jvp(lambda v, f=call: f({**inputs, argument: v}), (value,), (value,))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(value, torch.ones_like(value))
            with pytest.raises(NotImplementedError):
                call({**inputs, argument: dual})


def test_batching_gives_the_same_bits():
    # torch.func.vmap has no rule for this operator and calls it slice by slice.
    y = torch.func.vmap(lambda x: latentkv.rms_norm(x, GAIN, RULE))(X)
    assert_same(y, definition.rms_norm(X, GAIN, RULE))


# What the raw operators take besides: numbers in place of a contract.
RAW = {
    "eps 0": (0.0, "cast_then_gain", r"fp32\(eps\) must be finite and at least 2\^-126"),
    "eps below": (2.0**-127, "cast_then_gain", r"fp32\(eps\) must be finite and at least 2\^-126"),
    "eps inf": (float("inf"), "cast_then_gain", r"fp32\(eps\) must be finite and at least 2\^-126"),
    "eps nan": (float("nan"), "cast_then_gain", r"fp32\(eps\) must be finite and at least 2\^-126"),
    "eps 1e39": (1e39, "gain_then_cast", r"fp32\(eps\) must be finite and at least 2\^-126"),
    "order": (1e-6, "gain", "order must be .*'cast_then_gain'.*'gain_then_cast'"),
}


@pytest.mark.parametrize("case", RAW)
def test_raw_operators_refuse_numbers(case):
    eps, order, words = RAW[case]
    for device in ("cpu", "meta"):  # meta: what a graph is traced with
        x, gain = X.to(device), GAIN.to(device)
        with pytest.raises((ValueError, RuntimeError), match=words):
            torch.ops.latentkv.rms_norm(x, gain, eps, order)
        with pytest.raises((ValueError, RuntimeError), match=words):
            torch.ops.latentkv.add_rms_norm(x, x, gain, eps, order)


@pytest.mark.parametrize("case", [c for c in ARGUMENTS if not c.startswith("contract")])
def test_raw_operators_refuse_tensors(case):
    # Memory stays safe without the public function in front.
    x, residual, gain, _, _, _ = ARGUMENTS[case]
    if case == "width of contract":
        pytest.skip("a raw operator has no contract")
    if case == "width":
        gain = GAIN
    arguments = (x, gain) if residual is None else (x, residual, gain)
    operator = torch.ops.latentkv.rms_norm if residual is None else torch.ops.latentkv.add_rms_norm
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        operator(*arguments, 1e-6, "cast_then_gain")


def test_width_0_is_refused_by_name():
    for shape in ((4, 0), (0, 0)):
        with pytest.raises((ValueError, RuntimeError), match="width.*must be between 1 and 2.24"):
            torch.ops.latentkv.rms_norm(torch.ones(shape), torch.ones(0), 1e-6, "cast_then_gain")


def test_a_last_stride_that_no_step_uses():
    # A width of 1, or no element at all: any stride is right.
    one = torch.ones(4, 8)[:, ::8]
    assert one.stride() == (8, 8)
    gain = torch.full((3,), 1.5)[::3]
    y = latentkv.rms_norm(one, gain, contract(1))
    assert_same(y, definition.rms_norm(one, gain, contract(1)))
    empty = torch.ones(0, 1024)[:, ::2]
    assert empty.stride(-1) == 2 and latentkv.rms_norm(empty, GAIN.float(), RULE).shape == (0, 512)


def test_a_contract_by_another_name_is_held_to_its_numbers():
    # A stand-in with the three fields is taken at its word, and refused where a contract would be.
    fake = SimpleNamespace(width=512, eps=1e-6, order="cast_then_gain")
    assert_same(latentkv.rms_norm(X, GAIN, fake), latentkv.rms_norm(X, GAIN, RULE))
    for wrong in ({"eps": 0.0}, {"order": "gain"}, {"width": 511}, {"eps": "1e-6"}):
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            latentkv.rms_norm(X, GAIN, SimpleNamespace(**{**vars(fake), **wrong}))


@pytest.mark.skipif(_library.backend() == "definition", reason="this is that run")
def test_the_definition_refuses_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", str(Path(__file__))],
        env=os.environ | {"LATENTKV_BACKEND": "definition"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
