"""The probes of a path contain what it takes to tell its faults apart by more than luck."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from kv_rows import K2, V32

from latentkv import LatentQuant
from latentkv.bits import differing, same_bits
from latentkv.conformance.path import key, latent
from latentkv.conformance.path.probes import sample, table_rows, visibly_scaled
from latentkv.contracts import ORDERS, RULES
from latentkv.definition import rotary_table
from latentkv.definition.rope import inverse_frequencies

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_table_given_is_the_contracts():
    rows = sample(V32)
    cos, sin = rotary_table(V32.rope)[rows.positions].chunk(2, dim=-1)
    given = rows.table()
    assert same_bits(given[0], cos.contiguous()) and same_bits(given[1], sin.contiguous())
    table = table_rows(inverse_frequencies(V32.rope), rows.positions)
    assert same_bits(table, torch.cat(given, dim=-1))


def test_the_rows_tell_every_two_rules_and_orders_apart():
    large = visibly_scaled(sample(V32))
    expected = {
        (rule, order): latent.expected_latent(
            replace(V32, norm=replace(V32.norm, order=order), quant=LatentQuant(128, rule))
        )[large]
        for rule in RULES
        for order in ORDERS
    }
    for one, other in combinations(expected, 2):
        share = differing(expected[one], expected[other]).double().mean()
        assert share > 2 * latent._EXPLAINED, (one, other, share)


@pytest.mark.parametrize("contract", [K2, V32], ids=["kimi-k2", "deepseek-v3.2-exp"])
def test_the_rows_tell_every_two_rotations_and_roundings_apart(contract):
    rows = sample(contract)
    turns = list(key._turns(contract))
    own = turns[0].key(rows, "result")
    for turn in turns[1:]:
        if turn.layout == turns[0].layout or turn.faults:
            far = key._far(own, turn.key(rows, "result"), turn.layout, key._NEAR)
            assert far > 10 * key._FAR_SHARE, (turn.faults, turn.layout, far)
    early = rows.positions < key._EARLY
    keys = [turns[0].key(rows, name)[early] for name in key._ROUNDINGS]
    for one, other in combinations(keys, 2):
        assert differing(one, other).double().mean() > 3 * key._EXPLAINED
