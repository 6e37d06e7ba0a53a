"""The rotary table's bits, and the rotation with its two ways of rounding."""

from fractions import Fraction

import pytest
import torch
from helpers import assert_same, name_of, random_rows

from latentkv.contracts import RopeContract
from latentkv.definition import rope

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LONG = 131072
# By the models' YaRN: the factor 32 makes K2's ramp one step, 40 makes V3.2's thirteen.
K2 = RopeContract(64, 50000.0, 32.0, 19, 20, "power", "each_step", "half", LONG)
V32 = RopeContract(64, 10000.0, 40.0, 10, 23, "inverse", "result", "interleaved", LONG)
BOTH = pytest.mark.parametrize("contract", [K2, V32], ids=["kimi-k2", "deepseek-v3.2-exp"])


def changed(contract, **fields):
    values = {name: getattr(contract, name) for name in contract.__dataclass_fields__}
    return RopeContract(**(values | fields))


def short(contract, positions=4096):
    return changed(contract, max_positions=positions)


def bits(value):
    return [f"{v & 0xFFFFFFFF:08x}" for v in value.view(torch.int32).tolist()]


def test_inverse_frequencies_known_by_their_bits():
    k2, v32 = bits(rope.inverse_frequencies(K2)), bits(rope.inverse_frequencies(V32))
    assert [k2[i] for i in (1, 5, 20, 31)] == ["3f368e73", "3e3cd624", "38179588", "356b4496"]
    assert [v32[i] for i in (1, 11, 16, 31)] == ["3f3ff911", "3d1fc5ba", "3bb43959", "365fba50"]


def test_what_the_factor_is_applied_to_shows():
    for contract, differ in ((K2, False), (V32, True)):  # a power of two divides exactly
        other = "inverse" if contract.interpolated == "power" else "power"
        mine = rope.inverse_frequencies(contract)
        theirs = rope.inverse_frequencies(changed(contract, interpolated=other))
        assert (bits(mine) != bits(theirs)) is differ


@BOTH
def test_the_table(contract):
    cos, sin = rope.rotary_table(contract).chunk(2, dim=-1)
    assert cos.shape == sin.shape == (LONG, 32) and cos.dtype == sin.dtype == FP32
    assert_same(cos[0], torch.ones(32))
    assert_same(sin[0], torch.zeros(32))
    # A position's angle is one fp32 product, and the function of it is exact but for one rounding.
    frequencies = rope.inverse_frequencies(contract)
    for position in (1, 7, 4095, LONG - 1):
        angle = torch.tensor(float(position)) * frequencies
        assert_same(cos[position], angle.double().cos().float())
        assert (cos[position].double() ** 2 + sin[position].double() ** 2 - 1).abs().max() < 2**-22


def rounded(value, dtype):
    """A Fraction to the nearest value of the dtype: fp64 is wide enough to get there exactly."""
    return torch.tensor(float(value), dtype=torch.float64).to(dtype)


@BOTH
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=name_of)
def test_against_exact_arithmetic(contract, dtype):
    contract = short(contract)
    table = rope.rotary_table(contract)
    cos, sin = table.chunk(2, dim=-1)
    positions = torch.tensor([0, 1, 2, 100, 4095])
    key = random_rows(5, 64, dtype=dtype)
    turned = rope.rotate(key, positions, contract, table)
    for row, position in enumerate(positions.tolist()):
        for pair in range(32):
            x0, x1 = (Fraction(key[row, 2 * pair + k].item()) for k in (0, 1))
            c, s = cos[position, pair], sin[position, pair]
            if contract.rounding == "each_step":
                c, s = (Fraction(v.to(dtype).item()) for v in (c, s))
                step = dtype
            else:
                c, s = Fraction(c.item()), Fraction(s.item())
                step = FP32
            products = [rounded(v, step).item() for v in (x0 * c, x1 * s, x1 * c, x0 * s)]
            a, b, d, e = map(Fraction, products)
            lo, hi = (rounded(rounded(v, step).item(), dtype) for v in (a - b, d + e))
            places = (pair, 32 + pair) if contract.layout == "half" else (2 * pair, 2 * pair + 1)
            for place, right in zip(places, (lo, hi), strict=True):
                assert_same(turned[row, place], right)


