"""F01 to F04: where values are rounded, and where eps comes from."""

import hashlib

import pytest
import torch
from helpers import ORDERS, assert_same, contract, hex_bits, random_rows, share_and_ulp

import latentkv
from latentkv import LatentRMSNorm, NormContract, definition, models

# The stored bytes of [1, 1, 1, 2], eps 1e-6, bf16. One answer for every backend and release. The
# orders are those of the models' code: cast_then_gain as Kimi K2 (revision fd1984e2b7a3) and Kimi
# K3 have it, gain_then_cast as DeepSeek-V3.2-Exp at 87e509a2e5a1 has it.
GOLDEN = {
    (0.75, "cast_then_gain"): ([0x3F12] * 3 + [0x3F92], [0.5703125] * 3 + [1.140625]),
    (0.75, "gain_then_cast"): ([0x3F11] * 3 + [0x3F91], [0.56640625] * 3 + [1.1328125]),
    (1.5, "cast_then_gain"): ([0x3F92] * 3 + [0x4012], [1.140625] * 3 + [2.28125]),
    (1.5, "gain_then_cast"): ([0x3F91] * 3 + [0x4011], [1.1328125] * 3 + [2.265625]),
}


@pytest.mark.case("F01-01")
@pytest.mark.case("F01-02")
@pytest.mark.case("F01-07")
@pytest.mark.case("F01-09")
@pytest.mark.case("F01-12")
@pytest.mark.parametrize(("gain", "order"), GOLDEN)
def test_golden_row(instruction_set, gain, order):
    patterns, values = GOLDEN[gain, order]
    x = torch.tensor([1.0, 1.0, 1.0, 2.0], dtype=torch.bfloat16)
    weight = torch.full((4,), gain, dtype=torch.bfloat16)
    for compute in (latentkv, definition):
        y = compute.rms_norm(x, weight, contract(4, order))
        assert hex_bits(y) == patterns and y.tolist() == values
        y, _ = compute.add_rms_norm(x, torch.zeros_like(x), weight, contract(4, order))
        assert hex_bits(y) == patterns


@pytest.mark.case("F01-02")
@pytest.mark.parametrize("gain", [1.0, 0.5, 4.0])
def test_powers_of_two_are_blind(gain):
    # Not a property to want: the reason why no test here uses such a gain to tell the orders apart.
    x, weight = random_rows(64, 512), torch.full((512,), gain, dtype=torch.bfloat16)
    one, other = (latentkv.rms_norm(x, weight, contract(512, order)) for order in ORDERS)
    assert_same(one, other)


@pytest.mark.case("F01-04")
def test_nearer_to_its_own_order_than_to_the_other(instruction_set):
    x = torch.tensor([(37 * i % 101 - 50) / 16 for i in range(512)]).bfloat16()
    gain = torch.full((512,), 0.75, dtype=torch.bfloat16)
    mine = [latentkv.rms_norm(x, gain, contract(512, order)) for order in ORDERS]
    right = [definition.rms_norm(x, gain, contract(512, order)) for order in ORDERS]
    assert mine[0].ne(mine[1]).sum() == 182
    gap = ((mine[0].double() - mine[1].double()) / mine[1].double().abs().clamp_min(1e-9)).abs()
    assert 0.0075 < gap.max() < 0.008  # one bf16 step: rtol 8e-3 would pass both
    for i in (0, 1):
        assert_same(mine[i], right[i])
        assert share_and_ulp(mine[i], right[1 - i]) == (182 / 512, 1)


@pytest.mark.case("F01-06")
@pytest.mark.case("F05-06")
def test_sixty_norms_in_a_row(instruction_set):
    # One step apart in each call, drifting with depth; and a fixed order has these bits for good.
    # The input is made of integers, so that no random generator is part of the golden value.
    start = torch.tensor([(37 * i % 101 - 50) / 16 for i in range(512)]).bfloat16()
    gains = [torch.full((512,), value).bfloat16() for value in (0.75, 1.5)]
    stacked = {}
    for order in ORDERS:
        y = start
        for layer in range(60):
            gain = gains[layer % 2]
            other = latentkv.rms_norm(y, gain, contract(512, ORDERS[1 - ORDERS.index(order)]))
            y = latentkv.rms_norm(y, gain, contract(512, order))
            assert share_and_ulp(y, other)[1] <= 1
        stacked[order] = y
        digest = hashlib.sha256(bytes(y.view(torch.uint8).tolist())).hexdigest()[:16]
        assert (
            digest
            == {"cast_then_gain": "b4802aafc5e39969", "gain_then_cast": "2672757151327aed"}[order]
        )
    assert stacked["cast_then_gain"].ne(stacked["gain_then_cast"]).any()


