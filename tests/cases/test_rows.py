"""F05 to F09: batches, views, offsets, widths and empty inputs."""

import warnings

import pytest
import torch
from helpers import ORDERS, assert_same, contract, random_gain, random_rows

import latentkv
from latentkv import definition


@pytest.mark.case("F05-01")
@pytest.mark.case("F05-02")
@pytest.mark.parametrize("order", ORDERS)
def test_one_row_in_any_batch(instruction_set, order):
    row, gain, rule = random_rows(1, 512, seed=3), random_gain(512), contract(512, order)
    alone = latentkv.rms_norm(row, gain, rule)
    for rows in (255, 256, 257, 4096):
        x = random_rows(rows, 512, seed=rows)
        x[0] = row[0]
        assert_same(latentkv.rms_norm(x, gain, rule)[:1], alone)
    for place in (0, 150, 299):
        x = torch.full((300, 512), float("nan")).bfloat16()
        x[place] = row[0]
        y = latentkv.rms_norm(x, gain, rule)
        assert_same(y[place : place + 1], alone)
        assert y.isnan().all(-1).sum() == 299


@pytest.mark.case("F06-01")
def test_a_transposed_input_is_a_clear_error():
    base = (torch.arange(512)[:, None] * 8 + torch.arange(4)).bfloat16()
    with pytest.raises(ValueError, match=r"x has strides \(1, 4\).*call x.contiguous"):
        latentkv.rms_norm(base.T, random_gain(512), contract(512))


@pytest.mark.case("F06-02")
@pytest.mark.parametrize("order", ORDERS)
def test_the_latent_in_a_fused_projection(instruction_set, order):
    buffer = random_rows(8, 2112)
    before, gain, rule = buffer.clone(), random_gain(512), contract(512, order)
    latent = buffer[:, 1536:2048]
    assert latent.stride() == (2112, 1)
    assert_same(
        latentkv.rms_norm(latent, gain, rule), definition.rms_norm(latent.clone(), gain, rule)
    )
    assert_same(buffer, before)


@pytest.mark.case("F06-04")
def test_per_head_norm_without_a_copy(instruction_set):
    x = random_rows(64, 1280).as_strided((64, 8, 128), (1280, 128, 1))
    gain, rule = random_gain(128), contract(128)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler's own, about its activities
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            y = latentkv.rms_norm(x, gain, rule)
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.events())
    assert allocated == y.numel() * y.element_size()  # the output and nothing else
    assert_same(y, definition.rms_norm(x.clone(), gain, rule))


@pytest.mark.case("F06-06")
@pytest.mark.case("F06-07")
def test_slices_of_the_down_projection(instruction_set):
    gain = random_gain(512)
    for base in (random_rows(2, 3, 576), random_rows(7, 576)):
        x = base[..., :512]
        for order in ORDERS:
            rule = contract(512, order)
            assert_same(
                latentkv.rms_norm(x, gain, rule), definition.rms_norm(x.clone(), gain, rule)
            )


@pytest.mark.case("F06-11")
def test_three_dimensions_are_two(instruction_set):
    x, gain, rule = random_rows(2, 5, 512), random_gain(512), contract(512)
    y = latentkv.rms_norm(x, gain, rule)
    assert y.shape == x.shape
    assert_same(y.view(10, 512), latentkv.rms_norm(x.view(10, 512), gain, rule))


@pytest.mark.case("F07-02")
def test_a_row_stride_past_32_bits_is_tested_with_two_rows():
    # tests/test_large.py walks it; here, that its views are not the vacuous ones.
    from test_large import VIEWS

    for shape, strides, offset in VIEWS.values():
        steps = [s for n, s in zip(shape, strides, strict=True) if n > 1]
        assert max(steps) * (2 if max(steps) < 2**31 else 1) >= 2**31 or offset >= 2**31


