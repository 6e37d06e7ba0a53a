"""The key-value path in graphs, under fake tensors, and as the first call of a process."""

import pytest
import torch
from helpers import (
    ORDERS,
    PAIRS,
    assert_same,
    check_python,
    name_of,
    output_dtype,
    random_gain,
    random_rows,
)
from test_path import ALL_RULES, K2, V32, path, some_positions
from test_path_autograd import numerics

import latentkv
from latentkv import _plans, definition

# Everything here compiles or exports, where torch uses what it and Python call deprecated.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:torch\."),
    pytest.mark.filterwarnings(
        r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated:FutureWarning"
    ),
]
BF16, FP32 = torch.bfloat16, torch.float32
OPS = torch.ops.latentkv


@pytest.fixture(autouse=True)
def fresh_graphs():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


KINDS = {
    "half, power of two": path(rotation="half_each_step", rule="act_quant", group=128),
    "interleaved": path(order="gain_then_cast", rotation="interleaved_result"),
    "not rotated, fused": path(order="gain_then_cast", rule="vllm_fused", group=128),
}


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
            right = definition.compress_kv(down, gain, K2, positions)
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


@pytest.mark.parametrize(
    ("backend", "dynamic"), [("inductor", True), ("aot_eager", True), ("aot_eager", False)]
)
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


def caches(contract, blocks=5):
    """One in the rows' dtype, and one of bytes where there are codes."""
    dtypes = [(BF16, 576)] + ([(torch.uint8, 656)] if contract.quant else [])
    for dtype, width in dtypes:
        yield torch.full((blocks, 64, width), 7, dtype=dtype)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_compiled_write(backend):
    # The cache changes in place, before what follows it in the graph and after what precedes it.
    gain, slots = random_gain(512), torch.tensor([3, -1, 200, 64, 3, 319, 63])
    down, positions = random_rows(7, 576), some_positions(7)
    for contract in (K2, V32):
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


SAMPLES = {
    "slice": lambda: random_rows(4, 2112)[:, 1536:],
    "permuted": lambda: random_rows(2, 3, 4, 576).permute(2, 0, 1, 3),
    "expanded": lambda: random_rows(1, 576).expand(5, 576),
    "row": lambda: random_rows(576),
    "no rows": lambda: random_rows(2, 0, 576),
}


def table_of(contract):
    return definition.rotary_table(contract.rope) if contract.rope else None


@pytest.mark.parametrize("sample", SAMPLES)
def test_opcheck(sample):
    # The first layout with every kind, the others with one: they matter to shapes and strides.
    check, down = torch.library.opcheck, SAMPLES[sample]()
    kinds = KINDS.values() if sample == "slice" else [KINDS["half, power of two"]]
    for contract, gain in zip(kinds, (random_gain(512), random_gain(512, FP32)) * 2, strict=False):
        table, positions = table_of(contract), some_positions(*down.shape[:-1])
        given = (down, gain, positions, table, *numerics(contract))
        check(OPS.compress_kv.default, given)
        check(OPS.compress_kv_fwd.default, given)
        latent, key, rstd = OPS.compress_kv_fwd(*given)
        above, (order, rope) = (latent + 1, key + 1), numerics(contract)[1:3]
        check(
            OPS.compress_kv_bwd.default, (*above, down, gain, rstd, positions, table, order, rope)
        )


@pytest.mark.parametrize("sample", ["slice", "permuted", "no rows"])
def test_opcheck_of_a_write(sample):
    down, gain, contract = SAMPLES[sample](), random_gain(512), KINDS["half, power of two"]
    positions = some_positions(*down.shape[:-1])
    slots = torch.arange(positions.numel()).view(positions.shape)
    for cache in caches(contract):
        torch.library.opcheck(
            OPS.write_kv.default,
            (cache, slots, down, gain, positions, table_of(contract), *numerics(contract)),
        )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("rotation", ["", "half_each_step"])
