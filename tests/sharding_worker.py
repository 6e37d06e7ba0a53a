"""One of the ranks that test_sharding.py starts: python sharding_worker.py RANK RANKS STORE.

Runs every ``check_*`` in turn and prints the name of each that passed. A failure ends the process:
the other rank would otherwise wait in a collective.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from helpers import ORDERS, assert_same, contract, random_gain, random_rows
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ParallelStyle,
    SequenceParallel,
    parallelize_module,
)

import latentkv
from latentkv import LatentRMSNorm, definition

RANK, RANKS = int(sys.argv[1]), int(sys.argv[2])
WIDTH = 512
FP32, BF16 = torch.float32, torch.bfloat16
PAGE = Path(__file__).parents[1] / "docs/sharding.md"


def place(tensor, *placements, mesh=None):
    """The tensor as a DTensor: each rank makes the whole one, so nothing has to be sent first."""
    return distribute_tensor(tensor, mesh or MESH, list(placements), src_data_rank=None)


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


def check_rows_are_split_along_any_leading_dimension():
    for order in ORDERS:
        case = Case(2, 4, 6, order=order)
        for dim in range(3):
            x, gain = case.leaves(Shard(dim))
            with CommDebugMode() as sent:
                y = latentkv.rms_norm(x, gain, case.contract)
                y.backward(place(case.dy, Shard(dim)))
            assert sent.get_total_counts() == 0, sent.get_comm_counts()
            assert y.placements == x.grad.placements == (Shard(dim),)
            assert gain.grad.placements == (Partial("sum"),)
            assert_same(y.to_local(), definition.rms_norm(x.to_local(), case.gain, case.contract))
            assert_same(whole(y), case.y)
            assert_same(whole(x.grad), case.dx)


def check_rstd_is_split_like_the_rows():
    case = Case(4, 3)
    x, gain = place(case.x, Shard(1)), place(case.gain, Replicate())
    for dim in range(2):
        x = place(case.x, Shard(dim))
        _, rstd = torch.ops.latentkv.rms_norm_fwd(x, gain, case.contract.eps, case.contract.order)
        assert rstd.placements == (Shard(dim),) and rstd.shape == (4, 3)
        assert_same(whole(rstd), definition.reciprocal_rms(case.x, case.contract))


def check_everything_replicated():
    case = Case(3)
    x, gain = case.leaves(Replicate())
    with CommDebugMode() as sent:
        y = case.check_rms_norm(x, gain, [Replicate()])
    assert sent.get_total_counts() == 0
    assert y.placements == x.grad.placements == gain.grad.placements == (Replicate(),)
    assert_same(gain.grad.to_local(), case.dgain)


def check_without_gradients():
    case = Case(4)
    with torch.no_grad():
        y = latentkv.rms_norm(*case.leaves(Shard(0)), case.contract)
        total = latentkv.add_rms_norm(
            place(case.x, Shard(0)), place(case.residual, Shard(0)), place(case.gain, Replicate()),
            case.contract,
        )  # fmt: skip
    assert not y.requires_grad and y.placements == (Shard(0),)
    assert_same(whole(y), case.y)
    right = definition.add_rms_norm(case.x, case.residual, case.gain, case.contract)
    for actual, expected in zip(total, right, strict=True):
        assert actual.placements == (Shard(0),)
        assert_same(whole(actual), expected)


def check_the_decision_is_remembered_with_the_order():
    # bf16 rows with an fp32 gain: the order decides the output's dtype, which DTensor remembers.
    for _ in range(2):
        for order in ORDERS:
            case = Case(4, order=order)
            for placement in (Shard(0), Shard(1)):
                case.check_rms_norm(*case.leaves(placement), [Shard(0)])


def check_the_residual():
    for order in ORDERS:
        case = Case(4, 2, order=order)
        rstd = definition.reciprocal_rms(case.x, case.contract, case.residual)
        right = definition.add_rms_norm(case.x, case.residual, case.gain, case.contract)
        for residual_placement in (Shard(0), Replicate(), Shard(1), Shard(2)):
            for used in ("both", "y", "sum"):
                x, gain = case.leaves(Shard(0))
                residual = place(case.residual, residual_placement).requires_grad_()
                y, total = latentkv.add_rms_norm(x, residual, gain, case.contract)
                assert_same(whole(y), right[0])
                assert_same(whole(total), right[1])
                outputs = {"both": (y, total), "y": (y,), "sum": (total,)}[used]
                upstream = {"both": (case.dy, case.dsum), "y": (case.dy,), "sum": (case.dsum,)}
                torch.autograd.backward(outputs, [place(g, Shard(0)) for g in upstream[used]])
                if used == "sum":
                    assert gain.grad is None
                    assert_same(whole(x.grad), case.dsum)
                    continue
                dx, dgain = definition.rms_norm_backward(
                    case.dy, case.x, case.gain, rstd, case.contract, case.residual,
                    case.dsum if used == "both" else None,
                )  # fmt: skip
                assert_same(whole(x.grad), dx)
                assert_same(whole(residual.grad), dx)
                assert_same(whole(gain.grad), dgain)


def check_gain_gradient_of_two_power_of_two_pieces_in_fp32():
    # 2 x 4 x 2 split along the first dimension: 8 consecutive rows each. 7 rows: 4 and 3.
    for order in ORDERS:
        for leading in ((8,), (2, 4, 2), (7,), (64,)):
            case = Case(*leading, order=order)
            x, gain = case.leaves(Shard(0))
            case.check_rms_norm(x, gain, [Shard(0)])
            assert gain.grad.placements == (Partial("sum"),)
            assert_same(whole(gain.grad), case.dgain, f"{leading}")


def check_gain_gradient_of_other_pieces():
    # 3 + 3 rows fold as (r0 + r1) + r2 on each rank, but as ((r0 + r1) + (r2 + r3)) + (r4 + r5) at
    # once. 4 x 4 split along the second dimension: the pieces are not consecutive rows.
    case = Case(6)
    x, gain = case.leaves(Shard(0))
    case.check_rms_norm(x, gain, [Shard(0)])
    pieces = [case.gradients(rows)[1] for rows in (slice(0, 3), slice(3, 6))]
    assert_same(whole(gain.grad), pieces[0] + pieces[1])
    assert not torch.equal(whole(gain.grad), case.dgain)

    case = Case(4, 4)
    x, gain = case.leaves(Shard(1))
    case.check_rms_norm(x, gain, [Shard(1)])
    pieces = [case.gradients((slice(None), half))[1] for half in (slice(0, 2), slice(2, 4))]
    assert_same(whole(gain.grad), pieces[0] + pieces[1])
    assert not torch.equal(whole(gain.grad), case.dgain)


def check_gain_gradient_in_bf16_is_rounded_before_it_is_summed():
    case = Case(8, gain=BF16)
    x, gain = case.leaves(Shard(0))
    case.check_rms_norm(x, gain, [Shard(0)])
    assert gain.grad.dtype == BF16
    pieces = [case.gradients(rows)[1] for rows in (slice(0, 4), slice(4, 8))]
    assert pieces[0].dtype == BF16
    assert_same(whole(gain.grad), pieces[0] + pieces[1])
    assert not torch.equal(whole(gain.grad), case.dgain)


def check_an_optimizer_sums_the_gain_gradient_itself():
    case = Case(8)
    x, gain = case.leaves(Shard(0))
    case.check_rms_norm(x, gain, [Shard(0)])
    torch.optim.SGD([gain], lr=0.25).step()  # a power of two: its product is exact
    assert gain.placements == (Replicate(),)
    assert_same(gain.detach().to_local(), case.gain - 0.25 * case.dgain)


def check_uneven_rows():
    for rows in (7, 3):  # 4 + 3, 2 + 1
        case = Case(rows)
        x, gain = case.leaves(Shard(0))
        assert x.to_local().shape[0] == ((rows + 1) // 2, rows // 2)[RANK]
        y = case.check_rms_norm(x, gain, [Shard(0)])
        assert y.placements == (Shard(0),)
        assert_same(whole(gain.grad), case.dgain)
    for rows in (1, 0):  # fewer than ranks: DTensor gathers them, and each rank computes all
        case = Case(rows)
        x, gain = case.leaves(Shard(0))
        case.check_rms_norm(x, gain, [Shard(0)])
        assert_same(whole(gain.grad), case.dgain)


def check_a_rank_without_rows():
    # As five rows over four ranks leave the last: its share of the gain's gradient is +0.
    case = Case(4)
    rows = slice(0, 4) if RANK == 0 else slice(0, 0)
    local = case.x[rows].requires_grad_()
    x = DTensor.from_local(local, MESH, [Shard(0)], shape=case.x.shape, stride=case.x.stride())
    gain = place(case.gain, Replicate()).requires_grad_()
    y = latentkv.rms_norm(x, gain, case.contract).to_local()
    assert_same(y.detach(), case.y[rows])
    y.backward(case.dy[rows])
    assert_same(local.grad, case.dx[rows])
    share = torch.zeros(WIDTH) if RANK else case.dgain
    assert_same(gain.grad.to_local(), share)
    assert_same(whole(gain.grad), case.dgain)


def check_split_features_are_gathered():
    for order in ORDERS:
        case = Case(4, 2, order=order)
        for x_placement, dy_placement in ((Shard(2), Shard(2)), (Shard(2), Shard(0)),
                                          (Shard(0), Shard(2)), (Shard(1), Shard(0))):  # fmt: skip
            x, gain = case.leaves(x_placement)
            y = case.check_rms_norm(x, gain, [dy_placement])
            assert y.placements[0] in (Replicate(), Shard(0), Shard(1))


def check_a_split_gain_is_gathered():
    case = Case(8)
    x, gain = case.leaves(Shard(0), gain=(Shard(0),))
    assert gain.to_local().shape == (WIDTH // 2,)
    case.check_rms_norm(x, gain, [Shard(0)])
    assert_same(whole(gain.grad), case.dgain)


def check_partial_rows_are_summed_first():
    # Half on each rank: a norm of each half would be far off, and halves add up exactly.
    case = Case(4)
    half = DTensor.from_local(case.x / 2, MESH, [Partial("sum")])
    y = latentkv.rms_norm(half, place(case.gain, Replicate()), case.contract)
    assert y.placements[0] in (Replicate(), Shard(0))
    assert_same(whole(y), case.y)
    x, gain = case.leaves(Shard(0))
    y = latentkv.rms_norm(x, gain, case.contract)
    y.backward(DTensor.from_local(case.dy / 2, MESH, [Partial("sum")]))
    assert_same(whole(x.grad), case.dx)
    assert_same(whole(gain.grad), case.dgain)


def check_expanded_gradients():
    case = Case(4, 2)
    case.dy = torch.ones((), dtype=FP32).expand(case.y.shape)
    case.dx, case.dgain = case.gradients(slice(None))
    for backward in (lambda y: y.sum().backward(), lambda y: y.to_local().sum().backward()):
        x, gain = case.leaves(Shard(0))
        backward(latentkv.rms_norm(x, gain, case.contract))
        assert_same(whole(x.grad), case.dx)
        assert_same(whole(gain.grad), case.dgain)


def check_strided_rows():
    case = Case(8)
    down = torch.full((4, 576), float("nan"), dtype=BF16)
    down[:, :WIDTH] = case.x[4 * RANK : 4 * RANK + 4]
    x = DTensor.from_local(down[:, :WIDTH], MESH, [Shard(0)]).requires_grad_()
    gain = place(case.gain, Replicate()).requires_grad_()
    case.check_rms_norm(x, gain, [Shard(0)])
    assert_same(whole(gain.grad), case.dgain)


def check_a_mesh_of_two_dimensions():
    mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("data", "tensor"))
    case = Case(8)
    for second in (Replicate(), Shard(0)):
        x, gain = case.leaves(Shard(0), second, gain=(Replicate(), Replicate()), mesh=mesh)
        case.check_rms_norm(x, gain, [Shard(0), second], mesh=mesh)
        assert gain.grad.placements[0] == Partial("sum")
        assert_same(whole(gain.grad), case.dgain)


def check_refusals():
    case = Case(4)
    x, gain = case.leaves(Shard(0))
    refused(RuntimeError, "got mixed torch.Tensor and DTensor", case.x, gain, case.contract)
    refused(RuntimeError, "got mixed torch.Tensor and DTensor", x, case.gain, case.contract)
    wide = place(torch.cat([case.x, case.x], dim=1), Shard(1))  # each rank holds the right width
    refused(ValueError, r"x has shape \(4, 1024\).*width, 512", wide, gain, case.contract)
    refused(ValueError, "gain has shape", x, place(case.gain[:256], Replicate()), case.contract)
    refused(TypeError, "float64", place(case.x.double(), Shard(0)), gain, case.contract)
    columns = DTensor.from_local(case.x.T.contiguous().T, MESH, [Shard(0)])
    refused(ValueError, "the last one must be 1", columns, gain, case.contract)
    y = latentkv.rms_norm(x, gain, case.contract)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    try:
        dx.sum().backward()
    except NotImplementedError as error:
        assert "first derivatives only" in str(error)
    else:
        raise AssertionError("a second derivative")


def refused(kind, message, *arguments):
    try:
        latentkv.rms_norm(*arguments)
    except kind as error:
        assert re.search(message, str(error)), error
    else:
        raise AssertionError(f"not refused: {message}")


class Block(torch.nn.Module):
    """Distinct tokens, so that no two rows add to one row of the embedding's gradient."""

    def __init__(self, case):
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(case.x.clone(), freeze=False)
        self.kv_a_layernorm = case.module()

    def forward(self, tokens):
        return self.kv_a_layernorm(self.embedding(tokens))


