"""Graphs: the operators are opaque, so a compiler can't change their roundings."""

import pytest
import torch
from helpers import (
    ORDERS,
    PAIRS,
    assert_same,
    check_python,
    contract,
    name_of,
    output_dtype,
    random_gain,
    random_rows,
)

import latentkv
from latentkv import LatentRMSNorm, definition

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


@pytest.mark.parametrize("order", ORDERS)
def test_compiled_bits(order):
    # Between other operations, which inductor fuses and reorders among themselves.
    x, residual = (random_rows(7, 576, seed=s) for s in (1, 2))
    gain, rule = random_gain(512), contract(512, order)

    def block(x, residual, gain):
        y, total = latentkv.add_rms_norm(x[:, :512] * 2, residual[:, :512], gain, rule)
        return latentkv.rms_norm(total, gain, rule) * 4, y, total

    compiled = torch.compile(block, fullgraph=True)
    for actual, eager in zip(compiled(x, residual, gain), block(x, residual, gain), strict=True):
        assert_same(actual, eager)


def test_compiled_with_dynamic_shapes():
    gain, rule = random_gain(512), contract(512)
    graphs = 0

    def counting(graph, inputs):
        nonlocal graphs
        graphs += 1
        return graph.forward

    for backend in ("inductor", counting):
        compiled = torch.compile(
            lambda x: latentkv.add_rms_norm(x, x, gain, rule),
            fullgraph=True,
            dynamic=True,
            backend=backend,
        )
        for rows in (2, 3, 257, 1021):
            x = random_rows(rows, 4, 576, seed=rows)[..., :512]
            right = definition.add_rms_norm(x, x, gain, rule)
            for actual, expected in zip(compiled(x), right, strict=True):
                assert_same(actual, expected, f"{rows} rows")
    assert graphs == 1