def test_fakes_tell_the_truth(sample, rotation, order):
    # empty_like would keep a permuted input's strides: the outputs are contiguous.
    for pair, rule in zip(PAIRS, ALL_RULES * 2, strict=False):
        down, gain = SAMPLES[sample]().to(pair[0]), random_gain(512, pair[1])
        positions = some_positions(*down.shape[:-1])
        contract = path(order=order, rotation=rotation, rule=rule, group=128)
        right = latentkv.compress_kv(down, gain, contract, positions)
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = (mode.from_tensor(value) for value in (down, gain, positions))
            fake_down, fake_gain, fake_positions = fakes
            told = latentkv.compress_kv(fake_down, fake_gain, contract, fake_positions)
        for value, true in zip(told, right, strict=True):
            assert value.shape == true.shape and value.dtype == true.dtype
            assert value.stride() == true.stride() and true.is_contiguous()
        assert right[0].dtype == output_dtype(*pair, order) and right[1].dtype == pair[0]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
@pytest.mark.parametrize("sample", SAMPLES)
def test_the_meta_device(sample, pair, order):
    # Shapes without memory, of gradients as well: what a device without a kernel is asked first.
    down, gain = SAMPLES[sample]().to(pair[0]), random_gain(512, pair[1])
    positions = some_positions(*down.shape[:-1])
    for rotation, rule in (("", ""), ("half_each_step", "act_quant")):
        contract = path(order=order, rotation=rotation, rule=rule, group=128)
        answers = []
        for device in ("cpu", "meta"):
            inputs = [v.detach().to(device).requires_grad_() for v in (down, gain)]
            outputs = latentkv.compress_kv(*inputs, contract, positions.to(device))
            above = [torch.ones_like(value) for value in outputs]
            answers.append((*outputs, *torch.autograd.grad(outputs, inputs, above)))
        for true, told in zip(*answers, strict=True):
            assert told.is_meta and told.shape == true.shape and told.dtype == true.dtype
            assert told.stride() == true.stride()


def test_writes_to_the_meta_device():
    down, gain, positions = random_rows(3, 576), random_gain(512), some_positions(3)
    for cache in caches(V32):
        given = (cache, torch.arange(3), down, gain, V32, positions)
        latentkv.write_kv(*(v.to("meta") if isinstance(v, torch.Tensor) else v for v in given))


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


@pytest.mark.parametrize("backend", ["", "definition"])
def test_the_first_calls_of_a_fresh_process(backend):
    # A model built in bf16, compiled at once, on whichever backend.
    check_python(
        "import warnings\n"
        "warnings.simplefilter('ignore')\n"
        "import test_path_compile as t\n"
        "torch, latentkv = t.torch, t.latentkv\n"
        "contract = t.path(rotation='half_each_step')\n"
        "rows, gain, positions = t.random_rows(5, 576), t.random_gain(512), t.some_positions(5)\n"
        "assert not t._plans._TABLES\n"
        "torch.set_default_dtype(torch.bfloat16)\n"
        "call = lambda down: latentkv.compress_kv(down, gain, contract, positions)\n"
        "compiled = torch.compile(call, fullgraph=True, backend='aot_eager')(rows)\n"
        "torch.set_default_dtype(torch.float32)\n"
        "right = t.definition.compress_kv(rows, gain, contract, positions)\n"
        "for one, other, expected in zip(compiled, call(rows), right):\n"
        "    t.assert_same(one, expected)\n"
        "    t.assert_same(other, expected)",
        LATENTKV_BACKEND=backend,
    )


def test_the_definition_refuses_to_be_compiled():
    @torch.compile(fullgraph=True, backend="eager")
    def graph(down, gain, positions):
        return definition.compress_kv(down, gain, K2, positions)

    with pytest.raises(RuntimeError, match="latentkv.definition can't be compiled"):
        graph(random_rows(2, 576), random_gain(512), some_positions(2))
