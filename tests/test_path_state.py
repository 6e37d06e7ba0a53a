"""What calls leave behind: a cache's version, shared tables, gradients of results nobody used."""

from dataclasses import replace
from threading import Thread

import pytest
import torch
from helpers import assert_same, random_gain, random_rows

import latentkv
from latentkv import LatentQuant, NormContract, _plans, definition, models
from latentkv.contracts import KVContract
from latentkv.definition import records

K2, K3, V32 = (models.get(name).kv for name in models.names())


def test_a_write_is_seen_by_who_saved_the_cache():
    cache = torch.zeros(1, 4, 576, dtype=torch.bfloat16)
    weight = torch.ones(576, dtype=torch.bfloat16, requires_grad=True)
    loss = (cache * weight).sum()
    before = cache._version
    latentkv.write_kv(cache, torch.tensor([0]), random_rows(1, 576), random_gain(512), K3, None)
    assert cache._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_write_in_inference_mode_counts_nothing():
    with torch.inference_mode():
        cache = torch.zeros(1, 4, 576, dtype=torch.bfloat16)
        latentkv.write_kv(cache, torch.tensor([0]), random_rows(1, 576), random_gain(512), K3, None)
        assert cache[0, 0].any()


@pytest.mark.parametrize("contract", [K2, K3, V32], ids=models.names())
def test_a_latent_that_nobody_used_has_no_gradient(instruction_set, contract):
    down, gain = random_rows(3, 576), random_gain(512).requires_grad_()
    down[1, 7] = float("inf")  # times the zero of an absent gradient it would be NaN
    down.requires_grad_()
    positions = torch.arange(3)
    _, key = latentkv.compress_kv(down, gain, contract, positions)
    dkey = random_rows(3, 64, seed=2)
    key.backward(dkey)
    assert gain.grad is None
    right, dgain = definition.compress_kv_backward(None, dkey, down, gain, contract, positions)
    assert not dgain.any() and not right[:, :512].any()
    assert_same(down.grad, right)


def test_a_key_that_nobody_used_has_no_gradient(instruction_set):
    down, gain = random_rows(3, 576).requires_grad_(), random_gain(512).requires_grad_()
    positions = torch.arange(3)
    latent, _ = latentkv.compress_kv(down, gain, K2, positions)
    dlatent = random_rows(3, 512, seed=2)
    latent.backward(dlatent)
    right, dgain = definition.compress_kv_backward(dlatent, None, down, gain, K2, positions)
    assert not right[:, 512:].any()
    assert_same(down.grad, right)
    assert_same(gain.grad, dgain)


def test_a_width_that_would_misplace_scales_is_refused_by_the_operator():
    down, gain = random_rows(2, 8), random_gain(6)
    cache = torch.zeros(1, 2, 6 + 3 * 4 + 2 * 2, dtype=torch.uint8)
    with pytest.raises((RuntimeError, ValueError), match="divisible by 4"):
        torch.ops.latentkv.write_kv(
            cache,
            torch.arange(2),
            down,
            gain,
            None,
            None,
            1e-6,
            "gain_then_cast",
            "",
            "flashmla",
            2,
        )
    assert not cache.any()


def test_one_group_a_row_and_no_row_at_all():
    contract = KVContract(
        NormContract(8, 1e-6, "cast_then_gain"), 2, None, LatentQuant(8, "sglang")
    )
    cache = torch.full((1, 64, 8 + 4 + 4), 77, dtype=torch.uint8)
    down, gain = random_rows(2, 10), random_gain(8)
    for write in (
        lambda slots: records.write(cache, slots, down, gain, contract, None),
        lambda slots: latentkv.write_kv(cache, slots, down, gain, contract, None),
    ):
        write(torch.tensor([-1, -1]))
    assert (cache == 77).all()


@pytest.fixture
def no_tables(monkeypatch):
    monkeypatch.setattr(_plans, "_PLANS", {})
    monkeypatch.setattr(_plans, "_TABLES", {})


def turning(theta, positions=8):
    return replace(K2, rope=replace(K2.rope, theta=theta, max_positions=positions))


def test_contracts_and_tables_do_not_pile_up(no_tables):
    down, gain = random_rows(1, 576), random_gain(512)
    for count in range(3 * _plans._MANY_TABLES):
        contract = turning(1000.0 + count)
        _, key = latentkv.compress_kv(down, gain, contract, torch.tensor([7]))
        assert_same(key, definition.compress_kv(down, gain, contract, torch.tensor([7]))[1])
    assert len(_plans._TABLES) <= _plans._MANY_TABLES


def test_threads_that_begin_together_share_one_table(no_tables):
    device, seen = torch.device("cpu"), []
    rope = turning(777.0, 4096).rope
    threads = [
        Thread(target=lambda: seen.append(_plans.shared_table(rope, device))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4 and all(table is seen[0] for table in seen)


def test_a_table_with_subnormals_whatever_the_first_caller_flushes(no_tables):
    rope = replace(K2.rope, theta=1e38, low=3, high=9, max_positions=1000)
    right = definition.rotary_table(rope)
    assert ((right != 0) & (right.abs() < 2.0**-126)).any()
    torch.set_flush_denormal(True)
    try:
        table = _plans.shared_table(rope, torch.device("cpu"))
    finally:
        torch.set_flush_denormal(False)
    assert_same(table, right)
