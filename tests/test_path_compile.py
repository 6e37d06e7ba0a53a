"""The key-value path in graphs, and as the first call of a process."""

import pytest
import torch
from helpers import assert_same, check_python, random_gain, random_rows
from kv_rows import K2, KINDS, V32, caches, path, some_positions, table_of

import latentkv
from latentkv import _plans, definition

BF16, FP32 = torch.bfloat16, torch.float32


# Everything here compiles or exports, where torch uses what it and Python call deprecated.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:torch\."),
    pytest.mark.filterwarnings(
        r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated:FutureWarning"
    ),
]


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_bits(kind):
    # Between other operations, which inductor fuses and reorders among themselves; two layers.
    contract, positions = KINDS[kind], some_positions(7)
    down, gains = random_rows(7, 640), [random_gain(512, seed=s) for s in (1, 2)]

    def block(down, positions):
        one = latentkv.compress_kv(down[:, 32:608] * 2, gains[0], contract, positions)
        other = latentkv.compress_kv(down[:, 64:] + down[:, :576], gains[1], contract, positions)
        return [part * 4 for part in (*one, *other)]

    compiled = torch.compile(block, fullgraph=True)
    eager = block(down, positions)
    for actual, expected in zip(compiled(down, positions), eager, strict=True):
        assert_same(actual, expected)


def test_two_rotations_in_one_graph():
    one, other = path(rotation="half_each_step"), path(rotation="interleaved_result")
    down, gain, positions = random_rows(3, 576), random_gain(512), some_positions(3)

    def block(down):
        first = latentkv.compress_kv(down, gain, one, positions)
        return *first, *latentkv.compress_kv(down, gain, other, positions)

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for actual, expected in zip(compiled(down), block(down), strict=True):
        assert_same(actual, expected)


def tables_in(graph, inputs):
    """What a backend is given, constants too, that has the shape of a rotary table."""
    values = [*inputs, *graph.buffers(), *vars(graph).values()]
    shape = (K2.rope.max_positions, 64)
    return [v for v in values if isinstance(v, torch.Tensor) and tuple(v.shape) == shape]


def test_compiled_with_dynamic_shapes():
    # One graph for all numbers of rows, and in it the one table that everybody shares.
    gain, graphs = random_gain(512), []

    def counting(graph, inputs):
        graphs.append(tables_in(graph, inputs))
        return graph.forward

    for backend in ("inductor", counting):
        compiled = torch.compile(
            lambda down, positions: latentkv.compress_kv(down, gain, K2, positions),
            fullgraph=True,
            dynamic=True,
            backend=backend,
        )
        for rows in (2, 3, 33, 257):
            down = random_rows(rows, 4, 640, seed=rows)[..., :576]
            positions = some_positions(rows, 4, below=K2.rope.max_positions, seed=rows)
            right = definition.compress_kv(down, gain, K2, positions, table_of(K2))
            for actual, expected in zip(compiled(down, positions), right, strict=True):
                assert_same(actual, expected, f"{rows} rows")
    shared = _plans.shared_table(K2.rope, torch.device("cpu"))
    assert [[t.data_ptr() for t in tables] for tables in graphs] == [[shared.data_ptr()]]


def test_equal_contracts_share_a_table():
    # In graphs, in eager calls, and for other norms and codes around the same rotation.
    first, second = path(rotation="half_result"), path(rotation="half_result", rule="sglang")
    assert first.rope == second.rope and first.rope is not second.rope
    down, gain, positions = random_rows(3, 576), random_gain(512), some_positions(3)
    latentkv.compress_kv(down, gain, first, positions)
    shared = _plans.shared_table(first.rope, down.device)
    before = len(_plans._TABLES)
    for contract in (first, second, path(rotation="half_result", order="gain_then_cast")):
        latentkv.compress_kv(down, gain, contract, positions)
        torch.compile(latentkv.compress_kv, fullgraph=True, backend="aot_eager")(
            down, gain, contract, positions
        )
        assert _plans.shared_table(contract.rope, down.device) is shared
    assert len(_plans._TABLES) == before
    assert_same(shared, definition.rotary_table(first.rope))


