"""Nothing outside the output is written, nothing outside the input is needed.

Through the C function, where a test owns every byte: outputs inside larger buffers.
"""

import ctypes

import pytest
import torch
from helpers import (
    DTYPES,
    ORDERS,
    PAIRS,
    assert_same,
    contract,
    lazily_mapped,
    name_of,
    output_dtype,
    random_gain,
    random_rows,
)

from latentkv import _library, definition

GUARD = 777.0  # exact in all three formats: 776 in bf16 is not 777, so see `guarded`

pytestmark = pytest.mark.skipif(
    _library.backend() != "cpu", reason="there are no compiled kernels to guard against"
)


@pytest.fixture
def norm_rows(instruction_set):
    """The C function, on each instruction set."""
    function = _library._KERNELS.latentkv_norm_rows
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = [
        *[ctypes.c_int] * 3,
        *[pointer, number] * 2,
        pointer,
        *[pointer, number] * 2,
        *[number] * 2,
        ctypes.c_int,
        ctypes.c_double,
    ]
    function.restype = ctypes.c_int
    return function


def call(function, x, residual, gain, y, total, order, eps=1e-6, stream=False):
    """Tensors as pointers and strides. Returns the C function's status."""
    kinds = {dtype: i for i, dtype in enumerate(DTYPES)}

    def rows(value):
        return (None, 0) if value is None else (value.data_ptr(), value.stride(0))

    return function(
        kinds[x.dtype],
        kinds[gain.dtype],
        ORDERS.index(order),
        *rows(x),
        *rows(residual),
        gain.data_ptr(),
        *rows(y),
        *rows(total),
        *x.shape,
        stream,
        eps,
    )


def guarded(rows, width, before, after, dtype):
    """A buffer full of 777 (776 in bf16) and the rows inside it: guard rows above and below too."""
    buffer = torch.full((rows + 2, before + width + after), GUARD, dtype=dtype)
    return buffer, buffer[1:-1, before : before + width]


def check_guards(buffer, inside, what):
    written = torch.zeros_like(buffer, dtype=torch.bool)
    width = inside.shape[1]
    offset = inside.storage_offset() - buffer.stride(0)
    written[1:-1, offset : offset + width] = True
    outside = buffer.masked_select(~written)
    assert outside.numel() == buffer.numel() - inside.numel()
    assert_same(outside, torch.full_like(outside, GUARD), what)


@pytest.mark.case("F06-09")
@pytest.mark.case("F08-12")
# 1 to 3 and 769: rests of every length after no and many vectors; 512: no rest at all.
@pytest.mark.parametrize("width", [1, 2, 3, 15, 16, 17, 127, 512, 769])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_guards_around_both_outputs(norm_rows, pair, order, width):
    rows = 5  # not a multiple of any block of rows
    x = random_rows(rows, width + 64, dtype=pair[0], seed=1)[:, 3 : 3 + width]
    residual = random_rows(rows, width + 32, dtype=pair[0], seed=2)[:, 7 : 7 + width]
    gain = random_gain(width, pair[1])
    # y and sum have strides of their own: one written with the other's would tear the guards.
    y_buffer, y = guarded(rows, width, 5, 11, output_dtype(*pair, order))
    sum_buffer, total = guarded(rows, width, 64, 1, pair[0])
    assert y.stride(0) != total.stride(0)

    assert call(norm_rows, x, residual, gain, y, total, order) == 0
    right_y, right_sum = definition.add_rms_norm(x, residual, gain, contract(width, order))
    assert_same(y, right_y)
    assert_same(total, right_sum)
    check_guards(y_buffer, y, "y")
    check_guards(sum_buffer, total, "sum")

    y_buffer, y = guarded(rows, width, 1, 2, output_dtype(*pair, order))
    assert call(norm_rows, x, None, gain, y, None, order) == 0
    assert_same(y, definition.rms_norm(x, gain, contract(width, order)))
    check_guards(y_buffer, y, "plain y")


