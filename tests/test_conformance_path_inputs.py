"""Implementations of a path that can't be tested are refused, each with its reason."""

from __future__ import annotations

import paths
import pytest
import torch
from kv_rows import K3, V32

from latentkv import KVContract, NormContract
from latentkv.conformance import ImplementationError
from latentkv.conformance.path import PathImplementation, identify_path

pytestmark = pytest.mark.usefixtures("one_thread")


def _mutates(name):
    def f(down, gain, eps, positions, cos, sin):
        {"down": down, "gain": gain, "positions": positions, "cos": cos}[name].zero_()
        return paths.unrotated(down, gain, eps, positions)

    return f


def _mutates_slots(down, gain, eps, positions, cache=None, slots=None):
    if slots is not None:
        slots.clamp_min_(1)
    return paths.unrotated(down, gain, eps, positions)


def _raises(down, gain, eps, positions):
    raise KeyError("no such kernel")


def _one(down, gain, eps, positions):
    return down


def _wide_latent(down, gain, eps, positions):
    return down, down


def _batched_key(down, gain, eps, positions):
    latent, key = paths.unrotated(down, gain, eps, positions)
    return latent, key.unsqueeze(1)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (_mutates("down"), "mutates its input down"),
        (_mutates("gain"), "mutates its input gain"),
        (_mutates("positions"), "mutates its input positions"),
        (_mutates("cos"), "mutates its input cos"),
        (_mutates_slots, "mutates its input slots"),
        (_raises, r"raised KeyError: 'no such kernel' \(on bfloat16 \(512, 576\), gain bfloat16"),
        (_one, r"returned an object of type Tensor, not \(latent, key\)"),
        (_wide_latent, r"a latent of shape \(512, 576\), not \(512, 512\)"),
        (_batched_key, r"a key of shape \(512, 1, 64\), not \(512, 64\)"),
        (lambda x, gain, eps: x, r"can't be called as f\(down, gain, eps, positions\)"),
        (lambda down, gain, eps, positions, cos: down, "a parameter cos but none named sin"),
        (
            lambda down, gain, eps, positions, cache, slots: down,
            "cache and slots are passed by name, the latter two not in every call",
        ),
        (dict, "is the class dict"),
        (3, "is an object of type int"),
    ],
)
def test_what_cannot_be_tested_is_refused(bad, message):
    with pytest.raises(ImplementationError, match=message):
        identify_path(bad, V32, name="theirs")


def test_a_mutation_does_not_reach_the_next_implementation():
    with pytest.raises(ImplementationError):
        identify_path(_mutates("gain"), K3, name="theirs")
    assert identify_path(paths.unrotated, K3).follows


def test_a_path_needs_a_contract_with_a_key():
    with pytest.raises(TypeError, match="contract must be a KVContract, got NormContract"):
        identify_path(paths.unrotated, K3.norm)
    keyless = KVContract(NormContract(512, 1e-6, "cast_then_gain"), 0, None, None)
    with pytest.raises(ValueError, match="no shared key"):
        identify_path(paths.unrotated, keyless)


def test_a_module_and_a_ready_made_implementation_will_do():
    class Path(torch.nn.Module):
        def forward(self, down, gain, eps, positions):
            return paths.unrotated(down, gain, eps, positions)

    assert identify_path(Path(), K3).implementation == "Path"
    assert identify_path(PathImplementation("mine", paths.unrotated), K3).implementation == "mine"