def own_rows(tensor):
    return tensor.chunk(RANKS)[RANK]


def check_fully_shard():
    # FSDP hands the module whole, plain parameters, and averages the gradients: sum, then half.
    for x, gain in ((FP32, FP32), (BF16, FP32)):
        case = Case(8, x=x, gain=gain)
        model = Block(case)
        fully_shard(model.kv_a_layernorm, mesh=MESH)
        fully_shard(model, mesh=MESH)
        weight = model.kv_a_layernorm.weight
        assert weight.placements == (Shard(0),)
        y = model(own_rows(torch.arange(8)))
        assert type(y) is torch.Tensor
        assert_same(y.detach(), own_rows(case.y))
        y.backward(own_rows(case.dy))
        assert weight.grad.placements == (Shard(0),)
        assert_same(whole(weight.grad), case.dgain / 2)
        assert_same(whole(model.embedding.weight.grad), case.dx / 2)


def check_fully_shard_in_mixed_precision_rounds_each_rank():
    case = Case(8, x=FP32, gain=FP32)
    model = Block(case)
    policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32)
    fully_shard(model.kv_a_layernorm, mesh=MESH, mp_policy=policy)
    fully_shard(model, mesh=MESH, mp_policy=policy)
    y = model(own_rows(torch.arange(8)))
    case.x, gain = case.x.bfloat16(), case.gain.bfloat16()
    assert_same(y.detach(), definition.rms_norm(own_rows(case.x), gain, case.contract))
    case.dy = case.dy.bfloat16()
    y.backward(own_rows(case.dy))
    grad = whole(model.kv_a_layernorm.weight.grad)
    pieces = [case.gradients(rows, gain)[1] for rows in (slice(0, 4), slice(4, 8))]
    assert pieces[0].dtype == BF16
    assert_same(grad, (pieces[0].float() + pieces[1].float()) / 2)
    case.dy = case.dy.float()  # as an fp32 gain's output has it: then D stays in fp32
    unrounded = case.gradients(slice(None), gain.float())[1]
    assert not torch.equal(grad, unrounded / 2)


