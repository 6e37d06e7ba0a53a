"""The compiled kernels equal the definition, bit for bit.

Without compiled kernels the same tests hold the operator's fallback to the definition.
"""

import pytest
import torch
from helpers import (
    DTYPES,
    ORDERS,
    PAIRS,
    assert_same,
    check_python,
    contract,
    from_bits,
    name_of,
    on_each_instruction_set,
    random_gain,
    random_rows,
)

import latentkv
from latentkv import definition

# 1 to 3: less than any vector; 127, 128: around a block; 512, 1536, 7168: the models' own; 7169: a
# tail of one after many blocks.
WIDTHS = (1, 2, 3, 127, 128, 512, 1536, 7168, 7169)
# None, one, and around 256, where launch geometries switch; 4,096 is more than a thread's share.
ROWS = (0, 1, 255, 256, 257, 4096)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_same_bits_as_the_definition(pair, width, order):
    # All rows where that is at most 2 million elements and the dtypes are equal. Elsewhere fewer:
    # mixed dtypes share the walk over rows with equal ones, and fp16 with bf16.
    rows = 4096 if width <= 512 else 257
    if pair[0] != pair[1]:
        rows = 257 if width <= 512 else 5
    elif width > 1536 and pair[0] != torch.bfloat16:
        rows = 5
    x, residual = (random_rows(rows, width, dtype=pair[0], seed=s) for s in (width, width + 1))
    gain, rule = random_gain(width, pair[1]), contract(width, order)
    right = definition.rms_norm(x, gain, rule)
    right_y, right_sum = definition.add_rms_norm(x, residual, gain, rule)

    def check(name):
        for n in ROWS:
            if n > rows:
                continue
            part = slice(0, n)
            assert_same(latentkv.rms_norm(x[part], gain, rule), right[part], f"{name} {n}")
            y, total = latentkv.add_rms_norm(x[part], residual[part], gain, rule)
            assert_same(y, right_y[part], f"{name} {n} residual")
            assert_same(total, right_sum[part], f"{name} {n} sum")

    on_each_instruction_set(check)


def views():
    """Layouts in which the latent really comes, and others: name -> view [..., 512]."""
    wide = random_rows(7, 2112, seed=20)
    block = random_rows(2, 3, 576, seed=21)
    fused = random_rows(9, 1280, seed=22)
    batch = random_rows(3, 5, 4, 512, seed=23)
    return {
        "row": random_rows(512, seed=24),
        "slice-576": random_rows(7, 576, seed=25)[:, :512],
        "slice-576-from-64": random_rows(7, 576, seed=26)[:, 64:],
        "slice-2112": wide[:, 1536:2048],
        "slice-3d": block[..., :512],
        "slice-3d-one-row-each": block[:, :1, :512],
        "every-second-row": random_rows(10, 512, seed=27)[::2],
        "heads": fused.as_strided((9, 2, 512), (1280, 512, 1)),
        "permuted": batch.permute(2, 0, 1, 3),
        "permuted-slice": batch[:, 1:4].permute(1, 2, 0, 3),
        "expanded": random_rows(1, 512, seed=28).expand(6, 512),
        "expanded-inside": random_rows(4, 1, 512, seed=29).expand(4, 3, 512),
        "expanded-outside": random_rows(3, 512, seed=30).expand(4, 3, 512),
        "overlapping": random_rows(1200, seed=31).as_strided((5, 512), (100, 1)),
        "size-one-dims": random_rows(4, 512, seed=32).as_strided((1, 4, 1, 512), (7, 512, 3, 1)),
        "five-dims": random_rows(2, 2, 2, 2, 576, seed=33)[..., :512].permute(3, 1, 0, 2, 4),
        "no-rows": random_rows(4, 512, seed=34)[:0],
        "no-rows-inside": torch.empty(2, 0, 512, dtype=torch.bfloat16),
    }


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layout", views())
def test_any_leading_strides(instruction_set, layout, order):
    x, gain, rule = views()[layout], random_gain(512), contract(512, order)
    packed = x.clone(memory_format=torch.contiguous_format)
    y = latentkv.rms_norm(x, gain, rule)
    assert y.is_contiguous()
    assert_same(y, definition.rms_norm(packed, gain, rule))
    # The residual has the shape of x and the strides of a tensor of its own.
    strided = random_rows(*x.shape[:-1], 600, seed=35)[..., 40:552]
    for residual in (strided, strided.contiguous(), x):
        y, total = latentkv.add_rms_norm(x, residual, gain, rule)
        right_y, right_sum = definition.add_rms_norm(packed, residual.contiguous(), gain, rule)
        assert y.is_contiguous() and total.is_contiguous()
        assert_same(y, right_y)
        assert_same(total, right_sum)
        y, total = latentkv.add_rms_norm(residual, x, gain, rule)
        assert_same(y, right_y)  # a sum has no order
        assert_same(total, right_sum)