@pytest.mark.parametrize("width", [32, 512, 544, 1024])  # rows of whole cache lines in each dtype
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("pair", PAIRS, ids=name_of)
def test_streamed_outputs_have_the_same_bits(norm_rows, pair, order, width):
    rows = 11
    x = random_rows(rows, width + 64, dtype=pair[0], seed=1)[:, 3 : 3 + width]
    residual = random_rows(rows, width + 32, dtype=pair[0], seed=2)[:, 7 : 7 + width]
    gain = random_gain(width, pair[1])
    y_buffer, y = guarded(rows, width, 32, 32, output_dtype(*pair, order))
    sum_buffer, total = guarded(rows, width, 64, 32, pair[0])
    assert y.data_ptr() % 64 == total.data_ptr() % 64 == 0
    assert call(norm_rows, x, residual, gain, y, total, order, stream=True) == 0
    right_y, right_sum = definition.add_rms_norm(x, residual, gain, contract(width, order))
    assert_same(y, right_y)
    assert_same(total, right_sum)
    check_guards(y_buffer, y, "y")
    check_guards(sum_buffer, total, "sum")


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_neighbouring_bytes_are_not_part_of_a_row(norm_rows, dtype):
    # NaN on all sides of the rows and the gain: read past an end, and it would show in the sum.
    for width in (1, 3, 15, 17, 33, 127, 513):
        buffer = torch.full((6, width + 40), float("nan"), dtype=dtype)
        x = buffer[1:5, 20 : 20 + width]
        x.copy_(random_rows(4, width, dtype=dtype))
        gains = torch.full((width + 40,), float("nan"), dtype=dtype)
        gain = gains[20 : 20 + width]
        gain.copy_(random_gain(width, dtype))
        y = torch.empty(4, width, dtype=dtype)
        assert call(norm_rows, x, None, gain, y, None, "cast_then_gain") == 0
        assert_same(y, definition.rms_norm(x, gain, contract(width)), f"width {width}")


@pytest.mark.case("F08-11")
def test_many_rows_end_where_they_end(norm_rows):
    # 75,601 is a multiple of no block of rows; 8 wide, to be quick.
    rows, width = 75_601, 8
    x, gain = random_rows(rows, width), random_gain(width)
    buffer, y = guarded(rows, width, 0, 0, torch.bfloat16)
    assert call(norm_rows, x, None, gain, y, None, "cast_then_gain") == 0
    assert_same(y, definition.rms_norm(x, gain, contract(width)))
    check_guards(buffer, y, "rows")


@pytest.mark.case("F07-02")
def test_offsets_past_32_bits_in_every_operand(norm_rows):
    # A stride of its own past 2^31 elements for x, residual, y and sum; two rows, since one row
    # has no stride. Untouched memory isn't mapped.
    gain, strides = random_gain(512), [2**31 + 64 * i for i in range(1, 5)]
    x, residual, y, total = (
        lazily_mapped(stride + 512).as_strided((2, 512), (stride, 1)) for stride in strides
    )
    x.copy_(random_rows(2, 512, seed=1))
    residual.copy_(random_rows(2, 512, seed=2))
    assert call(norm_rows, x, residual, gain, y, total, "cast_then_gain") == 0
    right_y, right_sum = definition.add_rms_norm(x.clone(), residual.clone(), gain, contract(512))
    assert_same(y, right_y)
    assert_same(total, right_sum)


def test_no_rows_write_nothing(norm_rows):
    x, gain = torch.empty(0, 512), torch.ones(512)
    buffer, y = guarded(0, 512, 3, 3, torch.float32)
    assert call(norm_rows, x, None, gain, y, None, "cast_then_gain") == 0
    assert buffer.eq(GUARD).all()


def test_unknown_enums_are_refused(norm_rows):
    x, y = torch.ones(1, 4), torch.full((1, 4), GUARD)
    rest = (x.data_ptr(), 4, None, 0, x.data_ptr(), y.data_ptr(), 4, None, 0, 1, 4, False, 1e-6)
    for enums in ((3, 0, 0), (0, 3, 0), (0, 0, 2), (-1, 0, 0), (0, -1, 0), (0, 0, -1)):
        assert norm_rows(*enums, *rest) == -1
    assert y.eq(GUARD).all()
