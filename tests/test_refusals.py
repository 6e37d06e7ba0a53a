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
def test_no_graph_where_none_is_wanted(case):
    inputs = {"x": X.clone(), "residual": X.clone(), "gain": GAIN.clone()}
    inputs[case].requires_grad_()
    x, residual, gain = inputs["x"], inputs["residual"], inputs["gain"]
    calls = [lambda: latentkv.add_rms_norm(x, residual, gain, RULE)[0]]
    if case != "residual":
        calls.append(lambda: latentkv.rms_norm(x, gain, RULE))
    for call in calls:
        assert call().requires_grad
        with torch.no_grad():
            assert not call().requires_grad
        with torch.inference_mode():
            assert not call().requires_grad
    inputs[case].requires_grad_(False)
    for call in calls:
        assert not call().requires_grad


# As functions of x, the gain or the residual: name -> the function and its argument, in fp32.
FUNCTIONS = {
    "x": (lambda v: latentkv.rms_norm(v, GAIN.float(), RULE), X.float()),
    "gain": (lambda v: latentkv.rms_norm(X.float(), v, RULE), GAIN.float()),
    "x to be added": (
        lambda v: latentkv.add_rms_norm(v, X.float(), GAIN.float(), RULE)[0], X.float(),
    ),
    "residual": (lambda v: latentkv.add_rms_norm(X.float(), v, GAIN.float(), RULE)[0], X.float()),
    "gain after adding": (
        lambda v: latentkv.add_rms_norm(X.float(), X.float(), v, RULE)[0], GAIN.float(),
    ),
}  # fmt: skip
SECOND = r"latentkv has first derivatives only: drop create_graph"


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_second_derivative_is_refused(case):
    function, value = FUNCTIONS[case]
    leaf = value.clone().requires_grad_()
    # create_graph alone is no second derivative: a first one comes out, and can be looked at.
    (first,) = torch.autograd.grad(function(leaf).sum(), leaf, create_graph=True)
    assert_same(first.detach(), torch.autograd.grad(function(leaf).sum(), leaf)[0])
    with pytest.raises(NotImplementedError, match=SECOND):
        first.sum().backward()
    assert leaf.grad is None
    # A penalty on the gradient, added to the loss itself.
    y = function(leaf)
    (first,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
    with pytest.raises(NotImplementedError, match=SECOND):
        (y.sum() + first.square().sum()).backward()
    # Of the gradient by what came from above.
    above = torch.ones_like(y, requires_grad=True)
    (first,) = torch.autograd.grad(function(leaf), leaf, above, create_graph=True)
    with pytest.raises(NotImplementedError, match=SECOND):
        first.sum().backward()
    with pytest.raises(NotImplementedError, match=SECOND):
        torch.autograd.functional.hessian(lambda v: function(v).sum(), value)
    with pytest.raises(NotImplementedError, match=SECOND):
        torch.func.grad(lambda v: torch.func.grad(lambda w: function(w).sum())(v).sum())(value)


# As below: forward mode.
@pytest.mark.filterwarnings(r"ignore:.torch\.jit\.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("case", FUNCTIONS)
def test_forward_over_reverse_is_refused(case):
    function, value = FUNCTIONS[case]
    with pytest.raises(NotImplementedError):  # in torch's words, or in ours
        torch.func.hessian(lambda v: function(v).sum())(value)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double")
def test_gradgradcheck_is_refused():
    x, gain = X[:2, :4].float().requires_grad_(), GAIN[:4].float()
    with pytest.raises(NotImplementedError, match=SECOND):
        torch.autograd.gradgradcheck(
            lambda v: latentkv.rms_norm(v, gain, contract(4)), (x,), eps=1e-2, atol=1.0
        )


def test_a_second_derivative_that_does_not_pass_through_the_norm():
    # The sum is linear: nothing of it is refused, and nothing of it is lost.
    x = X.float().requires_grad_()
    _, total = latentkv.add_rms_norm(x, X.float(), GAIN.float(), RULE)
    (first,) = torch.autograd.grad(total.square().sum(), x, create_graph=True)
    assert_same(first.detach(), 2 * total.detach())
    assert_same(torch.autograd.grad(first.sum(), x)[0], torch.full((4, 512), 2.0))


@pytest.mark.parametrize("case", FUNCTIONS)
def test_gradient_transforms(case):
    function, value = FUNCTIONS[case]
    leaf = value.clone().requires_grad_()
    (right,) = torch.autograd.grad(function(leaf).sum(), leaf)
    assert_same(torch.func.grad(lambda v: function(v).sum())(value), right)
    y, pull = torch.func.vjp(function, value)
    assert_same(y, function(value))
    assert_same(pull(torch.ones_like(y))[0], right)


# The operators have no batching rule: torch calls them slice by slice, and says once that it does.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_gradients_of_each_sample():
    x, gain = X.float(), GAIN.float()
    above = random_rows(4, 512, dtype=torch.float32, seed=3)

    def loss(gain, x, above):
        y, total = latentkv.add_rms_norm(x, x * 2, gain, RULE)
        return (y * above).sum() + total.sum()

    of_gain, of_x = torch.func.vmap(torch.func.grad(loss, (0, 1)), in_dims=(None, 0, 0))(
        gain, x, above
    )
    for i in range(4):
        leaves = gain.clone().requires_grad_(), x[i].clone().requires_grad_()
        right = torch.autograd.grad(loss(*leaves, above[i]), leaves)
        assert_same(of_gain[i], right[0])
        assert_same(of_x[i], right[1])
    # Several gradients from above at once.
    leaf = x.clone().requires_grad_()
    y = latentkv.rms_norm(leaf, gain, RULE)
    many = torch.stack([above, 2 * above, torch.ones_like(above)])
    (batched,) = torch.autograd.grad(y, leaf, many, retain_graph=True, is_grads_batched=True)
    for one, dy in zip(batched, many, strict=True):
        assert_same(one, torch.autograd.grad(y, leaf, dy, retain_graph=True)[0])
    jacobian = torch.func.jacrev(lambda v: latentkv.rms_norm(v, gain, RULE))(x[0])
    leaf = x[0].clone().requires_grad_()
    (row,) = torch.autograd.grad(latentkv.rms_norm(leaf, gain, RULE)[7], leaf)
    assert_same(jacobian[7], row)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("case", ["x", "gain", "both"])
def test_a_gradient_from_outside_a_transform(case):
    # The leaf needs its gradient outside, where the transform's own tensors don't show it.
    x, gain = X.float(), GAIN.float()
    leaves = [
        v.requires_grad_() for v, name in ((x, "x"), (gain, "gain")) if case in (name, "both")
    ]
    right = torch.autograd.grad(latentkv.rms_norm(x, gain, RULE).sum(), leaves)
    right2 = torch.autograd.grad(latentkv.add_rms_norm(x, x, gain, RULE)[0].sum(), leaves)
    for function, expected in (
        (lambda v: latentkv.rms_norm(v, gain, RULE), right),
        (lambda v: latentkv.add_rms_norm(v, v, gain, RULE)[0], right2),
    ):
        batched = torch.func.vmap(function)(x)
        for value, of in zip(torch.autograd.grad(batched.sum(), leaves), expected, strict=True):
            # the gain's rows are added one by one by vmap, not folded
            assert torch.allclose(value, of, rtol=1e-5, atol=1e-5)
        inner = torch.func.grad(lambda scale, f=function: (f(x) * scale).sum())(torch.ones(()))
        for value, of in zip(torch.autograd.grad(inner, leaves), expected, strict=True):
            assert_same(value, of)


def test_a_gradient_of_a_gradient_past_the_norm():
    # Of outer(x) = d/ds sum(s * y(x)): a first derivative of y, by way of a second transform.
    gain = GAIN.float()

    def outer(x):
        def inner(s):
            return (latentkv.rms_norm(x, gain, RULE) * s).sum()

        return torch.func.grad(inner)(torch.ones(()))

    right = torch.func.grad(lambda x: latentkv.rms_norm(x, gain, RULE).sum())(X.float())
    assert_same(torch.func.grad(outer)(X.float()), right)


@pytest.mark.parametrize("argument", ["x", "gain", "residual"])
def test_the_raw_operators_say_that_they_have_no_gradient(argument):
    # The public functions have; below them, torch's own words are what there is: a check of its own
    # in every call under no_grad would cost more than the norm of a row.
    inputs = {"x": X.float(), "residual": X.float(), "gain": GAIN.float()}
    inputs[argument].requires_grad_()
    add = torch.ops.latentkv.add_rms_norm
    y, _ = add(inputs["x"], inputs["residual"], inputs["gain"], 1e-6, RULE.order)
    with pytest.warns(UserWarning, match="autograd kernel was not registered"):
        y.sum().backward()


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


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
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
