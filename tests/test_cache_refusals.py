"""Bad input to a cache is a clear error that names what was given, and the cache stays as it was.

On every backend with the same words: the last test runs this file again on the definition.
"""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import assert_same, check_python, contract, random_gain, random_rows

import latentkv
from latentkv import KVCompression, KVContract, LatentCache, LatentQuant, _library, layouts, models

K2, K3, V32 = (models.get(name).kv for name in ("kimi-k2", "kimi-k3", "deepseek-v3.2-exp"))
DOWN, GAIN = random_rows(6, 576), random_gain(512)
POSITIONS, SLOTS = torch.tensor([0, 9, 4, 7, 131_071, 3]), torch.tensor([5, 27, 0, -1, 13, 2])
LAST = 2**40 + 17


def plain(dtype=torch.bfloat16):
    return torch.full((4, 7, 576), 777, dtype=dtype)


def fp8():
    return torch.full((2, 64, 656), 119, dtype=torch.uint8)


def replaced(values, index, value):
    values = values.clone()
    values[index] = value
    return values


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


def bytes_of(cache):
    """What a tensor's memory holds, guards and all."""
    if not isinstance(cache, torch.Tensor) or cache.is_meta or cache.layout != torch.strided:
        return b""
    return torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage()).numpy().tobytes()


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


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("operand", ["down", "gain", "slots", "positions"])
def test_a_cache_that_shares_memory(operand, where):
    # What is read would be changed by what is written. At either end of the cache.
    memory = torch.zeros(28 * 576 + 8, dtype=torch.bfloat16)
    cache = memory[: 28 * 576].view(4, 7, 576)
    # For the last: from whole eight bytes within the last record on, past its end.
    start = 0 if where == "first" else 28 * 576 - 4
    at = {name: value.clone() for name, value in (("slots", SLOTS), ("positions", POSITIONS))}
    if operand == "down":
        memory = torch.zeros(40 * 576, dtype=torch.bfloat16)
        cache = memory[: 28 * 576].view(4, 7, 576)
        shared = memory[: 6 * 576] if where == "first" else memory[27 * 576 : 33 * 576]
        given = {"down": shared.view(6, 576).copy_(DOWN), "gain": GAIN, **at}
    elif operand == "gain":
        memory = torch.zeros(30 * 576, dtype=torch.bfloat16)
        cache = memory[: 28 * 576].view(4, 7, 576)
        shared = memory[start : start + 512].copy_(GAIN)
        given = {"down": DOWN, "gain": shared, **at}
    else:
        memory = torch.zeros(30 * 576, dtype=torch.bfloat16)
        cache = memory[: 28 * 576].view(4, 7, 576)
        shared = memory[start : start + 24].view(torch.int64).copy_(at[operand])
        given = {"down": DOWN, "gain": GAIN, **at, operand: shared}
    before = bytes_of(cache)
    with pytest.raises(ValueError, match=f"cache and {operand} share memory"):
        latentkv.write_kv(
            cache, given["slots"], given["down"], given["gain"], K2, given["positions"]
        )
    assert bytes_of(cache) == before
    # Side by side is not shared.
    beside = torch.zeros(29 * 576, dtype=torch.bfloat16)
    near = beside[28 * 576 :][:512].copy_(GAIN)
    latentkv.write_kv(beside[: 28 * 576].view(4, 7, 576), SLOTS, DOWN, near, K2, POSITIONS)
    assert beside[: 28 * 576].any() and torch.equal(near, GAIN)


def test_a_tensor_of_inference_mode_outside_it():
    with torch.inference_mode():
        cache = plain()
    before = bytes_of(cache)
    with pytest.raises(ValueError, match="cache is not writable here: it was made in inference mo"):
        latentkv.write_kv(cache, SLOTS, DOWN, GAIN, K2, POSITIONS)
    assert bytes_of(cache) == before
    with pytest.raises(ValueError, match="not writable here: it was made in inference mode"):
        LatentCache(cache, layouts.plain(K2), K2, 7)
    with torch.inference_mode():
        LatentCache(cache, layouts.plain(K2), K2, 7).write(DOWN, GAIN, POSITIONS, SLOTS)
    assert bytes_of(cache) != before