def check_distributed_data_parallel():
    case = Case(8)
    model = torch.nn.parallel.DistributedDataParallel(case.module())
    y = model(own_rows(case.x))
    assert_same(y.detach(), own_rows(case.y))
    y.backward(own_rows(case.dy))
    assert_same(model.module.weight.grad, case.dgain / 2)


def check_fully_shard_around_sequence_parallel():
    # The rows of one sequence over "tensor"; FSDP sums the partial gradient before its own part.
    mesh = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("data", "tensor"))
    case = Case(8)
    norm = case.module()
    parallelize_module(norm, mesh["tensor"], SequenceParallel(sequence_dim=0))
    fully_shard(norm, mesh=mesh["data"])
    x = place(case.x, Shard(0), mesh=mesh["tensor"]).requires_grad_()
    y = norm(x)
    assert y.placements == (Shard(0),)
    assert_same(whole(y), case.y)
    y.backward(place(case.dy, Shard(0), mesh=mesh["tensor"]))
    assert_same(whole(x.grad), case.dx)
    assert norm.weight.grad.placements == (Shard(0), Replicate())
    assert_same(whole(norm.weight.grad), case.dgain)


def check_sequence_parallel():
    # [sequence, batch] split along the first dimension, and a batch of one: consecutive rows.
    for leading, dim in (((8, 2), 0), ((1, 8), 1)):
        for local in (False, True):
            case = Case(*leading)
            model = torch.nn.ModuleDict({"kv_a_layernorm": case.module()})
            parallelize_module(model, MESH, {"kv_a_layernorm": SequenceParallel(sequence_dim=dim)})
            norm = model["kv_a_layernorm"]
            assert norm.weight.placements == (Replicate(),)
            x = place(case.x, Shard(dim))
            x = (x.to_local() if local else x).requires_grad_()
            y = norm(x)
            assert y.placements == (Shard(dim),)
            assert_same(whole(y), case.y)
            y.backward(place(case.dy, Shard(dim)))
            dx = DTensor.from_local(x.grad, MESH, [Shard(dim)]) if local else x.grad
            assert_same(whole(dx), case.dx)
            assert norm.weight.grad.placements == (Partial("sum"),)
            assert_same(whole(norm.weight.grad), case.dgain)