@pytest.mark.case("F08-01")
@pytest.mark.case("F08-02")
@pytest.mark.case("F28-04")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_different_size_do_not_mix(instruction_set, dtype):
    x = torch.stack([torch.full((512,), 1.0), torch.full((512,), 100.0)]).to(dtype)
    y = latentkv.rms_norm(x, torch.ones(512, dtype=dtype), contract(512))
    if dtype == torch.bfloat16:
        assert (y == 1).all()
    for width in (2**n for n in range(3, 14)):
        x, gain = random_rows(17, width, dtype=dtype, seed=width), random_gain(width, dtype)
        wide = x.double()
        right = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain.double()
        for rows in range(1, 18):
            y = latentkv.rms_norm(x[:rows], gain, contract(width, "gain_then_cast")).double()
            # fp32: 13 sums and a square halved by the root, then at most 6 more, 2^-24 each; and
            # half a step of the store, up to 2^-8 in bf16.
            bound = 14 * 2.0**-24 + (2.0**-8 if dtype == torch.bfloat16 else 0)
            assert ((y - right[:rows]).abs() <= bound * right[:rows].abs()).all(), (width, rows)


@pytest.mark.case("F08-04")
def test_an_odd_width_leaves_the_next_row_alone(instruction_set):
    # tests/test_guards.py has the guard columns; here the next rows, often, on two threads.
    for width in (768, 769):
        x = random_rows(7, width, dtype=torch.float16)
        gain, rule = random_gain(width, torch.float16), contract(width)
        right = definition.rms_norm(x, gain, rule)
        many, many_right = x.repeat(60, 1), right.repeat(60, 1)
        for _ in range(5):
            assert_same(latentkv.rms_norm(x, gain, rule), right)
            assert_same(latentkv.rms_norm(many, gain, rule), many_right)


@pytest.mark.case("F08-06")
@pytest.mark.parametrize("width", [3584, 1536, 512, 576])
def test_residual_form_at_awkward_widths(instruction_set, width):
    x, residual = (random_rows(3, width, seed=s) for s in (1, 2))
    gain, rule = random_gain(width), contract(width)
    pairs = zip(
        latentkv.add_rms_norm(x, residual, gain, rule),
        definition.add_rms_norm(x, residual, gain, rule),
        strict=True,
    )
    for actual, right in pairs:
        assert_same(actual, right)


@pytest.mark.case("F08-07")
@pytest.mark.case("F08-09")
@pytest.mark.parametrize("width", [12288, 16384, 53248])
def test_widths_past_other_kernels_limits(instruction_set, width):
    x, gain = random_rows(1, width, dtype=torch.float32), random_gain(width, torch.float32)
    rule = contract(width)
    assert_same(latentkv.rms_norm(x, gain, rule), definition.rms_norm(x, gain, rule))


@pytest.mark.case("F09-01")
@pytest.mark.case("F09-04")
@pytest.mark.parametrize("shape", [(0, 512), (0, 7168), (2, 0, 512)])
def test_no_rows_give_no_rows(instruction_set, shape):
    x, gain, rule = torch.empty(shape).bfloat16(), random_gain(shape[-1]), contract(shape[-1])
    for compute in (latentkv, definition):
        for value in (compute.rms_norm(x, gain, rule), *compute.add_rms_norm(x, x, gain, rule)):
            assert value.shape == shape and value.dtype == torch.bfloat16
    with pytest.raises((ValueError, RuntimeError), match="width"):
        torch.ops.latentkv.rms_norm(torch.empty(4, 0), torch.empty(0), 1e-6, "cast_then_gain")
    with pytest.raises(ValueError, match="width must be between 1 and"):
        contract(0)


@pytest.mark.case("F09-02")
def test_no_rows_leave_no_error_behind(instruction_set):
    y = latentkv.rms_norm(torch.empty(0, 7168).bfloat16(), random_gain(7168), contract(7168))
    assert torch.nn.functional.pad(y, (0, 0, 0, 3)).shape == (3, 7168)
    x, gain, rule = random_rows(2, 512), random_gain(512), contract(512)
    assert_same(latentkv.rms_norm(x, gain, rule), definition.rms_norm(x, gain, rule))