@pytest.mark.case("F16-02")
@BOTH
def test_layouts_are_one_permutation_apart(contract):
    contract = short(contract)
    table = rope.rotary_table(contract)
    key, positions = random_rows(9, 64), torch.arange(9) * 411
    half = rope.rotate(key, positions, changed(contract, layout="half"), table)
    inter = rope.rotate(key, positions, changed(contract, layout="interleaved"), table)
    order = [*range(0, 64, 2), *range(1, 64, 2)]
    assert_same(half, inter[:, order])
    assert not torch.equal(half, inter)


@BOTH
def test_the_two_roundings_differ(contract):
    contract = short(contract)
    table = rope.rotary_table(contract)
    key, positions = random_rows(256, 64), torch.arange(256) * 15 + 1
    each = rope.rotate(key, positions, changed(contract, rounding="each_step"), table)
    once = rope.rotate(key, positions, changed(contract, rounding="result"), table)
    assert 0.2 < (each != once).float().mean() < 0.8


@BOTH
def test_strides_and_shapes(contract):
    contract = short(contract)
    table = rope.rotary_table(contract)
    down = random_rows(2, 3, 576)
    positions = torch.tensor([[0, 5, 9], [1, 2, 4095]], dtype=torch.int32)
    turned = rope.rotate(down[..., 512:], positions, contract, table)
    assert turned.shape == (2, 3, 64) and turned.is_contiguous()
    for i in range(2):
        for j in range(3):
            alone = rope.rotate(down[i, j, 512:].clone(), positions[i, j], contract, table)
            assert_same(turned[i, j], alone)
    empty = rope.rotate(down[:0, :, 512:], positions[:0], contract, table)
    assert empty.shape == (0, 3, 64)


@BOTH
def test_subnormals_stay(contract):
    contract = short(contract)
    table = rope.rotary_table(contract)
    key = torch.full((1, 64), 2.0**-130).bfloat16()
    torch.set_flush_denormal(True)
    try:
        turned = rope.rotate(key, torch.tensor([0]), contract, table)
    finally:
        torch.set_flush_denormal(False)
    assert_same(turned, key)


def test_bad_input():
    contract = short(K2)
    table = rope.rotary_table(contract)
    key, positions = random_rows(3, 64), torch.arange(3)
    for bad, error, words in (
        ((key.long(), positions), TypeError, "allowed: bfloat16"),
        ((key[:, :63], positions), ValueError, "contract's width, 64"),
        ((key, positions.float()), TypeError, "allowed: int32, int64"),
        ((key, positions[:2]), ValueError, "one for each row"),
        ((key, positions - 1), ValueError, "from -1 to 1; the contract's run from 0 to 4095"),
        ((key, positions + 4094), ValueError, "from 4094 to 4096"),
    ):
        with pytest.raises(error, match=words):
            rope.rotate(*bad, contract, table)


@pytest.mark.case("F16-06")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"width": 7}, "width must be even"),
        ({"width": 0}, "width must be even"),
        ({"width": 2**24 + 2}, "width must be even"),
        ({"theta": 1.0}, "theta must be finite and above 1"),
        ({"theta": float("nan")}, "theta must be finite"),
        ({"factor": 0.5}, "factor must be finite in fp32 and at least 1"),
        ({"factor": 1e39}, "factor must be finite in fp32"),
        ({"theta": 10**400}, "theta must be finite"),
        ({"high": 2**70}, "low must be below high"),
        ({"max_positions": 2**24 + 1}, "up to where fp32 holds each position"),
        ({"low": 20}, "low must be below high"),
        ({"low": -1}, "low must be below high"),
        ({"max_positions": 0}, "max_positions must be at least 1"),
        ({"interpolated": "both"}, "interpolated must be one of 'power', 'inverse'"),
        ({"rounding": "none"}, "rounding must be one of"),
        ({"layout": "neox"}, "layout must be one of 'half', 'interleaved'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_contracts_that_mean_nothing(fields, words):
    with pytest.raises(ValueError, match=words):
        changed(K2, **fields)


def test_sizes_are_ints():
    for name in ("width", "low", "high", "max_positions"):
        for bad in (64.0, True, "64"):
            with pytest.raises(TypeError, match=f"{name} must be an int"):
                changed(K2, **{name: bad})


def test_theta_and_factor_are_numbers():
    for name in ("theta", "factor"):
        for bad in ("1e4", True, None, torch.tensor(1e4)):
            with pytest.raises(TypeError, match=f"{name} must be a real number"):
                changed(K2, **{name: bad})
    assert changed(K2, theta=50000, factor=32) == K2
    assert repr(changed(K2, theta=50000)) == repr(K2)  # a table goes by that