def test_heads_of_a_fused_projection(instruction_set):
    # [T, 8, 128] with strides (1280, 128, 1): per-head norms on a slice of a fused projection.
    x = random_rows(11, 1280).as_strided((11, 8, 128), (1280, 128, 1), 256)
    gain, rule = random_gain(128), contract(128)
    assert_same(latentkv.rms_norm(x, gain, rule), definition.rms_norm(x.clone(), gain, rule))


def test_leading_dims_are_a_matter_of_shape(instruction_set):
    x, gain, rule = random_rows(10, 512), random_gain(512), contract(512)
    flat = latentkv.rms_norm(x, gain, rule)
    for shape in ((2, 5, 512), (10, 1, 512), (1, 10, 512), (2, 1, 5, 1, 512)):
        assert_same(latentkv.rms_norm(x.reshape(shape), gain, rule), flat.reshape(shape))
    assert_same(latentkv.rms_norm(x[3], gain, rule), flat[3])


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_any_alignment(instruction_set, dtype):
    # Offsets of 1 to 31 elements: every alignment within 64 bytes. 67: whole vectors and a rest.
    width, rule = 67, contract(67, "gain_then_cast")
    x, residual = (random_rows(5, width, dtype=dtype, seed=s) for s in (1, 2))
    gain = random_gain(width, dtype)
    right_y, right_sum = definition.add_rms_norm(x, residual, gain, rule)
    for offset in range(1, 32):

        def moved(value, by=offset):
            storage = torch.full((value.numel() + 64,), float("nan"), dtype=value.dtype)
            view = storage[by : by + value.numel()].view(value.shape)
            return view.copy_(value)

        y, total = latentkv.add_rms_norm(moved(x), moved(residual, 32 - offset), moved(gain), rule)
        assert_same(y, right_y, f"offset {offset}")
        assert_same(total, right_sum, f"offset {offset}")


@pytest.mark.parametrize("order", ORDERS)
def test_any_number_of_threads(instruction_set, threads, order):
    # 1,021 rows of 512 are 16 shares of a thread; a prime, so that no split is even.
    x, residual = (random_rows(1021, 576, seed=s)[:, :512] for s in (1, 2))
    gain, rule = random_gain(512), contract(512, order)
    right_y, right_sum = definition.add_rms_norm(x, residual, gain, rule)
    right = definition.rms_norm(x, gain, rule)
    batch = x[:1020].unflatten(0, (4, 255)).transpose(0, 1)  # a run ends inside a thread's share
    for count in (1, 2, 4, 7):
        torch.set_num_threads(count)
        assert_same(latentkv.rms_norm(x, gain, rule), right, f"{count} threads")
        y, total = latentkv.add_rms_norm(x, residual, gain, rule)
        assert_same(y, right_y, f"{count} threads")
        assert_same(total, right_sum, f"{count} threads")
        turned = latentkv.rms_norm(batch, gain, rule).transpose(0, 1).reshape(1020, 512)
        assert_same(turned, right[:1020], f"{count} threads, transposed")
        assert torch.get_num_threads() == count


@pytest.mark.parametrize("width", [4096, 12288, 16384, 53248, 2**20 + 1, 2**24])
def test_wide_rows(width):
    # To the limit: every level of the pairwise sum is in use at 2^24, and a tail at 2^20 + 1.
    x, gain, rule = (
        random_rows(1 if width == 2**24 else 2, width),
        random_gain(width),
        contract(width),
    )
    right = definition.rms_norm(x, gain, rule)
    on_each_instruction_set(lambda name: assert_same(latentkv.rms_norm(x, gain, rule), right, name))


