"""Bad input to a write is a clear error that says what was given; the cache stays as it was."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import assert_same, check_python, contract, random_gain, random_rows
from kv_caches import DOWN, GAIN, POSITIONS, SLOTS, bytes_of, fp8, plain, replaced
from kv_rows import K2, V32

import latentkv
from latentkv import KVContract, LatentCache, LatentQuant, _library

LAST = 2**40 + 17


# name -> what differs from a call that is right (bf16 rows of K2 into a plain cache), the error and
# its essential words. A cache is a function, since each call needs a new one.
CASES = {
    "fewer slots": (
        {"slots": SLOTS[:5]}, ValueError,
        r"slots have shape \(5,\); they must have one for each row of down, \(6,\): give padding",
    ),
    "more slots": ({"slots": SLOTS.repeat(2)}, ValueError, r"slots have shape \(12,\).*\(6,\)"),
    "one slot for all": ({"slots": SLOTS[:1]}, ValueError, r"slots have shape \(1,\).*\(6,\)"),
    "a slot without dimension": ({"slots": SLOTS[0]}, ValueError, r"slots have shape \(\).*\(6,\)"),
    "slots of another rank": ({"slots": SLOTS[None]}, ValueError, r"slots have shape \(1, 6\)"),
    "slots to broadcast": (
        {"down": DOWN.view(2, 3, 576), "positions": POSITIONS[0], "slots": SLOTS[:3]}, ValueError,
        r"slots have shape \(3,\).*\(2, 3\)",
    ),
    "float slots": ({"slots": SLOTS.float()}, TypeError, "slots have dtype float32.*int32, int64"),
    "int8 slots": ({"slots": SLOTS.to(torch.int8)}, TypeError, "slots have dtype int8; allowed"),
    "int16 slots": ({"slots": SLOTS.short()}, TypeError, "slots have dtype int16; allowed: int32"),
    "uint8 slots": ({"slots": SLOTS.to(torch.uint8)}, TypeError, "slots have dtype uint8; allowed"),
    "bool slots": ({"slots": SLOTS > 0}, TypeError, "slots have dtype bool; allowed: int32, int64"),
    "slots None": ({"slots": None}, TypeError, "slots must be a tensor, got NoneType"),
    "slots a list": ({"slots": SLOTS.tolist()}, TypeError, "slots must be a tensor, got list"),
    "slots an array": ({"slots": SLOTS.numpy()}, TypeError, "slots must be a tensor, got ndarray"),
    "slots elsewhere": (
        {"slots": SLOTS.to("meta")}, ValueError, "slots are on meta but the cache on cpu: move one",
    ),
    "the capacity as slot": (
        {"slots": replaced(SLOTS, 5, 28)}, ValueError,
        "slot 28 is out of range: the cache has 28 records, in 4 blocks of 7",
    ),
    "the capacity as int32 slot": (
        {"slots": replaced(SLOTS, 0, 28).int()}, ValueError, "slot 28 is out of range",
    ),
    "a slot of 2^31": ({"slots": replaced(SLOTS, 1, 2**31)}, ValueError, "slot 2147483648 is out"),
    "a slot of 2^32 + 3": (
        {"slots": replaced(SLOTS, 1, 2**32 + 3)}, ValueError, "slot 4294967299 is out of range",
    ),
    "a slot past 2^40": ({"slots": replaced(SLOTS, 2, LAST)}, ValueError, f"slot {LAST} is out of"),
    "the largest slot": (
        {"slots": replaced(SLOTS, 2, 2**63 - 1)}, ValueError, f"slot {2**63 - 1} is out of range",
    ),
    "a slot of padding's row": (  # slots and positions are looked at in all rows, not in the first
        {"slots": torch.tensor([-1, -1, -1, -1, -1, 28])}, ValueError, "slot 28 is out of range",
    ),
    "block size 0": (
        {"cache": lambda: torch.zeros(4, 0, 576).bfloat16()}, ValueError, "cache has block size 0",
    ),
    "an fp32 cache": (
        {"cache": lambda: plain(torch.float32)}, TypeError,
        "cache has dtype float32; rows of bfloat16 give latents of bfloat16 and keys of bfloat16",
    ),
    "an fp16 cache": (
        {"cache": lambda: plain(torch.float16)}, TypeError, "cache has dtype float16; rows of bf",
    ),
    "an fp64 cache": (
        {"cache": lambda: plain(torch.float64)}, TypeError, "cache has dtype float64",
    ),
    "an int16 cache": ({"cache": lambda: plain(torch.int16)}, TypeError, "cache has dtype int16"),
    "a cache of e4m3": (
        {"cache": lambda: plain().to(torch.float8_e4m3fn)}, TypeError, "cache has dtype float8",
    ),
    "a bf16 cache for fp32 rows": (
        {"down": DOWN.float(), "gain": GAIN.float()}, TypeError,
        "cache has dtype bfloat16; rows of float32 give latents of float32",
    ),
    "a gain that promotes": (
        {"gain": GAIN.float()}, TypeError, "rows of bfloat16 give latents of float32 and keys",
    ),
    "an fp32 cache for a gain that promotes": (
        {"gain": GAIN.float(), "cache": lambda: plain(torch.float32)}, TypeError,
        "cache has dtype float32; rows of bfloat16 give latents of float32 and keys of bfloat16",
    ),
    "narrow records": (
        {"cache": lambda: plain()[..., :512].contiguous()}, ValueError,
        "records of 512 elements; this contract's have 576: 512 latent, 64 key",
    ),
    "wide records": (
        {"cache": lambda: torch.zeros(4, 7, 656).bfloat16()}, ValueError, "records of 656 elements",
    ),
    "records of 576 bytes": (
        {"cache": lambda: fp8()[..., :576].contiguous(), "rule": V32}, ValueError,
        "records of 576 elements; this contract's have 656: 512 codes, 4 scales, 64 key",
    ),
    "records for other groups": (
        {"cache": fp8, "rule": dataclasses.replace(K2, quant=LatentQuant(64, "flashmla"))},
        ValueError, "records of 656 elements; this contract's have 672: 512 codes, 8 scales",
    ),
    "a flat cache": (
        {"cache": lambda: plain().view(28, 576)}, ValueError,
        r"cache has shape \(28, 576\); it must be \[blocks, block size, record\]",
    ),
    "a cache with heads": (
        {"cache": lambda: plain().unsqueeze(2)}, ValueError, r"cache has shape \(4, 7, 1, 576\)",
    ),
    "a cache without dimension": (
        {"cache": lambda: torch.tensor(1.0).bfloat16()}, ValueError, r"cache has shape \(\)",
    ),
    "cache None": ({"cache": lambda: None}, TypeError, "cache must be a tensor, got NoneType"),
    "cache an array": (
        {"cache": lambda: np.zeros((4, 7, 576), np.float32)}, TypeError,
        "cache must be a tensor, got ndarray",
    ),
    "cache a LatentCache": (
        {"cache": lambda: LatentCache.paged(K2, 4, 7)}, TypeError,
        "cache must be a tensor, got LatentCache",
    ),
    "cache elsewhere": (
        {"cache": lambda: plain().to("meta")}, ValueError, "cache is on meta but down on cpu: move",
    ),
    "a sparse cache": (
        {"cache": lambda: plain().to_sparse()}, (TypeError, ValueError), "cache (must|has)",
    ),
    "an expanded cache": (
        {"cache": lambda: plain()[:1].expand(4, 7, 576)}, ValueError,
        r"cache has strides \(0, 576, 1\) for shape \(4, 7, 576\): its records overlap",
    ),
    "expanded records": (
        {"cache": lambda: plain()[:, :1].expand(4, 7, 576)}, ValueError,
        r"cache has strides \(4032, 0, 1\).*overlap",
    ),
    "overlapping blocks": (
        {"cache": lambda: plain().flatten().as_strided((4, 7, 576), (576, 576, 1))}, ValueError,
        r"cache has strides \(576, 576, 1\).*overlap",
    ),
    "overlapping records": (
        {"cache": lambda: plain().flatten().as_strided((4, 7, 576), (4032, 288, 1))}, ValueError,
        r"cache has strides \(4032, 288, 1\).*overlap",
    ),
    "a transposed cache": (
        {"cache": lambda: plain().permute(2, 1, 0).contiguous().permute(2, 1, 0)}, ValueError,
        r"cache has strides \(1, 4, 28\).*overlap or lie in pieces.*not an expanded or transposed",
    ),
    "blocks and records swapped": (
        {"cache": lambda: plain().transpose(0, 1).contiguous().transpose(0, 1)}, ValueError,
        r"cache has strides \(576, 2304, 1\).*overlap",
    ),
    "elements apart": (
        {"cache": lambda: torch.zeros(4, 7, 1152).bfloat16()[..., ::2]}, ValueError,
        r"cache has strides \(8064, 1152, 2\)",
    ),
    "padded records": (
        {"cache": lambda: torch.zeros(4, 7, 640).bfloat16()[..., :576]}, ValueError,
        r"cache has strides \(4480, 640, 1\): blocks and records must begin at whole records",
    ),
    "padded blocks": (
        {"cache": lambda: torch.zeros(4, 4096).bfloat16()[:, :4032].unflatten(1, (7, 576))},
        ValueError, r"cache has strides \(4096, 576, 1\): blocks and records must begin at whole",
    ),
    "a cache with a gradient": (
        {"cache": lambda: plain().requires_grad_()}, ValueError,
        r"cache requires a gradient, which a write would falsify: detach\(\) it",
    ),
    "a cache inside a graph": (
        {"cache": lambda: plain().requires_grad_() * 1}, ValueError, "cache requires a gradient",
    ),
    "an fp8 cache without a rule": (
        {"cache": fp8}, ValueError, r"an fp8 cache needs a scale rule.*LatentQuant\(128",
    ),
    "an fp8 cache for fp32 rows": (
        {"cache": fp8, "rule": V32, "down": DOWN.float(), "gain": GAIN.float()}, TypeError,
        "down has dtype float32; an fp8 record holds the key in bfloat16",
    ),
    "an fp8 cache for fp16 rows": (
        {"cache": fp8, "rule": V32, "down": DOWN.half(), "gain": GAIN.half()}, TypeError,
        "down has dtype float16; an fp8 record holds the key in bfloat16",
    ),
    "a negative position": (
        {"positions": replaced(POSITIONS, 1, -1)}, ValueError,
        "positions run from -1 to 131071; the contract's run from 0 to 131071",
    ),
    "a position too far": (
        {"positions": replaced(POSITIONS, 5, 131_072)}, ValueError, "positions run from 0 to 1310",
    ),
    "an int32 position too far": (
        {"positions": replaced(POSITIONS, 0, 131_072).int()}, ValueError, "positions run from 3 to",
    ),
    "a position past 32 bits": (
        {"positions": replaced(POSITIONS, 2, 2**32 + 5)}, ValueError, "to 4294967301; the contr",
    ),
    "positions None": ({"positions": None}, TypeError, "positions are missing: this contract r"),
    "float positions": (
        {"positions": POSITIONS.float()}, TypeError, "positions have dtype float32; allowed: int32",
    ),
    "int16 positions": ({"positions": SLOTS.short()}, TypeError, "positions have dtype int16"),
    "fewer positions": (
        {"positions": POSITIONS[:5]}, ValueError, r"positions have shape \(5,\).*each row, \(6,\)",
    ),
    "positions of another rank": (
        {"positions": POSITIONS[None]}, ValueError, r"positions have shape \(1, 6\)",
    ),
    "positions a list": (
        {"positions": POSITIONS.tolist()}, TypeError, "positions must be a tensor, got list",
    ),
    "positions elsewhere": (
        {"positions": POSITIONS.to("meta")}, ValueError, "positions are on meta but the rows",
    ),
    "down None": ({"down": None}, TypeError, "down must be a tensor, got NoneType"),
    "the latent alone": (
        {"down": DOWN[:, :512]}, ValueError, r"down has shape \(6, 512\).*must be 576: the lat",
    ),
    "a fused projection": ({"down": random_rows(6, 2112)}, ValueError, r"has shape \(6, 2112\)"),
    "down without dimension": ({"down": torch.tensor(1.0)}, ValueError, r"down has shape \(\)"),
    "transposed down": (
        {"down": DOWN.t().contiguous().t()}, ValueError, r"down has strides \(1, 6\); the last one",
    ),
    "fp64 down": (
        {"down": DOWN.double(), "gain": GAIN.double()}, TypeError, "down has dtype float64; all",
    ),
    "int32 down": ({"down": DOWN.int()}, TypeError, "down has dtype int32; allowed: bfloat16"),
    "down elsewhere": ({"down": DOWN.to("meta")}, ValueError, "is on (cpu|meta) but .*: move"),
    "a short gain": ({"gain": GAIN[:511]}, ValueError, r"gain has shape \(511,\).*512 elements"),
    "a gain for the key, too": ({"gain": random_gain(576)}, ValueError, r"gain has shape \(576,\)"),
    "a gain without dimension": ({"gain": torch.tensor(1.0)}, ValueError, r"gain has shape \(\)"),
    "2-D gain": ({"gain": GAIN[None]}, ValueError, r"gain has shape \(1, 512\); it must be 1-D"),
    "a strided gain": ({"gain": random_gain(1024)[::2]}, ValueError, r"gain has strides \(2,\)"),
    "gain None": ({"gain": None}, TypeError, "gain must be a tensor, got NoneType"),
    "an fp64 gain": ({"gain": GAIN.double()}, TypeError, "gain has dtype float64; allowed"),
    "gain elsewhere": ({"gain": GAIN.to("meta")}, ValueError, "gain is on meta but down on cpu"),
    "contract None": ({"rule": None}, TypeError, "contract must be a KVContract, got NoneType"),
    "contract a norm's": (
        {"rule": K2.norm}, TypeError, "contract must be a KVContract, got NormContract: pass",
    ),
    "contract a name": ({"rule": "kimi-k2"}, TypeError, "contract must be a KVContract, got str"),
    "contract of another width": (
        {"rule": KVContract(contract(448), 64, None, None)}, ValueError, r"has shape \(6, 576\)",
    ),
    "sparse slots": (
        {"slots": SLOTS.to_sparse()}, TypeError, "slots must be a strided tensor, got .*sparse_coo",
    ),
    "sparse positions": (
        {"positions": POSITIONS.to_sparse()}, TypeError, "positions must be a strided tensor",
    ),
    "sparse down": ({"down": DOWN.to_sparse()}, TypeError, "down must be a strided tensor"),
}  # fmt: skip


MODES = {"grad": torch.enable_grad, "no grad": torch.no_grad, "inference": torch.inference_mode}


@pytest.mark.parametrize("case", CASES)
def test_refused_and_the_cache_untouched(case):
    changes, error, words = CASES[case]
    given = {"cache": plain, "slots": SLOTS, "down": DOWN, "gain": GAIN, "rule": K2}
    given = {**given, "positions": POSITIONS, **changes}
    order = ("cache", "slots", "down", "gain", "rule", "positions")
    for mode in MODES.values():
        cache = given["cache"]()
        before = bytes_of(cache)
        with mode(), pytest.raises(error, match=words):
            latentkv.write_kv(cache, *(given[name] for name in order[1:]))
        assert bytes_of(cache) == before


def test_what_the_cases_are_variations_of_is_taken():
    cache = plain()
    latentkv.write_kv(cache, SLOTS, DOWN, GAIN, K2, POSITIONS)
    latent, key = latentkv.compress_kv(DOWN, GAIN, K2, POSITIONS)
    wanted, kept = plain().view(28, 576), SLOTS >= 0
    wanted[SLOTS[kept]] = torch.cat([latent, key], -1)[kept]
    assert_same(cache.view(28, 576), wanted)


@pytest.mark.skipif(_library.backend() == "definition", reason="this is that run")
def test_the_definition_refuses_the_same():
    # All files of what is refused, without a test that starts a process and one of what isn't.
    names = ("refusals", "construction", "operator", "memory", "gather")
    files = [str(Path(__file__).with_name(f"test_cache_{name}.py")) for name in names]
    arguments = [
        "-x",
        "-p",
        "no:cacheprovider",
        "-k",
        "not without_rows and not larger_pool",
        *files,
    ]
    code = f"import sys, pytest; sys.exit(pytest.main({arguments!r}))"
    check_python(code, LATENTKV_BACKEND="definition")