# As numpy warns: torch gives a tensor that must not be written.
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_read_only_memory(tmp_path):
    path = tmp_path / "cache.bin"
    np.full((4, 7, 576), 777, np.float32).tofile(path)
    mapped = torch.from_numpy(np.memmap(path, np.float32, "r", shape=(4, 7, 576)))
    record = layouts.plain(K2, "float32")
    with pytest.raises(
        ValueError, match="records are not writable: their memory is mapped read-on"
    ):
        LatentCache(mapped, record, K2, 7)
    with pytest.raises(ValueError, match="records are not writable"):
        LatentCache(mapped[2:], record, K2, 7)
    # A copy of it, and a file that may be written, are taken.
    LatentCache(mapped.clone(), record, K2, 7)
    writable = torch.from_numpy(np.memmap(path, np.float32, "r+", shape=(4, 7, 576)))
    cache = LatentCache(writable, record, K2, 7)
    cache.write(DOWN.float(), GAIN.float(), POSITIONS, SLOTS)
    latent, _ = latentkv.compress_kv(DOWN.float(), GAIN.float(), K2, POSITIONS)
    assert_same(cache.gather(SLOTS[:1])[0], latent[:1])


# name -> records, record, contract, block size, the error and its words.
BF16, CODES = layouts.plain(K2), layouts.fp8_ds_mla(V32)
CONSTRUCTED = {
    "pages of one record as pages of 64": (  # and the other way round
        lambda: torch.zeros(4 * 64, 1, 576).bfloat16(), BF16, K2, 64, ValueError,
        r"records have shape \(256, 1, 576\); bfloat16 in blocks of 64 is \[blocks, 64, 576\]",
    ),
    "pages of 64 as pages of one record": (
        lambda: torch.zeros(4, 64, 576).bfloat16(), BF16, K2, 1, ValueError,
        r"records have shape \(4, 64, 576\); bfloat16 in blocks of 1 is",
    ),
    "a head in between": (
        lambda: torch.zeros(4, 64, 1, 576).bfloat16(), BF16, K2, 64, ValueError,
        r"records have shape \(4, 64, 1, 576\)",
    ),
    "a flat tensor": (lambda: torch.zeros(256, 576).bfloat16(), BF16, K2, 64, ValueError, "shape"),
    "keys and values": (
        lambda: torch.zeros(4, 64, 1152).bfloat16(), BF16, K2, 64, ValueError, r"\(4, 64, 1152\)",
    ),
    "flat fp8 pages": (
        lambda: torch.zeros(4, 64, 576).byte(), CODES, V32, 64, ValueError,
        r"records have shape \(4, 64, 576\); fp8_ds_mla in blocks of 64 is \[blocks, 64, 656\]",
    ),
    "fp8 in blocks of 32": (
        lambda: torch.zeros(4, 32, 656).byte(), CODES, V32, 32, ValueError,
        "fp8_ds_mla comes in blocks of 64, which its kernels demand; got 32",
    ),
    "fp8 in blocks of 1": (
        lambda: torch.zeros(4, 1, 656).byte(), CODES, V32, 1, ValueError, "in blocks of 64.*got 1",
    ),
    "block size 0": (
        lambda: torch.zeros(4, 0, 576).bfloat16(), BF16, K2, 0, ValueError, "block_size must be at",
    ),
    "block size -1": (plain, BF16, K2, -1, ValueError, "block_size must be at least 1, got -1"),
    "block size 7.0": (plain, BF16, K2, 7.0, TypeError, "block_size must be an int, got 7.0"),
    "block size None": (plain, BF16, K2, None, TypeError, "block_size must be an int, got None"),
    "fp32 records": (
        lambda: plain(torch.float32), BF16, K2, 7, TypeError,
        "records have dtype torch.float32; bfloat16 is torch.bfloat16",
    ),
    "int8 for uint8": (
        lambda: fp8().to(torch.int8), CODES, V32, 64, TypeError, "dtype torch.int8; fp8_ds_mla is",
    ),
    "records a list": (lambda: [1.0], BF16, K2, 7, TypeError, "records must be a tensor, got list"),
    "records None": (lambda: None, BF16, K2, 7, TypeError, "records must be a tensor, got None"),
    "the record of another contract": (
        plain, layouts.plain(KVContract(contract(448), 128, None, None)), K2, 7, ValueError,
        "record .bfloat16. doesn't fit the contract",
    ),
    "an fp8 record without a rule": (
        fp8, CODES, K2, 64, ValueError, "an fp8 cache needs a scale rule, and this contract",
    ),
    "an fp8 record of other groups": (
        fp8, CODES, dataclasses.replace(V32, quant=LatentQuant(64, "flashmla")), 64, ValueError,
        "record .fp8_ds_mla. doesn't fit the contract",
    ),
    "a record that is only described": (
        lambda: torch.zeros(4, 7, 576).to(torch.float8_e4m3fn), layouts.fp8_per_tensor(V32), V32, 7,
        ValueError, "record .fp8_per_tensor. is described here, but",
    ),
    "record None": (plain, None, K2, 7, TypeError, "record must be a .*Record, got NoneType"),
    "contract None": (plain, BF16, None, 7, TypeError, "must be a KVContract, got NoneType"),
    "contract a norm's": (plain, BF16, K2.norm, 7, TypeError, "must be a KVContract, got NormCont"),
    "expanded": (
        lambda: plain()[:1].expand(4, 7, 576), BF16, K2, 7, ValueError, r"strides \(0, 576, 1\).*",
    ),
    "padded records": (
        lambda: torch.zeros(4, 7, 640).bfloat16()[..., :576], BF16, K2, 7, ValueError,
        r"strides \(4480, 640, 1\): blocks and records must begin at whole records",
    ),
    "with a gradient": (lambda: plain().requires_grad_(), BF16, K2, 7, ValueError, "gradient"),
    "sparse": (lambda: plain().to_sparse(), BF16, K2, 7, (TypeError, ValueError), "strided?"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONSTRUCTED)
def test_refused_at_construction(case):
    make, record, rule, block_size, error, words = CONSTRUCTED[case]
    records = make()
    before = bytes_of(records)
    with pytest.raises(error, match=words):
        LatentCache(records, record, rule, block_size)
    assert bytes_of(records) == before


def test_refused_before_memory_is_taken():
    for make, error, words in (
        (lambda: LatentCache.fp8(K2, 4), ValueError, "an fp8 cache needs a scale rule"),
        (lambda: LatentCache.paged(K2, 4, 0), ValueError, "block_size must be at least 1, got 0"),
        (lambda: LatentCache.contiguous(K2, 4, 0), ValueError, "block_size must be at least 1"),
        (lambda: LatentCache.paged(K2, -1), ValueError, "a cache can't have -1 blocks"),
        (
            lambda: LatentCache.paged(K2, 4, dtype=torch.float64),
            ValueError,
            "a plain record is bfloat16, float16 or float32, not float64",
        ),
        (lambda: LatentCache.paged(K2, 4, dtype=torch.uint8), ValueError, "not uint8"),
        (
            lambda: LatentCache.paged(K2.norm, 4),
            TypeError,
            "must be a KVContract, got NormContract",
        ),
        (lambda: LatentCache.fp8(None, 4), TypeError, "must be a KVContract, got NoneType"),
    ):
        with pytest.raises(error, match=words):
            make()


GATHERED = {
    "float": (torch.tensor([1.0]), TypeError, "slots have dtype float32; allowed: int32, int64"),
    "int8": (torch.tensor([1], dtype=torch.int8), TypeError, "slots have dtype int8; allowed"),
    "bool": (torch.tensor([True]), TypeError, "slots have dtype bool; allowed"),
    "a list": ([1], TypeError, "slots must be a tensor, got list"),
    "an int": (1, TypeError, "slots must be a tensor, got int"),
    "None": (None, TypeError, "slots must be a tensor, got NoneType"),
    "the capacity": (torch.tensor([0, 28]), ValueError, "slot 28 is out of range: .* 28 records"),
    "far": (torch.tensor([LAST]), ValueError, f"slot {LAST} is out of range"),
    "elsewhere": (torch.tensor([1], device="meta"), ValueError, "slots are on meta"),
    "sparse": (torch.tensor([1]).to_sparse(), TypeError, "slots must be a strided tensor"),
}


@pytest.mark.parametrize("case", GATHERED)
def test_refused_to_gather(case):
    slots, error, words = GATHERED[case]
    with pytest.raises(error, match=words):
        LatentCache.paged(K2, 4, 7).gather(slots)


def test_one_block_has_no_stride_between_blocks():
    # Whatever the stride of a dimension of size 1, on every backend and in both functions.
    down, wanted = DOWN[:2], plain()[:1]
    slots, positions = torch.tensor([6, 0]), torch.tensor([3, 1])
    latentkv.write_kv(wanted, slots, down, GAIN, K2, positions)
    for stride in (4033, 0, 1):
        memory = torch.full((7 * 576,), 777).bfloat16().as_strided((1, 7, 576), (stride, 576, 1))
        LatentCache(memory, BF16, K2, 7).write(down, GAIN, positions, slots)
        assert_same(memory, wanted)


def test_a_module_refuses_a_cache_of_another_contract():
    module = KVCompression(K2, 8, dtype=torch.bfloat16)
    cache = LatentCache.paged(K3, 4, 7)
    hidden = random_rows(6, 8)
    with pytest.raises(ValueError, match="the cache's contract is .*rope=None.*, not KVContract"):
        module.write(cache, hidden, POSITIONS, SLOTS)
    assert not cache.records.any()
    with pytest.raises(TypeError, match="cache must be a LatentCache, got Tensor"):
        module.write(plain(), hidden, POSITIONS, SLOTS)


def raw(cache=None, slots=SLOTS, down=DOWN, gain=GAIN, positions=POSITIONS, table=None, **numerics):
    """The operator itself, with nothing in front of it."""
    names = {"eps": 1e-6, "order": "cast_then_gain", "rope": "", "rule": "", "group": 0, **numerics}
    torch.ops.latentkv.write_kv(cache, slots, down, gain, positions, table, *names.values())


TABLE = torch.zeros(131_072, 64)
TURN = {"rope": "half_each_step"}
RAW = {
    "slots beyond": {"slots": replaced(SLOTS, 0, 28)},
    "slots far beyond": {"slots": replaced(SLOTS, 0, LAST)},
    "fewer slots": {"slots": SLOTS[:5]},
    "one slot": {"slots": SLOTS[:1]},
    "more slots": {"slots": SLOTS.repeat(2)},
    "slots of another rank": {"slots": SLOTS[None]},
    "expanded slots of another shape": {"slots": SLOTS[:1].expand(6, 6)},
    "int16 slots": {"slots": SLOTS.short()},
    "float slots": {"slots": SLOTS.double()},
    "sparse slots": {"slots": SLOTS.to_sparse()},
    "meta slots": {"slots": SLOTS.to("meta")},
    "a position beyond the table": {"table": TABLE[:100], **TURN},
    "a negative position": {"table": TABLE, "positions": -POSITIONS, **TURN},
    "no positions": {"table": TABLE, "positions": None, **TURN},
    "no table": TURN,
    "a narrow table": {"table": TABLE[:, :32].contiguous(), **TURN},
    "an fp64 table": {"table": TABLE.double(), **TURN},
    "a flat table": {"table": TABLE.flatten(), **TURN},
    "a meta table": {"table": TABLE.to("meta"), **TURN},
    "fewer positions": {"table": TABLE, "positions": POSITIONS[:4], **TURN},
    "int8 positions": {"table": TABLE, "positions": SLOTS.to(torch.int8), **TURN},
    "positions of a higher rank": {"table": TABLE, "positions": POSITIONS[None, None], **TURN},
    "an unknown rope": {"table": TABLE, "rope": "half"},
    "an unknown rule": {"rule": "nearest", "group": 128},
    "a rule without a group": {"rule": "flashmla", "group": 0},
    "a negative group": {"rule": "flashmla", "group": -128},
    "a group that doesn't divide": {"rule": "flashmla", "group": 100},
    "a group beyond the width": {"rule": "flashmla", "group": 1024},
    "an unknown order": {"order": "gain"},
    "eps 0": {"eps": 0.0},
    "eps nan": {"eps": float("nan")},
    "a gain longer than rows": {"gain": random_gain(577)},
    "no gain": {"gain": torch.empty(0).bfloat16()},
    "an expanded gain": {"gain": GAIN[:1].expand(512)},
    "rows of another width": {"down": random_rows(6, 512)},
    "rows without a dimension": {"down": torch.tensor(1.0).bfloat16()},
    "meta rows": {"down": DOWN.to("meta")},
    "a flat cache": {"cache": plain().view(28, 576)},
    "a narrow cache": {"cache": plain()[..., :575].contiguous()},
    "an overlapping cache": {"cache": plain().as_strided((4, 7, 576), (576, 576, 1))},
    "an expanded cache": {"cache": plain()[:1].expand(4, 7, 576)},
    "a transposed cache": {"cache": plain().permute(2, 1, 0).contiguous().permute(2, 1, 0)},
    "a padded cache": {"cache": torch.zeros(4, 7, 640).bfloat16()[..., :576]},
    "an fp32 cache": {"cache": plain(torch.float32)},
    "an int16 cache": {"cache": plain(torch.int16)},
    "block size 0": {"cache": plain()[:, :0]},
    "no blocks": {"cache": plain()[:0]},
    "a cache of bytes without a rule": {"cache": fp8()},
    "a cache of bytes of another width": {
        "cache": fp8()[..., :576].contiguous(), "rule": "flashmla", "group": 128,
    },
    "a cache of bytes for fp32 rows": {
        "cache": fp8(), "down": DOWN.float(), "gain": GAIN.float(), "rule": "flashmla",
        "group": 128,
    },
    "a meta cache": {"cache": plain().to("meta")},
    "a sparse cache": {"cache": plain().to_sparse()},
}  # fmt: skip


@pytest.mark.parametrize("case", RAW)
def test_the_raw_operator_never_writes_out_of_bounds(case):
    # Words are the public function's; below it, an error is enough. A cache within a larger memory
    # shows a write that went astray.
    changes = dict(RAW[case])
    memory = torch.full((12 * 7 * 576,), 777).bfloat16()
    cache = changes.pop("cache", memory[4 * 4032 : 8 * 4032].view(4, 7, 576))
    before = bytes_of(cache), bytes_of(memory)
    with pytest.raises((ValueError, TypeError, RuntimeError, NotImplementedError)):
        raw(cache, **changes)
    assert (bytes_of(cache), bytes_of(memory)) == before


def test_a_table_without_rows():
    # In a process of its own: its address is null, and a kernel that takes it for an address dies.
    check_python(
        """
import latentkv.compress, torch
down, gain, at = torch.ones(6, 576).bfloat16(), torch.ones(512).bfloat16(), torch.arange(6)
rest = (down, gain, at, torch.zeros(0, 64), 1e-6, "cast_then_gain", "half_each_step", "", 0)
cache = torch.zeros(4, 7, 576).bfloat16()
for call in (lambda: torch.ops.latentkv.write_kv(cache, at, *rest),
             lambda: torch.ops.latentkv.compress_kv(*rest)):
    try:
        call()
    except (ValueError, RuntimeError):
        continue
    raise SystemExit("a position was found in a table without rows")
assert not cache.any()
"""
    )


def test_the_raw_operator_takes_what_is_right():
    cache = plain()
    raw(cache)
    assert_same(cache.view(28, 576)[SLOTS[:1], 512:], DOWN[:1, 512:])
    raw(cache, table=TABLE, **TURN)  # a table of zeros turns everything to zeros
    assert not cache.view(28, 576)[SLOTS[:1], 512:].any()


@pytest.mark.skipif(_library.backend() == "definition", reason="this is that run")
def test_the_definition_refuses_the_same():
    code = (
        f"import sys, pytest; sys.exit(pytest.main(['-x', '-p', 'no:cacheprovider', {__file__!r}]))"
    )
    check_python(code, LATENTKV_BACKEND="definition")
    assert Path(__file__).name == "test_cache_refusals.py"