@pytest.mark.case("F01-11")
@pytest.mark.parametrize("order", ORDERS)
def test_the_reciprocal_is_not_rounded_to_bf16(instruction_set, order):
    # 1 / rms = 1.00392 lies near a bf16 tie: rounded, every value of the row moves by 3.8e-3. The
    # row is fp32, since multiplying bf16 values by 1.004 and rounding has a bias of its own.
    x = torch.randn(512, generator=torch.Generator().manual_seed(0))
    x *= (0.9922 / x.square().mean()).sqrt()
    rms = (x.double().square().mean() + 1e-6).sqrt()
    y = latentkv.rms_norm(x, torch.ones(512), contract(512, order))
    exact = x.double() / rms
    drift = ((y.bfloat16().double() - exact) / exact).mean().item()
    # A bf16 store errs by up to 2^-8: sd below 2^-8 / sqrt(3), of the mean 1e-4; three of them.
    assert abs(drift) < 3e-4
    # rstd itself: at most eight fp32 roundings of half a step each (2^-24), and the product's.
    assert ((y.double() / x.double() * rms - 1).abs() < 9 * 2.0**-24).all()


@pytest.mark.case("F02-01")
def test_stores_do_not_drift(instruction_set):
    # 72 chained sums, and one call over 10^5 values: truncation gives -2.6e-3 in the mean.
    generator = torch.Generator().manual_seed(0)
    gain, rule = torch.full((512,), 0.75).bfloat16(), contract(512, "gain_then_cast")
    total = torch.rand(40, 512, generator=generator).bfloat16() + 1
    exact = total.double()
    for _ in range(72):
        step = (torch.rand(40, 512, generator=generator) * 0.1).bfloat16()
        before = total.double()
        y, total = latentkv.add_rms_norm(total, step, gain, rule)
        exact = exact + step.double()
        a = before + step.double()
        right = a / (a.square().mean(-1, keepdim=True) + 1e-6).sqrt() * 0.75
        for stored, true in ((total, a), (y, right)):
            drift = (stored.double().abs() / true.abs() - 1).mean().item()
            assert abs(drift) < 1e-4  # the case's bound; nearest-even stays around 1e-5
    # 72 calls of at most 1e-4 each; the reported kernel had lost a tenth.
    assert abs((total.double() / exact - 1).mean().item()) < 72e-4


@pytest.mark.case("F02-02")
def test_ties_go_to_even_and_nan_stays(instruction_set):
    def stored(a, b):
        one = torch.ones(1).bfloat16()
        x, r = torch.tensor([a]).bfloat16(), torch.tensor([b]).bfloat16()
        return latentkv.add_rms_norm(x, r, one, contract(1))[1].item()

    assert stored(1.0, 2.0**-8) == 1.0  # 1.00390625
    assert stored(1.0078125, 2.0**-8) == 1.015625  # 1.01171875
    nan = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)
    for order in ORDERS:
        # As a gain it is stored to bf16 by gain_then_cast; as x it fills its row.
        y = latentkv.rms_norm(torch.ones(1).bfloat16(), nan, contract(1, order))
        assert y.isnan().all()
        assert latentkv.rms_norm(nan, torch.ones(1), contract(1, order)).isnan().all()


@pytest.mark.case("F03-01")
@pytest.mark.parametrize("order", ORDERS)
def test_the_sum_is_normed_before_it_is_rounded(instruction_set, order):
    x = torch.full((512,), 256.0).bfloat16()
    residual = torch.tensor([1.0, -255.0]).repeat(256).bfloat16()
    gain, rule = torch.ones(512).bfloat16(), contract(512, order)
    y, total = latentkv.add_rms_norm(x, residual, gain, rule)
    assert total[:2].tolist() == [256.0, 1.0]  # 257 is stored as 256
    assert y[1].item() == pytest.approx(0.00549316, abs=5e-9)  # the case's printed digits
    rounded = latentkv.rms_norm(total, gain, rule)
    assert rounded[1].item() == pytest.approx(0.00552368, abs=5e-9)  # the case's printed digits
    compiled = torch.compile(
        lambda x, r: latentkv.add_rms_norm(x, r, gain, rule), fullgraph=True, backend="aot_eager"
    )
    assert_same(compiled(x, residual)[0], y)