def test_raw_operator_with_a_dynamic_width():
    compiled = torch.compile(
        lambda x, gain: torch.ops.latentkv.rms_norm(x, gain, 1e-6, "gain_then_cast"),
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for width in (8, 12, 512):
        x, gain = random_rows(3, width), random_gain(width)
        assert_same(
            compiled(x, gain), definition.rms_norm(x, gain, contract(width, "gain_then_cast"))
        )


def test_a_wrong_width_is_refused_while_tracing():
    gain, rule = random_gain(512), contract(512)
    compiled = torch.compile(lambda x: latentkv.rms_norm(x, gain, rule), fullgraph=True)
    with pytest.raises(Exception, match="width, 512"):
        compiled(random_rows(3, 576))


def module_and_input(order="cast_then_gain"):
    module = LatentRMSNorm(contract(512, order), dtype=torch.bfloat16)
    with torch.no_grad():
        module.weight.copy_(random_gain(512))
    return module.requires_grad_(False), random_rows(3, 576)[:, :512]


@pytest.mark.parametrize("order", ORDERS)
def test_compiled_module(order):
    module, x = module_and_input(order)
    assert_same(torch.compile(module, fullgraph=True)(x), module(x))


def test_compiled_module_that_needs_a_gradient():
    module, x = module_and_input()
    module.requires_grad_(True)
    compiled = torch.compile(module, fullgraph=True)
    with torch.no_grad():
        assert_same(compiled(x), definition.rms_norm(x, module.weight, module.contract))
    with torch.inference_mode():
        assert_same(compiled(x), definition.rms_norm(x, module.weight, module.contract))
    # test_backward.py has the gradient's bits between other operations
    y = compiled(x)
    assert_same(y.detach(), definition.rms_norm(x, module.weight.detach(), module.contract))
    y.backward(random_rows(3, 512, seed=4))
    compiled_gradient, module.weight.grad = module.weight.grad, None
    module(x).backward(random_rows(3, 512, seed=4))
    assert_same(compiled_gradient, module.weight.grad)


def test_a_second_derivative_is_refused_in_a_graph():
    module, x = module_and_input()
    x = x.float().requires_grad_()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    with pytest.raises((NotImplementedError, RuntimeError), match="create_graph|double backward"):
        (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        first.sum().backward()


# The one row that shows the order: a compiler that fuses drops the cast between two products.
@pytest.mark.case("F13-06")
@pytest.mark.case("F13-07")
@pytest.mark.parametrize("emulate", [False, True])
def test_the_golden_row_in_a_graph(emulate):
    x = torch.tensor([1.0, 1.0, 1.0, 2.0], dtype=torch.bfloat16)
    gain = torch.full((4,), 0.75, dtype=torch.bfloat16)
    one, other = (contract(4, order) for order in ORDERS)
    with torch._inductor.config.patch(emulate_precision_casts=emulate):
        compiled = torch.compile(
            lambda x: (latentkv.rms_norm(x, gain, one), latentkv.rms_norm(x, gain, other)),
            fullgraph=True,
        )
        first, second = compiled(x)
    assert first.tolist() == [0.5703125] * 3 + [1.140625]
    assert second.tolist() == [0.56640625] * 3 + [1.1328125]


@pytest.mark.parametrize("strict", [True, False])
def test_exported(strict):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, _ = module_and_input()

        def forward(self, x, residual):
            y, total = latentkv.add_rms_norm(x, residual, self.norm.weight, self.norm.contract)
            return self.norm(total), y

    block, example = Block(), tuple(random_rows(4, 512, seed=s) for s in (1, 2))
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(
        block, example, strict=strict, dynamic_shapes=({0: rows}, {0: rows})
    )
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert "latentkv.rms_norm.default" in names and "latentkv.add_rms_norm.default" in names
    for count in (4, 257):
        x, residual = (random_rows(count, 512, seed=s) for s in (3, 4))
        for actual, eager in zip(program.module()(x, residual), block(x, residual), strict=True):
            assert_same(actual, eager)
    decomposed = program.run_decompositions()  # nothing takes the operator apart
    assert "latentkv.rms_norm.default" in str(decomposed.graph)


SAMPLES = {
    "latent": lambda: random_rows(4, 576)[:, :512],
    "permuted": lambda: random_rows(2, 3, 4, 512).permute(2, 0, 1, 3),
    "expanded": lambda: random_rows(1, 512).expand(5, 512),
    "row": lambda: random_rows(512),
    "no rows": lambda: random_rows(4, 512)[:0],
    "no rows inside": lambda: torch.empty(2, 0, 512, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_opcheck(sample, order):
    x = SAMPLES[sample]()
    for gain in (random_gain(512), random_gain(512, torch.float32)):
        torch.library.opcheck(torch.ops.latentkv.rms_norm.default, (x, gain, 1e-6, order))
        torch.library.opcheck(torch.ops.latentkv.add_rms_norm.default, (x, x, gain, 1e-6, order))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
@pytest.mark.parametrize("sample", SAMPLES)
def test_fakes_tell_the_truth(sample, pair, order):
    # empty_like would keep a permuted input's strides: the outputs are contiguous.
    real, gain = SAMPLES[sample]().to(pair[0]), random_gain(512, pair[1])
    rule = contract(512, order)
    right = (latentkv.rms_norm(real, gain, rule), *latentkv.add_rms_norm(real, real, gain, rule))
    with torch._subclasses.FakeTensorMode() as mode:
        x, g = mode.from_tensor(real), mode.from_tensor(gain)
        fake = (latentkv.rms_norm(x, g, rule), *latentkv.add_rms_norm(x, x, g, rule))
    for told, true in zip(fake, right, strict=True):
        assert told.shape == true.shape and told.dtype == true.dtype
        assert told.stride() == true.stride() and true.is_contiguous()
    assert right[0].dtype == right[1].dtype == output_dtype(*pair, order)
    assert right[2].dtype == pair[0]


def test_compiled_on_the_definition():
    # The definition inside an opaque operator is as safe from the compiler as a kernel.
    check_python(
        "import torch, latentkv\n"
        "from latentkv import _library, definition\n"
        "from helpers import assert_same, contract, random_gain, random_rows\n"
        "assert _library.backend() == 'definition'\n"
        "x, gain, rule = random_rows(5, 512), random_gain(512), contract(512)\n"
        "norm = lambda x: latentkv.rms_norm(x * 2, gain, rule)\n"
        "compiled = torch.compile(norm, fullgraph=True, backend='aot_eager')\n"
        "assert_same(compiled(x), definition.rms_norm(x * 2, gain, rule))",
        LATENTKV_BACKEND="definition",
    )


def test_two_layers_share_a_contract_in_one_dynamic_graph():
    # Each call's eps would be one symbol, which the second call's autograd may not see.
    x, gain, rule = random_rows(5, 512).requires_grad_(), random_gain(512), contract(512)

    def layers(x):
        return latentkv.rms_norm(latentkv.rms_norm(x, gain, rule), gain, rule)

    compiled = torch.compile(layers, fullgraph=True, dynamic=True)
    assert_same(compiled(x), layers(x))