def test_every_small_width(instruction_set):
    # 1 to 300: every tail of every vector length, at each number of whole blocks up to 18.
    for width in range(1, 301):
        x, residual = (random_rows(3, width, seed=s) for s in (width, 1000 + width))
        gain, rule = random_gain(width), contract(width)
        y, total = latentkv.add_rms_norm(x, residual, gain, rule)
        right_y, right_sum = definition.add_rms_norm(x, residual, gain, rule)
        assert_same(y, right_y, f"width {width}")
        assert_same(total, right_sum, f"width {width}")


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 4096])
def test_a_row_does_not_depend_on_the_batch(instruction_set, rows):
    # The same row alone and first, in the middle and last, among rows of NaN and infinity.
    row, gain = random_rows(512, seed=5), random_gain(512)
    for order in ORDERS:
        rule = contract(512, order)
        alone, alone_sum = latentkv.add_rms_norm(row, row, gain, rule)
        for other in (float("nan"), float("inf"), 3e38):
            for place in sorted({0, rows // 2, rows - 1}):
                x = torch.full((rows, 512), other, dtype=torch.bfloat16)
                x[place] = row
                y, total = latentkv.add_rms_norm(x, x, gain, rule)
                assert_same(y[place], alone, f"{place} of {rows}")
                assert_same(total[place], alone_sum, f"{place} of {rows}")


def test_the_definition_does_not_depend_on_the_batch():
    x, gain = random_rows(257, 512), random_gain(512)
    for order in ORDERS:
        y = definition.rms_norm(x, gain, contract(512, order))
        for row in (0, 128, 255, 256):
            assert_same(definition.rms_norm(x[row], gain, contract(512, order)), y[row])


def test_inputs_stay_as_they_are(instruction_set):
    for dtype in DTYPES:  # fp32 above all: there widening is no copy
        inputs = [random_rows(5, 512, dtype=dtype, seed=s) for s in (1, 2)]
        gain = random_gain(512, dtype)
        copies = [value.clone() for value in (*inputs, gain)]
        y, total = latentkv.add_rms_norm(*inputs, gain, contract(512))
        single = latentkv.rms_norm(inputs[0], gain, contract(512))
        for value, copy in zip((*inputs, gain), copies, strict=True):
            assert_same(value, copy)
        owners = {v.untyped_storage().data_ptr() for v in (*inputs, gain, y, total, single)}
        assert len(owners) == 6  # nothing shares memory with anything


def test_an_input_may_be_passed_twice(instruction_set):
    x, gain, rule = random_rows(5, 512, seed=2), random_gain(512), contract(512)
    right = definition.add_rms_norm(x, x.clone(), gain, rule)
    for actual, expected in zip(latentkv.add_rms_norm(x, x, gain, rule), right, strict=True):
        assert_same(actual, expected)
    row = random_rows(512, seed=3)  # the gain too
    assert_same(latentkv.rms_norm(row, row, rule), definition.rms_norm(row, row.clone(), rule))


def test_negated_views(instruction_set):
    # torch keeps a sign as a flag on a view: it must have been applied before memory is read.
    x, gain, rule = random_rows(5, 512), random_gain(512), contract(512)
    flagged = torch._neg_view(x)
    assert flagged.is_neg()
    assert_same(latentkv.rms_norm(flagged, gain, rule), definition.rms_norm(-x, gain, rule))


def test_the_definition_when_it_is_asked_for():
    # The whole chain again with LATENTKV_BACKEND=definition: same functions, same bits.
    out = check_python(
        "import torch, latentkv\n"
        "from latentkv import _library, definition\n"
        "from helpers import ORDERS, assert_same, contract, random_gain, random_rows\n"
        "assert _library.backend() == 'definition' and _library.instruction_sets() == ()\n"
        "x, r = (random_rows(2, 3, 576, seed=s)[..., :512] for s in (1, 2))\n"
        "gain = random_gain(512)\n"
        "for order in ORDERS:\n"
        "    rule = contract(512, order)\n"
        "    assert_same(latentkv.rms_norm(x, gain, rule), definition.rms_norm(x, gain, rule))\n"
        "    pairs = zip(latentkv.add_rms_norm(x, r, gain, rule),\n"
        "                definition.add_rms_norm(x, r, gain, rule))\n"
        "    for a, b in pairs: assert_same(a, b)\n"
        "print(latentkv.rms_norm(x, gain, contract(512)).view(torch.int16).long().sum().item())",
        LATENTKV_BACKEND="definition",
    )
    x, gain = random_rows(2, 3, 576, seed=1)[..., :512], random_gain(512)
    y = latentkv.rms_norm(x, gain, contract(512))
    assert int(out) == y.view(torch.int16).long().sum().item()


def test_helpers_make_bits():
    assert from_bits([0x3F80, 0xBF80], torch.bfloat16).tolist() == [1.0, -1.0]