@pytest.mark.case("F03-02")
@pytest.mark.case("F03-04")
def test_a_stored_sum_does_not_give_the_same_norm(instruction_set):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 512, generator=generator).bfloat16()
    residual = (30 * torch.randn(64, 512, generator=generator)).bfloat16()
    gain, rule = torch.ones(512).bfloat16(), contract(512, "gain_then_cast")
    y, total = latentkv.add_rms_norm(x, residual, gain, rule)
    again = latentkv.rms_norm(total, gain, rule)
    share, _ = share_and_ulp(y, again)
    assert 0.2 < share < 0.3  # 25.2% in the case's own sample
    right_y, right_sum = definition.add_rms_norm(x, residual, gain, rule)
    assert_same(y, right_y)
    assert_same(total, right_sum)


def same_everywhere(value, eps, dtype, width=512, order="cast_then_gain"):
    x, gain = torch.full((2, width), value).to(dtype), torch.ones(width, dtype=dtype)
    y = latentkv.rms_norm(x, gain, NormContract(width, eps, order))
    assert (y == y[0, 0]).all()
    return y[0, 0].item()


@pytest.mark.case("F04-01")
@pytest.mark.parametrize("order", ORDERS)
def test_small_rows_show_eps(instruction_set, order):
    for eps, right in ((1e-6, 0.699219), (1e-5, 0.294922)):
        found = same_everywhere(2.0**-10, eps, torch.bfloat16, order=order)
        assert found == pytest.approx(right, abs=5e-7)  # the case's six digits


@pytest.mark.case("F04-02")
@pytest.mark.case("F04-12")
def test_eps_is_inside_the_root(instruction_set):
    # Outside it, a row of rms 1e-3 would give 0.9990.
    for eps, right in ((1e-6, 0.70710677), (1e-5, 0.30151138)):
        found = same_everywhere(1e-3, eps, torch.float32)
        # Half a unit of the case's last digit, and 1 ulp.
        assert found == pytest.approx(right, abs=2e-8)


@pytest.mark.case("F04-04")
def test_kimi_k3_has_two_eps():
    norms = models.get("kimi-k3").norms
    assert norms.kv_latent.eps == norms.q_latent.eps == 1e-6
    assert norms.block.eps == 1e-5  # what its configuration says, and the latent norms don't get
    small = torch.full((1, 512), 1e-3)
    own = latentkv.rms_norm(small, torch.ones(512), norms.kv_latent)
    configured = latentkv.rms_norm(small, torch.ones(512), contract(512, eps=1e-5))
    ratio = (own / configured)[0, 0].item()
    assert ratio == pytest.approx(2.345, abs=5e-4)  # the case's four digits


@pytest.mark.case("F04-06")
@pytest.mark.case("F04-07")
def test_no_eps_is_hard_coded(instruction_set):
    right = 0.1 / (0.01 + 1e-2) ** 0.5
    assert same_everywhere(0.1, 1e-2, torch.float32) == pytest.approx(right, rel=2e-7)  # 3 ulp
    module = LatentRMSNorm(contract(512, eps=1e-2)).requires_grad_(False)
    y = module(torch.full((1, 512), 0.1))
    assert round(y[0, 0].item(), 4) == 0.7071 and "eps=0.01" in repr(module)


@pytest.mark.case("F04-09")
def test_there_is_no_default_eps():
    with pytest.raises(TypeError, match="missing"):
        NormContract(512, order="cast_then_gain")
    with pytest.raises(TypeError, match="eps must be a real number, got None"):
        NormContract(512, None, "cast_then_gain")
    # Nor does the dtype choose one: 2^-23 means the same in each.
    for dtype in (torch.float16, torch.bfloat16):
        found = same_everywhere(1e-3, 2.0**-23, dtype)
        # x and y are each rounded by up to 2^-9 (bf16), and the slope at this eps is below 1.
        assert found == pytest.approx(0.9452448, rel=2.0**-8)


@pytest.mark.case("F04-11")
@pytest.mark.parametrize("order", ORDERS)
def test_eps_is_not_scaled_with_the_row(instruction_set, order):
    x = torch.full((2, 512), 0.5)
    x[0, 0] = 1000
    x[1] = 0
    y = latentkv.rms_norm(x, torch.ones(512), contract(512, order, 1e-5))
    assert y[0, 1].item() == pytest.approx(0.0113130, abs=6e-8)  # the case's digits
    assert_same(y[1], torch.zeros(512))  # exactly zero, never NaN
