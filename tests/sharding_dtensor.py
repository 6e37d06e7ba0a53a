"""DTensor's rules for the operators: what is placed where, what is sent, and the bits."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist
from helpers import ORDERS, assert_same
from sharding_mesh import BF16, FP32, WIDTH, Case, all_ranks, place, tracing, whole
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

import latentkv
from latentkv import definition


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


def check_each_gradient_alone():
    # The operators compute all of them; a leaf that needs none must not stop another's.
    case = Case(8)
    rstd = definition.reciprocal_rms(case.x, case.contract, case.residual)
    dx, dgain = definition.rms_norm_backward(
        case.dy, case.x, case.gain, rstd, case.contract, case.residual
    )
    alone = {"x": case.dx, "gain": case.dgain}
    added = {"x": dx, "residual": dx, "gain": dgain}
    for function, right in ((latentkv.rms_norm, alone), (latentkv.add_rms_norm, added)):
        for wanted in right:
            given = {
                name: place(getattr(case, name), Replicate() if name == "gain" else Shard(0))
                for name in right
            }
            given[wanted].requires_grad_()
            y = function(*given.values(), case.contract)
            (y if right is alone else y[0]).backward(place(case.dy, Shard(0)))
            for name, tensor in given.items():
                if name == wanted:
                    assert_same(whole(tensor.grad), right[name], f"{function.__name__}: {name}")
                else:
                    assert tensor.grad is None, (function.__name__, wanted, name)


def check_uneven_rows():
    for rows in (7, 3):  # 4 + 3, 2 + 1
        case = Case(rows)
        x, gain = case.leaves(Shard(0))
        assert x.to_local().shape[0] == ((rows + 1) // 2, rows // 2)[dist.get_rank()]
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
    rows = slice(0, 4) if dist.get_rank() == 0 else slice(0, 0)
    local = case.x[rows].requires_grad_()
    x = DTensor.from_local(
        local, all_ranks(), [Shard(0)], shape=case.x.shape, stride=case.x.stride()
    )
    gain = place(case.gain, Replicate()).requires_grad_()
    y = latentkv.rms_norm(x, gain, case.contract).to_local()
    assert_same(y.detach(), case.y[rows])
    y.backward(case.dy[rows])
    assert_same(local.grad, case.dx[rows])
    share = torch.zeros(WIDTH) if dist.get_rank() else case.dgain
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
    half = DTensor.from_local(case.x / 2, all_ranks(), [Partial("sum")])
    y = latentkv.rms_norm(half, place(case.gain, Replicate()), case.contract)
    assert y.placements[0] in (Replicate(), Shard(0))
    assert_same(whole(y), case.y)
    x, gain = case.leaves(Shard(0))
    y = latentkv.rms_norm(x, gain, case.contract)
    y.backward(DTensor.from_local(case.dy / 2, all_ranks(), [Partial("sum")]))
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
    down[:, :WIDTH] = case.x[4 * dist.get_rank() : 4 * dist.get_rank() + 4]
    x = DTensor.from_local(down[:, :WIDTH], all_ranks(), [Shard(0)]).requires_grad_()
    gain = place(case.gain, Replicate()).requires_grad_()
    case.check_rms_norm(x, gain, [Shard(0)])
    assert_same(whole(gain.grad), case.dgain)


def check_a_mesh_of_two_dimensions():
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("data", "tensor"))
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
    columns = DTensor.from_local(case.x.T.contiguous().T, all_ranks(), [Shard(0)])
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


def check_compiled():
    case = Case(8)
    function = torch.compile(latentkv.rms_norm, backend="aot_eager", fullgraph=True)
    x, gain = case.leaves(Shard(0))
    with tracing():
        y = function(x, gain, case.contract)
    assert y.placements == (Shard(0),)
    assert_same(whole(y), case.y)
    y.backward(place(case.dy, Shard(0)))
    assert_same(whole(x.grad), case.dx)
    assert_same(whole(gain.grad), case.dgain)
