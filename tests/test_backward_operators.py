"""The backward under torch.compile, and its raw operators."""

import pytest
import torch
from gradients import BF16, FORMS, FP32, make, operator
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
from latentkv import definition


@pytest.fixture
def fresh_graphs():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# Compiling uses what torch and Python call deprecated: as in test_compile.py.
@pytest.mark.case("F13-01")
@pytest.mark.case("F13-02")
@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:torch\.")
@pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated")
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiled_forward_and_backward(fresh_graphs, backend):
    # Between other operations, which inductor fuses; doubling is exact in any order.
    gains = [random_gain(512, seed=s).requires_grad_() for s in (1, 2)]
    first, second = (contract(512, order) for order in ORDERS)

    def block(x, residual, gains):
        y, total = latentkv.add_rms_norm(x[:, :512] * 2, residual, gains[0], first)
        return y * 2, latentkv.rms_norm(total, gains[1], second) * 4

    def run(function, rows):
        x = random_rows(rows, 576, seed=3).requires_grad_()
        residual = random_rows(rows, 512, seed=4).requires_grad_()
        before = residual.detach().clone()
        outputs = function(x, residual, gains)
        above = [random_rows(rows, 512, seed=s) for s in (5, 6)]
        grads = torch.autograd.grad(outputs, (x, residual, *gains), above)
        assert_same(residual.detach(), before)
        return *(value.detach() for value in outputs), *grads

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=backend)
    for rows in (7, 257):
        for value, expected in zip(run(compiled, rows), run(block, rows), strict=True):
            assert_same(value, expected, f"{rows} rows")


OPCHECK = {
    "latent": lambda: random_rows(4, 576)[:, :512],
    "permuted": lambda: random_rows(2, 3, 4, 512).permute(2, 0, 1, 3),
    "row": lambda: random_rows(512),
    "no rows": lambda: random_rows(2, 0, 512),
}


@pytest.mark.case("F13-02")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sample", OPCHECK)
def test_opcheck(sample, order):
    ops, x = torch.ops.latentkv, OPCHECK[sample]()
    for gain in (random_gain(512), random_gain(512, FP32)):
        dy = random_rows(*x.shape, dtype=output_dtype(BF16, gain.dtype, order), seed=1)
        rstd = definition.reciprocal_rms(x, contract(512, order))
        check = torch.library.opcheck
        check(ops.rms_norm_fwd.default, (x, gain, 1e-6, order))
        check(ops.add_rms_norm_fwd.default, (x, x, gain, 1e-6, order))
        check(ops.rms_norm_bwd.default, (dy, x, gain, rstd, order))
        for dsum in (None, x):
            check(ops.add_rms_norm_bwd.default, (dy, dsum, x, x, gain, rstd, order))


@pytest.mark.case("F13-01")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_fakes_tell_the_truth(pair, order):
    for form in FORMS:
        case = make(random_rows(3, 5, 576, dtype=pair[0])[..., :512], pair, order, form)
        right = (*operator(case), *forward(case))
        real = dict(vars(case))
        for name in ("x", "gain", "residual", "dy", "dsum"):
            if real[name] is not None:
                setattr(case, name, real[name].to("meta"))
        for told, true in zip((*operator(case), *forward(case)), right, strict=True):
            assert told.is_meta and told.shape == true.shape and told.dtype == true.dtype
            assert told.stride() == true.stride() and true.is_contiguous()


def forward(case):
    """The raw operator that also gives rstd."""
    numbers = (case.gain, case.rule.eps, case.rule.order)
    if case.residual is None:
        return torch.ops.latentkv.rms_norm_fwd(case.x, *numbers)
    return torch.ops.latentkv.add_rms_norm_fwd(case.x, case.residual, *numbers)


@pytest.mark.parametrize("form", FORMS)
def test_the_operators_give_the_definitions_bits(instruction_set, form):
    # The fused forward's rstd as well.
    for pair in PAIRS:
        for order in ORDERS:
            case = make(random_rows(5, 576, dtype=pair[0])[:, :130], pair, order, form)
            rstd = definition.reciprocal_rms(case.x, case.rule, case.residual)
            assert_same(forward(case)[-1], rstd)
            for value, expected in zip(operator(case), case.right()[-2:], strict=True):
                assert_same(value, expected)


def test_the_operators_refuse():
    # Memory stays safe without autograd in front.
    case = make(random_rows(4, 512), form="sum used")
    rstd = definition.reciprocal_rms(case.x, case.rule, case.residual)
    good = {
        "dy": case.dy, "dsum": case.dsum, "x": case.x, "residual": case.residual,
        "gain": case.gain, "rstd": rstd, "order": "cast_then_gain",
    }  # fmt: skip
    wrong = {
        "dy": (case.dy[:3], case.dy.float(), case.dy[:, :511], random_rows(512, 4).t(),
               case.dy.view(2, 2, 512)),
        "dsum": (case.dsum[:3], case.dsum.float(), random_rows(4, 1).expand(4, 512)),
        "residual": (case.residual[:3], case.residual.float()),
        "gain": (case.gain[:511], case.gain.double()),
        "rstd": (rstd[:3], rstd.double(), rstd.bfloat16(), torch.ones(8)[::2], torch.ones(5)),
        "order": ("gain",),
    }  # fmt: skip
    torch.ops.latentkv.add_rms_norm_bwd(**good)
    for name, values in wrong.items():
        for value in values:
            given = {**good, name: value}
            with pytest.raises((ValueError, TypeError, RuntimeError)):
                torch.ops.latentkv.add_rms_norm_bwd(**given)
            if name in ("dsum", "residual"):
                continue
            del given["dsum"], given["residual"]
            with pytest.raises((ValueError, TypeError, RuntimeError)):
                torch.ops.latentkv.rms_norm_bwd(**given)


def test_on_the_definition():
    # LATENTKV_BACKEND=definition: the same functions, the same bits, under autograd too.
    check_python(
        "import gradients as g\n"
        "import test_backward as t\n"
        "from latentkv import _library\n"
        "assert _library.backend() == 'definition'\n"
        "for order in t.ORDERS:\n"
        "    t.test_every_dtype((g.BF16, g.FP32), order)\n"
        "    t.test_the_gradient_of_a_sum('none', order)\n"
        "t.test_any_leading_strides('permuted', 'sum used')",
        LATENTKV_BACKEND="definition",
    )
