"""The ranks' mesh, and the inputs and right answers that the checks on it share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.distributed as dist
from helpers import assert_same, contract, random_gain, random_rows
from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh

import latentkv
from latentkv import LatentRMSNorm, definition

WIDTH = 512
FP32, BF16 = torch.float32, torch.bfloat16


@cache
def all_ranks():
    """The mesh of one dimension. The process group has to exist by the first call."""
    return init_device_mesh("cpu", (dist.get_world_size(),))


def place(tensor, *placements, mesh=None):
    """The tensor as a DTensor: each rank makes the whole one, so nothing has to be sent first."""
    return distribute_tensor(tensor, mesh or all_ranks(), list(placements), src_data_rank=None)


def whole(tensor):
    """What all ranks hold together."""
    return tensor.full_tensor().detach()


class Case:
    """Rows, residual, gain and upstream gradients, and the definition's answers for all rows."""

    def __init__(self, *leading, order="cast_then_gain", gain=FP32, x=BF16):
        self.contract = contract(WIDTH, order)
        self.x = random_rows(*leading, WIDTH, dtype=x, seed=2)
        self.residual = random_rows(*leading, WIDTH, dtype=x, seed=3)
        self.gain = random_gain(WIDTH, gain)
        self.y = definition.rms_norm(self.x, self.gain, self.contract)
        self.dy = random_rows(*leading, WIDTH, dtype=self.y.dtype, seed=4)
        self.dsum = random_rows(*leading, WIDTH, dtype=x, seed=5)
        self.dx, self.dgain = self.gradients(slice(None))

    def gradients(self, rows, gain=None):
        """Those of some rows (along the first dimension) alone."""
        gain = self.gain if gain is None else gain
        x, dy = self.x[rows], self.dy[rows]
        rstd = definition.reciprocal_rms(x, self.contract)
        return definition.rms_norm_backward(dy, x, gain, rstd, self.contract)

    def leaves(self, *x_placements, gain=None, mesh=None):
        x = place(self.x, *x_placements, mesh=mesh).requires_grad_()
        return x, place(self.gain.clone(), *(gain or [Replicate()]), mesh=mesh).requires_grad_()

    def module(self):
        norm = LatentRMSNorm(self.contract, dtype=self.gain.dtype)
        norm.load_state_dict({"weight": self.gain})
        return norm

    def check_rms_norm(self, x, gain, dy_placements, mesh=None):
        """Forward and backward; returns the output. dgain is compared by the caller."""
        y = latentkv.rms_norm(x, gain, self.contract)
        assert y.dtype == self.y.dtype == y._spec.tensor_meta.dtype
        assert_same(whole(y), self.y, "y")
        y.backward(place(self.dy, *dy_placements, mesh=mesh))
        assert_same(whole(x.grad), self.dx, "dx")
        return y


def own_rows(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


@contextmanager
def tracing() -> Iterator[None]:
    """For torch.compile's first call, in which torch's own code warns: of any autograd.Function,
    and as it looks at what a module's hooks are given."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "<class .*Function'> should not be instantiated")
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        yield
