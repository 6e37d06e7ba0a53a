"""Tensors, records and contracts that make no cache are refused by name."""

import dataclasses

import pytest
import torch
from helpers import contract, random_rows
from kv_caches import POSITIONS, SLOTS, bytes_of, fp8, plain
from kv_rows import K2, K3, V32

from latentkv import KVCompression, KVContract, LatentCache, LatentQuant, layouts

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


def test_a_module_refuses_a_cache_of_another_contract():
    module = KVCompression(K2, 8, dtype=torch.bfloat16)
    cache = LatentCache.paged(K3, 4, 7)
    hidden = random_rows(6, 8)
    with pytest.raises(ValueError, match="another contract than this module's: its rope is None"):
        module.write(cache, hidden, POSITIONS, SLOTS)
    assert not cache.records.any()
    with pytest.raises(TypeError, match="cache must be a LatentCache, got Tensor"):
        module.write(plain(), hidden, POSITIONS, SLOTS)