@pytest.mark.parametrize(("backend", "dynamic"), [("inductor", True), ("aot_eager", False)])
def test_compiled_forward_and_backward(backend, dynamic):
    # Between other operations; doubling is exact in any order.
    gains = [random_gain(512, seed=s).requires_grad_() for s in (1, 2)]

    def block(down, gains, positions):
        latent, key = latentkv.compress_kv(down[:, :576] * 2, gains[0], V32, positions)
        other, other_key = latentkv.compress_kv(down[:, 64:] * 4, gains[1], V32, positions)
        return latent * 2, key * 2, other * 4, other_key * 4

    def run(function, rows):
        down = random_rows(rows, 640, seed=3).requires_grad_()
        outputs = function(down, gains, some_positions(rows))
        above = [random_rows(*value.shape, seed=s) for s, value in enumerate(outputs)]
        grads = torch.autograd.grad(outputs, (down, *gains), above)
        return *(value.detach() for value in outputs), *grads

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend=backend)
    for rows in (7, 257):
        for value, expected in zip(run(compiled, rows), run(block, rows), strict=True):
            assert_same(value, expected, f"{rows} rows")


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_compiled_write(backend):
    # The cache changes in place, before what follows it in the graph and after what precedes it.
    gain, slots = random_gain(512), torch.tensor([3, -1, 200, 64, 3, 319, 63])
    down, positions = random_rows(7, 576), some_positions(7)
    # A plain cache looks the same to a backend for both models: each graph takes inductor seconds.
    for contract in (K2, V32) if backend == "aot_eager" else (V32,):
        for cache in caches(contract):

            def block(cache, down, slots, positions, contract=contract):
                before = cache[0, 3].clone()
                latentkv.write_kv(cache, slots, down * 2, gain, contract, positions)
                return before, cache[0, 3] + cache[1, 0]

            eager, compiled = cache.clone(), cache.clone()
            right = block(eager, down, slots, positions)
            function = torch.compile(block, fullgraph=True, backend=backend)
            actual = function(compiled, down, slots, positions)
            assert_same(compiled, eager)
            assert not torch.equal(eager, cache)
            for value, expected in zip(actual, right, strict=True):
                assert_same(value, expected)


def test_a_compiled_write_with_dynamic_shapes():
    gain, graphs = random_gain(512), 0

    def counting(graph, inputs):
        nonlocal graphs
        graphs += 1
        return graph.forward

    def block(cache, down, slots, positions):
        latentkv.write_kv(cache, slots, down, gain, V32, positions)

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counting)
    for rows in (2, 3, 33, 257):
        cache = torch.zeros(8, 64, 656, dtype=torch.uint8)
        down, slots = random_rows(rows, 576, seed=rows), torch.randperm(512)[:rows]
        positions = some_positions(rows, seed=rows)
        eager = cache.clone()
        block(eager, down, slots, positions)
        compiled(cache, down, slots, positions)
        assert_same(cache, eager, f"{rows} rows")
    assert graphs == 1


@pytest.mark.parametrize("contract", [K2, path()], ids=["rotated", "not rotated"])
def test_wrong_widths_are_refused_while_tracing(contract):
    # Latent and key are told apart by the contract, never by what a gain's length leaves over.
    positions, cache = some_positions(3), torch.zeros(1, 64, 576, dtype=BF16)
    write = torch.compile(
        lambda down, gain: latentkv.write_kv(
            cache, torch.arange(3), down, gain, contract, positions
        ),
        fullgraph=True,
    )
    read = torch.compile(
        lambda down, gain: latentkv.compress_kv(down, gain, contract, positions), fullgraph=True
    )
    for compiled in (read, write):
        with pytest.raises(Exception, match="must be 576"):
            compiled(random_rows(3, 640), random_gain(512))
        with pytest.raises(Exception, match="512 elements"):
            compiled(random_rows(3, 576), random_gain(500))


class Attention(torch.nn.Module):
    """What stands between two projections, as one is exported."""

    def __init__(self, contract):
        super().__init__()
        self.gain, self.contract = torch.nn.Parameter(random_gain(512)), contract

    def forward(self, down, positions):
        return latentkv.compress_kv(down, self.gain, self.contract, positions)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("contract", [K2, V32], ids=["kimi-k2", "deepseek-v3.2-exp"])
def test_exported(contract, strict):
    module, rows = Attention(contract).requires_grad_(False), torch.export.Dim("rows", max=4096)
    example = (random_rows(5, 576), some_positions(5))
    module(*example)
    program = torch.export.export(
        module, example, strict=strict, dynamic_shapes=({0: rows}, {0: rows})
    )
    for count in (2, 5, 257):
        given = (random_rows(count, 576, seed=count), some_positions(count, seed=count))
        for actual, eager in zip(program.module()(*given), module(*given), strict=True):
            assert_same(actual, eager, f"{count} rows")
    decomposed = program.run_decompositions()  # nothing takes the operator apart
    assert "latentkv.compress_kv" in str(decomposed.graph)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_write(strict):
    class Write(torch.nn.Module):
        def forward(self, cache, slots, down, gain, positions):
            latentkv.write_kv(cache, slots, down, gain, V32, positions)
            return cache[0, 0] * 1

    cache = torch.zeros(3, 64, 656, dtype=torch.uint8)
    given = (torch.tensor([0, 190, -1]), random_rows(3, 576), random_gain(512), some_positions(3))
    eager, exported = cache.clone(), cache.clone()
    right = Write()(eager, *given)
    program = torch.export.export(Write(), (cache.clone(), *given), strict=strict)
    assert_same(program.module()(exported, *given), right)
    assert_same(exported, eager)


