"""One call of a norm with its gradients, as the tests of the backward use it."""

import torch
from helpers import (
    assert_same,
    contract,
    on_each_instruction_set,
    output_dtype,
    random_gain,
    random_rows,
)

import latentkv
from latentkv import definition

# No residual; a residual whose sum is used; one whose sum is not.
FORMS = ("plain", "sum used", "y only")
BF16, FP32 = torch.bfloat16, torch.float32


class Case:
    """One call's tensors: x, residual, gain and the gradients that come from above."""

    def __init__(self, x, gain, rule, residual=None, dy=None, dsum=None):
        self.x, self.gain, self.rule, self.residual = x, gain, rule, residual
        self.dy, self.dsum = dy, dsum

    def inputs(self):
        """What gradients are taken of; fresh views, so that no test changes another's."""
        given = (self.x, self.gain) if self.residual is None else (self.x, self.residual, self.gain)
        return [value.detach().requires_grad_() for value in given]

    def outputs(self, inputs):
        if self.residual is None:
            return (latentkv.rms_norm(*inputs, self.rule),)
        return latentkv.add_rms_norm(*inputs, self.rule)

    def gradients(self):
        """Through the public functions: of x (and the residual) and of the gain."""
        inputs = self.inputs()
        above = [(self.outputs(inputs), (self.dy, self.dsum))]
        used = [(y, d) for ys, ds in above for y, d in zip(ys, ds, strict=False) if d is not None]
        return torch.autograd.grad([y for y, _ in used], inputs, [d for _, d in used])

    def right(self):
        dx, dgain = definition.rms_norm_backward(
            self.dy,
            self.x,
            self.gain,
            definition.reciprocal_rms(self.x, self.rule, self.residual),
            self.rule,
            self.residual,
            self.dsum,
        )
        return (dx, dgain) if self.residual is None else (dx, dx, dgain)

    def check(self, what=""):
        right = self.right()

        def on(name):
            for value, expected, of in zip(
                self.gradients(), right, ("dx", "dgain")[: len(right)] * 2, strict=False
            ):
                assert_same(value, expected, f"{name} {what} {of}")

        on_each_instruction_set(on)


def make(x, pair=(BF16, BF16), order="cast_then_gain", form="plain", dy=None, seed=5):
    """A case around rows of x, in x's shape."""
    gain = random_gain(x.shape[-1], pair[1])
    dtype = output_dtype(x.dtype, pair[1], order)
    above = random_rows(*x.shape, dtype=dtype, seed=seed) if dy is None else dy
    residual = random_rows(*x.shape, dtype=x.dtype, seed=seed + 1) if form != "plain" else None
    dsum = random_rows(*x.shape, dtype=x.dtype, seed=seed + 2) if form == "sum used" else None
    return Case(x, gain, contract(x.shape[-1], order), residual, above, dsum)


def operator(case):
    """The raw operator: dx and the gain's gradient."""
    rstd = definition.reciprocal_rms(case.x, case.rule, case.residual)
    if case.residual is None:
        return torch.ops.latentkv.rms_norm_bwd(case.dy, case.x, case.gain, rstd, case.rule.order)
    return torch.ops.latentkv.add_rms_norm_bwd(
        case.dy, case.dsum, case.x, case.residual, case.gain, rstd, case.rule.order
    )
