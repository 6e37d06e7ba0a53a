"""More than 2^31 elements, where 32-bit offsets wrap. Always run: untouched memory isn't mapped."""

import pytest
import torch
from helpers import assert_same, contract, lazily_mapped, random_gain, random_rows

import latentkv
from latentkv import definition

PAST = 2**31 + 64  # elements; as an int32 this is -2^31 + 64


def place(view, seed):
    """Random rows into a strided view, with values that no other row has."""
    return view.copy_(random_rows(*view.shape, dtype=view.dtype, seed=seed))


# Two rows at least: a dimension of size 1 has no stride that counts, and proves nothing.
VIEWS = {
    "rows": ((2, 512), (PAST, 1), 0),
    "rows past an offset": ((2, 512), (512, 1), PAST),
    "outer": ((2, 3, 512), (PAST, 576, 1), 0),
    "inner": ((3, 2, 512), (576, PAST, 1), 0),
    "both": ((2, 2, 512), (PAST // 2, PAST, 1), 0),
}


@pytest.mark.parametrize("layout", VIEWS)
def test_strides_and_offsets_past_32_bits(instruction_set, layout):
    shape, strides, offset = VIEWS[layout]
    reach = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    assert reach > 2**31
    x = place(lazily_mapped(reach).as_strided(shape, strides, offset), 1)
    near, gain, rule = random_rows(*shape, seed=2), random_gain(512), contract(512)
    packed = x.clone(memory_format=torch.contiguous_format)
    assert_same(latentkv.rms_norm(x, gain, rule), definition.rms_norm(packed, gain, rule))
    right_y, right_sum = definition.add_rms_norm(packed, near, gain, rule)
    for a, b in ((x, near), (near, x)):  # as x and as the residual
        y, total = latentkv.add_rms_norm(a, b, gain, rule)
        assert_same(y, right_y)
        assert_same(total, right_sum)


def check_zeros(rows):
    """In pieces: a comparison of the whole would take as much memory again."""
    for piece in rows.split(1 << 17):
        assert not piece.view(torch.int64).any()


@pytest.mark.case("F07-01")
@pytest.mark.case("F07-06")
def test_more_elements_than_32_bits_count():
    # 4,194,305 rows of 512, and one more: the row 4,194,304 starts at element 2^31 of the output,
    # which takes 4.3 GB. Two rows, then a gap: no stride fits more, so each run of rows is found by
    # its own offset, that one included.
    pairs = 2_097_153
    x = lazily_mapped(pairs * 1088).as_strided((pairs, 2, 512), (1088, 512, 1))
    written = [0, 1, pairs, 4_194_303, 4_194_304, 4_194_305]
    assert written[-2] * 512 == 2**31
    for row in written:
        place(x[row // 2, row % 2], row)
    gain, rule = random_gain(512).abs(), contract(512)  # a negative gain would write -0
    with torch.inference_mode():
        y = latentkv.rms_norm(x, gain, rule).view(-1, 512)
    start = 0
    for row in [*written, len(y)]:
        check_zeros(y[start:row])
        if row < len(y):
            right = definition.rms_norm(x[row // 2, row % 2], gain, rule)
            assert_same(y[row], right, f"row {row}")
        start = row + 1


@pytest.mark.case("F07-04")
def test_slice_of_a_fused_projection_past_32_bits():
    # A row stride of 2112 passes 2^31 at row 1,016,801, four times earlier than 512 suggests.
    rows = 1_016_803
    x = lazily_mapped(rows * 2112).view(rows, 2112)[:, 1536:2048]
    written = [0, 1_016_800, 1_016_801, rows - 1]
    assert 1_016_800 * 2112 < 2**31 <= 1_016_801 * 2112
    for row in written:
        place(x[row : row + 1], row)
    gain, rule = random_gain(512).abs(), contract(512)
    with torch.inference_mode():
        y = latentkv.rms_norm(x, gain, rule)
    start = 0
    for row in written:
        check_zeros(y[start:row])
        assert_same(y[row], definition.rms_norm(x[row], gain, rule), f"row {row}")
        start = row + 1
