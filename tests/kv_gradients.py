"""One call of the key-value path with the gradients from above, and the raw operators."""

from __future__ import annotations

import torch
from helpers import assert_same, on_each_instruction_set, output_dtype, random_gain, random_rows
from kv_rows import numerics, some_positions, table_of

import latentkv
from latentkv import definition

BF16 = torch.bfloat16


class Case:
    """One call's tensors, and the gradients that come from above."""

    def __init__(self, down, contract, gain_dtype=BF16, positions=None):
        width, leading = contract.norm.width, down.shape[:-1]
        self.down, self.contract = down, contract
        self.gain = random_gain(width, gain_dtype)
        self.positions = some_positions(*leading) if positions is None else positions
        dtype = output_dtype(down.dtype, gain_dtype, contract.norm.order)
        self.dlatent = random_rows(*leading, width, dtype=dtype, seed=5)
        self.dkey = random_rows(*leading, contract.key_width, dtype=down.dtype, seed=6)

    def inputs(self):
        return [value.detach().requires_grad_() for value in (self.down, self.gain)]

    def outputs(self, down, gain):
        return latentkv.compress_kv(down, gain, self.contract, self.positions)

    def gradients(self):
        inputs = self.inputs()
        return torch.autograd.grad(self.outputs(*inputs), inputs, (self.dlatent, self.dkey))

    def right(self):
        return definition.compress_kv_backward(
            self.dlatent, self.dkey, self.down, self.gain, self.contract, self.positions
        )

    def check(self, what=""):
        right = self.right()

        def on(name):
            for value, expected, of in zip(self.gradients(), right, ("down", "gain"), strict=True):
                assert_same(value, expected, f"{name} {what} {of}")

        on_each_instruction_set(on)


def forward(case):
    """The raw operator that also gives rstd."""
    return torch.ops.latentkv.compress_kv_fwd(
        case.down, case.gain, case.positions, table_of(case.contract), *numerics(case.contract)
    )


def backward(case, rstd):
    """The raw operator's gradients of the rows and of the gain."""
    table = table_of(case.contract)
    _, order, rope, _, _ = numerics(case.contract)
    return torch.ops.latentkv.compress_kv_bwd(
        case.dlatent, case.dkey, case.down, case.gain, rstd, case.positions, table, order, rope
    )