# The first call of a process builds the table that all later ones share, whatever that call was.
def first_calls():
    contract = path(rotation="half_each_step")
    rows, gain, positions = random_rows(5, 576), random_gain(512), some_positions(5)

    class Module(torch.nn.Module):
        def forward(self, down, positions):
            return latentkv.compress_kv(down, gain, contract, positions)

    def call(down=rows, positions=positions):
        return latentkv.compress_kv(down, gain, contract, positions)

    def within(manager):
        with manager:
            call()

    def with_default(setting, value):
        getattr(torch, f"set_default_{setting}")(value)
        try:
            call()
        finally:
            torch.set_default_dtype(FP32)
            torch.set_default_device(None)

    def fake():
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(value) for value in (rows, gain, positions)]
            latentkv.compress_kv(*fakes[:2], contract, fakes[2])

    def flushing():
        torch.set_flush_denormal(True)
        try:
            call()
        finally:
            torch.set_flush_denormal(False)

    def write(cache):
        latentkv.write_kv(cache, torch.arange(5), rows, gain, contract, positions)

    def compiled(function, *arguments, **options):
        torch.compile(function, fullgraph=True, backend="aot_eager", **options)(*arguments)

    calls = {
        "in inference mode": lambda: within(torch.inference_mode()),
        "without gradients": lambda: within(torch.no_grad()),
        "with a gradient": lambda: call(rows.clone().requires_grad_()),
        "default dtype bfloat16": lambda: with_default("dtype", BF16),
        "default dtype float64": lambda: with_default("dtype", torch.float64),
        "default device": lambda: with_default("device", "meta"),
        "a device's context": lambda: within(torch.device("meta")),
        "on the meta device": lambda: latentkv.compress_kv(
            rows.to("meta"), gain.to("meta"), contract, positions.to("meta")
        ),
        "fake tensors": fake,
        "autocast": lambda: within(torch.autocast("cpu", dtype=BF16)),
        "flushing": flushing,
        "a level of forward mode": lambda: within(torch.autograd.forward_ad.dual_level()),
        "vmap": lambda: torch.func.vmap(call)(rows, positions),
        "torch.func.grad": lambda: torch.func.grad(lambda down: call(down)[1].sum())(rows),
        "compile": lambda: compiled(call, rows),
        "compile, dynamic": lambda: compiled(call, rows, dynamic=True),
        "compile, with a gradient": lambda: compiled(call, rows.clone().requires_grad_()),
        "compile a write": lambda: compiled(write, torch.zeros(1, 64, 576, dtype=BF16)),
        "export": lambda: torch.export.export(Module(), (rows, positions), strict=True),
        "export, not strict": lambda: torch.export.export(
            Module(), (rows, positions), strict=False
        ),
    }
    return calls, contract, rows, gain, positions


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet")
@pytest.mark.parametrize("first", first_calls()[0])
def test_the_first_call_leaves_a_right_table(first, monkeypatch):
    # As in a fresh process: nothing has been looked up, nothing built.
    monkeypatch.setattr(_plans, "_TABLES", {})
    monkeypatch.setattr(_plans, "_PLANS", {})
    calls, contract, rows, gain, positions = first_calls()
    calls[first]()
    assert len(_plans._TABLES) == 1
    table = _plans.shared_table(contract.rope, torch.device("cpu"))
    assert type(table) is torch.Tensor and table.dtype == FP32 and not table.is_meta
    assert not table.is_inference() and not table.requires_grad and table.is_contiguous()
    assert_same(table, definition.rotary_table(contract.rope))
    right = definition.compress_kv(rows, gain, contract, positions)
    inputs = rows.clone().requires_grad_()
    outputs = latentkv.compress_kv(inputs, gain, contract, positions)
    eager = latentkv.compress_kv(rows, gain, contract, positions)
    for value, other, expected in zip(outputs, eager, right, strict=True):
        assert_same(value.detach(), expected)
        assert_same(other, expected)
    above = [torch.ones_like(value) for value in right]
    (grad,) = torch.autograd.grad(outputs, inputs, above)
    expected, _ = definition.compress_kv_backward(*above, rows, gain, contract, positions)
    assert_same(grad, expected)


FIRST_CALLS = """
import warnings
import torch, latentkv
from helpers import assert_same, random_gain, random_rows
from kv_rows import path, some_positions
from latentkv import _plans, definition

contract = path(rotation="half_each_step")
rows, gain, positions = random_rows(5, 576), random_gain(512), some_positions(5)
assert not _plans._TABLES
torch.set_default_dtype(torch.bfloat16)
call = lambda down: latentkv.compress_kv(down, gain, contract, positions)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(rows)
torch.set_default_dtype(torch.float32)
right = definition.compress_kv(rows, gain, contract, positions)
for one, other, expected in zip(compiled, call(rows), right):
    assert_same(one, expected)
    assert_same(other, expected)
"""


def test_the_first_calls_of_a_fresh_process():
    # A model built in bf16, compiled at once; on the definition, test_path_definition.py runs it.
    check_python(FIRST_CALLS)


def test_the_definition_refuses_to_be_compiled():
    @torch.compile(fullgraph=True, backend="eager")
    def graph(down, gain, positions):
        return definition.compress_kv(down, gain, K2, positions)

    with pytest.raises(RuntimeError, match="latentkv.definition can't be compiled"):
        graph(random_rows(2, 576), random_gain(512), some_positions(2))
