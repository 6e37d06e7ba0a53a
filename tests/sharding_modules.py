"""The module under FSDP2, DistributedDataParallel and sequence parallelism."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.distributed as dist
from helpers import ORDERS, assert_same
from sharding_mesh import BF16, FP32, WIDTH, Case, all_ranks, own_rows, place, tracing, whole
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ParallelStyle,
    SequenceParallel,
    parallelize_module,
)

import latentkv
from latentkv import definition

PAGE = Path(__file__).parents[1] / "docs/sharding.md"


class Block(torch.nn.Module):
    """Distinct tokens, so that no two rows add to one row of the embedding's gradient."""

    def __init__(self, case):
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(case.x.clone(), freeze=False)
        self.kv_a_layernorm = case.module()

    def forward(self, tokens):
        return self.kv_a_layernorm(self.embedding(tokens))


def check_fully_shard():
    # FSDP hands the module whole, plain parameters, and averages the gradients: sum, then half.
    for x, gain in ((FP32, FP32), (BF16, FP32)):
        case = Case(8, x=x, gain=gain)
        model = Block(case)
        fully_shard(model.kv_a_layernorm, mesh=all_ranks())
        fully_shard(model, mesh=all_ranks())
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
    fully_shard(model.kv_a_layernorm, mesh=all_ranks(), mp_policy=policy)
    fully_shard(model, mesh=all_ranks(), mp_policy=policy)
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
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("data", "tensor"))
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
            parallelize_module(
                model, all_ranks(), {"kv_a_layernorm": SequenceParallel(sequence_dim=dim)}
            )
            norm = model["kv_a_layernorm"]
            assert norm.weight.placements == (Replicate(),)
            x = place(case.x, Shard(dim))
            x = (x.to_local() if local else x).requires_grad_()
            y = norm(x)
            assert y.placements == (Shard(dim),)
            assert_same(whole(y), case.y)
            y.backward(place(case.dy, Shard(dim)))
            dx = DTensor.from_local(x.grad, all_ranks(), [Shard(dim)]) if local else x.grad
            assert_same(whole(dx), case.dx)
            assert norm.weight.grad.placements == (Partial("sum"),)
            assert_same(whole(norm.weight.grad), case.dgain)


def check_sequence_parallel_gathers_nothing():
    case = Case(8, 2)
    norm = case.module()
    parallelize_module(norm, all_ranks(), SequenceParallel(sequence_dim=0, use_local_output=True))
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
    norm = parallelize_module(case.module(), all_ranks(), Split())
    x = place(case.x, Shard(0)).requires_grad_()
    y = norm(x)
    assert y.placements == (Shard(0),)
    y.backward(place(case.dy, Shard(0)))
    assert_same(whole(x.grad), case.dx)
    assert_same(whole(norm.weight.grad), case.dgain)


def check_one_rank_is_the_plain_norm():
    # Each rank is a mesh of its own here, so there are no shares: a bf16 gain agrees as well.
    alone = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("all", "alone"))
    alone = alone["alone"]
    assert alone.size() == 1
    for order in ORDERS:
        for gain in (FP32, BF16):
            case = Case(5, 2, order=order, gain=gain)
            plain, wrapped = case.module(), case.module()
            parallelize_module(wrapped, alone, SequenceParallel(sequence_dim=0))
            x = case.x.clone().requires_grad_()
            plain(x).backward(case.dy)
            sharded = place(case.x, Shard(0), mesh=alone).requires_grad_()
            y = wrapped(sharded)
            assert y.placements == (Shard(0),)
            assert_same(whole(y), plain(x).detach(), "y")
            y.backward(place(case.dy, Shard(0), mesh=alone))
            assert_same(whole(sharded.grad), x.grad, "dx")
            assert wrapped.weight.grad.placements == (Partial("sum"),)
            assert_same(whole(wrapped.weight.grad), plain.weight.grad, "dgain")


def check_every_way_to_train_adds_the_shares_once():
    # x / rms(x) is exactly 1 (eps vanishes in 2^24), so the shares are the gradients given: 1 and
    # 3. One share alone, a mean, or a share counted twice is not 4.
    case = Case(2, gain=FP32, x=FP32)
    case.x.fill_(4096)
    gradient = torch.tensor([[1.0], [3.0]]).expand(2, WIDTH).contiguous()

    def parallel(norm):
        return parallelize_module(norm, all_ranks(), SequenceParallel(sequence_dim=0))

    def compiled(norm):
        norm.compile(backend="aot_eager", fullgraph=True)
        return norm

    def host():
        norm = torch.nn.RMSNorm(WIDTH, eps=case.contract.eps)
        norm.load_state_dict({"weight": case.gain})
        return torch.nn.ModuleDict({"kv_norm": norm})

    def replaced(model):
        assert latentkv.replace_latent_norms(model, contract=case.contract) == ["kv_norm"]
        return model["kv_norm"]

    sharded = host()
    parallel(sharded["kv_norm"])
    norms = {
        "LatentRMSNorm": parallel(case.module()),
        "compiled": compiled(parallel(case.module())),
        "replaced, then sharded": parallel(replaced(host())),
        "sharded, then replaced": replaced(sharded),
    }
    ways = {name: (norm, norm.weight) for name, norm in norms.items()}
    gain, other = (place(case.gain.clone(), Replicate()).requires_grad_() for _ in range(2))
    zeros = place(torch.zeros_like(case.x), Shard(0))
    ways["rms_norm"] = lambda x: latentkv.rms_norm(x, gain, case.contract), gain
    ways["add_rms_norm"] = lambda x: latentkv.add_rms_norm(x, zeros, other, case.contract)[0], other
    for name, (function, weight) in ways.items():
        with tracing():  # for the compiled one
            y = function(place(case.x, Shard(0)))
        y.backward(place(gradient, Shard(0)))
        share = (1.0, 3.0)[dist.get_rank()]
        assert_same(weight.grad.to_local(), torch.full((WIDTH,), share), name)
        assert_same(whole(weight.grad), torch.full((WIDTH,), 4.0), name)


def check_compiled_around_sequence_parallel():
    # Tracing meets the gain as a parameter that is a DTensor; the hook makes x one, where it isn't.
    for local in (False, True):
        case = Case(8)
        norm = case.module()
        parallelize_module(norm, all_ranks(), SequenceParallel(sequence_dim=0))
        function = torch.compile(norm, backend="aot_eager", fullgraph=True)
        x = place(case.x, Shard(0))
        x = (x.to_local() if local else x).requires_grad_()
        with tracing():
            y = function(x)
        assert y.placements == (Shard(0),)
        assert_same(whole(y), case.y)
        y.backward(place(case.dy, Shard(0)))
        dx = DTensor.from_local(x.grad, all_ranks(), [Shard(0)]) if local else x.grad
        assert_same(whole(dx), case.dx)
        assert_same(whole(norm.weight.grad), case.dgain)


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
