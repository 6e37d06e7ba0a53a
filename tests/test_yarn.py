"""YaRN's numbers: the ramp between the pairs, and the softmax's scale."""

from __future__ import annotations

import dataclasses
import math

import pytest

from latentkv import models
from latentkv.models.yarn import Yarn, softmax_scale

K2 = Yarn(50000.0, 32.0, 4096, 1.0, 1.0, 1.0, 1.0)
V32 = Yarn(10000.0, 40.0, 4096, 32.0, 1.0, 1.0, 1.0)
PLAIN = 192**-0.5

# 0.1 * 0.707 * ln 40 + 1 = 1.260804..., whose square times 192^-0.5 is 0.114721.
V2 = dataclasses.replace(V32, mscale=0.707, mscale_all_dim=0.707)


@pytest.mark.case("F18-01")
@pytest.mark.parametrize(
    ("factor", "squared"), [(40.0, 1.36889**2), (64.0, 2.00474), (32.0, 1.81326)]
)
def test_scores_are_multiplied_by_m_squared(factor, squared):
    yarn = dataclasses.replace(V32, factor=factor)
    assert yarn.temperature**2 == pytest.approx(squared, rel=5e-6)  # six digits are given
    assert softmax_scale(192, yarn) == pytest.approx(PLAIN * squared, rel=5e-6)


@pytest.mark.case("F18-01")
@pytest.mark.parametrize("mscale", [1.0, 0.707])
@pytest.mark.parametrize(("all_dim", "scale"), [(1.0, 0.135234), (0.707, 0.114721)])
def test_mscale_all_dim_scales_the_softmax_and_mscale_does_not(mscale, all_dim, scale):
    yarn = dataclasses.replace(V32, mscale=mscale, mscale_all_dim=all_dim)
    assert softmax_scale(192, yarn) == pytest.approx(scale, abs=5e-7)  # six decimals are given
    assert (yarn.rotary_scale == 1) is (mscale == all_dim)
    ratio = (0.1 * mscale * math.log(40) + 1) / (0.1 * all_dim * math.log(40) + 1)
    # The same formula: at most six roundings of fp64, 2^-53 each, could part them.
    assert yarn.rotary_scale == pytest.approx(ratio, rel=1e-15)


@pytest.mark.case("F18-02")
def test_keys_as_deepseek_v2_has_them():
    assert softmax_scale(192, V2) == pytest.approx(0.114721, abs=5e-7)
    assert softmax_scale(192, V2) != PLAIN
    assert V2.rotary_scale == 1


@pytest.mark.parametrize(
    ("yarn", "scale"),
    [
        (K2, 0.13086079996295005),
        (dataclasses.replace(K2, factor=64.0), 0.14467962580268923),
        (V32, 0.1352337788608801),
        (None, 0.07216878364870322),
    ],
)
def test_scales_known_to_the_last_bit(yarn, scale):
    assert softmax_scale(192, yarn) == scale


@pytest.mark.case("F18-04")
@pytest.mark.parametrize("factor", [1.0000001, 1.5, 2.0, 32.0, 40.0, 64.0, 1e6])
@pytest.mark.parametrize("all_dim", [0.707, 1.0])
def test_stretching_raises_the_scale(factor, all_dim):
    yarn = dataclasses.replace(V32, factor=factor, mscale_all_dim=all_dim)
    assert softmax_scale(192, yarn) > PLAIN


@pytest.mark.case("F18-06")
def test_without_yarn_the_scale_is_plain():
    assert softmax_scale(192, None) == PLAIN
    k3 = models.get("kimi-k3")
    assert k3.rotation is None and k3.kv.rope is None
    assert k3.softmax_scale == PLAIN


@pytest.mark.case("F18-06")
@pytest.mark.parametrize("changed", [{"factor": 1.0}, {"factor": 0.5}, {"mscale_all_dim": 0.0}])
def test_nothing_stretched_or_no_key_leaves_the_scale_plain(changed):
    assert softmax_scale(192, dataclasses.replace(V32, **changed)) == PLAIN


def test_ramps():
    # low: the last pair to make beta_fast turns over the original context, rounded down; high: the
    # first to make fewer than beta_slow, rounded up. Betas of 1 both make them neighbours.
    assert K2.ramp(64) == (19, 20)
    assert V32.ramp(64) == (10, 23)
    for yarn, (low, high) in ((K2, (19, 20)), (V32, (10, 23))):
        turns = [4096 * yarn.theta ** (-2 * pair / 64) / (2 * math.pi) for pair in range(32)]
        assert turns[low] >= yarn.beta_fast > turns[low + 1]
        assert turns[high - 1] > yarn.beta_slow >= turns[high]
    assert dataclasses.replace(V32, beta_fast=1e9).ramp(64)[0] == 0
    assert dataclasses.replace(V32, beta_slow=1e-9).ramp(64)[1] == 63  # width - 1, as the models'


def test_a_ramp_without_length_is_refused():
    with pytest.raises(ValueError, match="begins at pair 19 and ends at 6: it has no length"):
        dataclasses.replace(K2, beta_slow=100.0).ramp(64)