def check_sequence_parallel_gathers_nothing():
    case = Case(8, 2)
    norm = case.module()
    parallelize_module(norm, MESH, SequenceParallel(sequence_dim=0, use_local_output=True))
    x = place(case.x, Shard(0)).to_local().requires_grad_()
    with CommDebugMode() as sent:
        y = norm(x)
        y.backward(place(case.dy, Shard(0)).to_local())
    assert sent.get_total_counts() == 0
    assert type(y) is torch.Tensor
    assert_same(x.grad, place(case.dx, Shard(0)).to_local())


def check_a_style_of_ones_own():
    class Split(ParallelStyle):
        """Parameters replicated, as `distribute_module` does by itself; rows as they come."""

        def _apply(self, module, mesh):
            return torch.distributed.tensor.distribute_module(module, mesh)

    case = Case(4, 4)
    norm = parallelize_module(case.module(), MESH, Split())
    x = place(case.x, Shard(0)).requires_grad_()
    y = norm(x)
    assert y.placements == (Shard(0),)
    y.backward(place(case.dy, Shard(0)))
    assert_same(whole(x.grad), case.dx)
    assert_same(whole(norm.weight.grad), case.dgain)


def check_compiled():
    case = Case(8)
    function = torch.compile(latentkv.rms_norm, backend="aot_eager", fullgraph=True)
    x, gain = case.leaves(Shard(0))
    with warnings.catch_warnings():
        # Tracing any autograd.Function warns so, in torch's own code.
        warnings.filterwarnings("ignore", "<class .*Function'> should not be instantiated")
        y = function(x, gain, case.contract)
    assert y.placements == (Shard(0),)
    assert_same(whole(y), case.y)
    y.backward(place(case.dy, Shard(0)))
    assert_same(whole(x.grad), case.dx)
    assert_same(whole(gain.grad), case.dgain)


def check_the_page_s_example():
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL).group(1)
    scope = {}
    exec(compile(code, PAGE.name, "exec"), scope)
    x, norm, y = (scope[name] for name in ("x", "norm", "y"))
    dx, dgain = definition.rms_norm_backward(
        torch.ones(y.shape),
        whole(x),
        norm.weight.detach().to_local(),
        definition.reciprocal_rms(whole(x), norm.contract),
        norm.contract,
    )
    assert_same(whole(x.grad), dx)
    assert_same(scope["gradient"], dgain)


def main():
    global MESH
    torch.set_num_threads(1)
    # The other rank's end is noticed at once; this is for what hangs all the same.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[3]}",
        rank=RANK,
        world_size=RANKS,
        timeout=timedelta(seconds=30),
    )
    MESH = init_device_mesh("cpu", (RANKS,))
    warnings.simplefilter("error")
    for name, check in [item for item in globals().items() if item[0].startswith("check_")]:
        print("started", name, flush=True)
        try:
            check()
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        dist.barrier()
        print("passed", name, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
