"""Byte layouts as data: offsets, sizes and the two orders of a key."""

import copy
import dataclasses
import json
import pickle

import pytest
import torch
from helpers import DTYPES, assert_same, check_python, contract, name_of, random_gain, random_rows
from kv_rows import K2, K3, V32

import latentkv
from latentkv import KVContract, LatentCache, LatentQuant, layouts, models
from latentkv.cache import half_to_interleaved, interleaved_to_half
from latentkv.layouts import Field, Record


def test_the_fp8_record_byte_by_byte():
    record = layouts.fp8_ds_mla(V32)
    assert [(f.name, f.offset, f.end, f.count, f.dtype) for f in record.fields] == [
        ("codes", 0, 512, 512, "float8_e4m3fn"),
        ("scales", 512, 528, 4, "float32"),
        ("key", 528, 656, 64, "bfloat16"),
    ]
    assert (record.bytes, record.width, record.element) == (656, 656, "uint8")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_plain_records_element_by_element(dtype):
    size = 4 if dtype == "float32" else 2
    record = layouts.plain(K2, dtype)
    assert [(f.name, f.offset, f.end, f.dtype) for f in record.fields] == [
        ("latent", 0, 512 * size, dtype),
        ("key", 512 * size, 576 * size, dtype),
    ]
    assert (record.bytes, record.width, record.element) == (576 * size, 576, dtype)


def test_records_of_other_widths():
    small = KVContract(contract(64), 16, None, LatentQuant(32, "flashmla"))
    assert [f.end for f in layouts.fp8_ds_mla(small).fields] == [64, 72, 104]
    assert [f.end for f in layouts.plain(small).fields] == [128, 160]
    no_key = KVContract(contract(64), 0, None, None)
    assert layouts.plain(no_key).bytes == 128 and layouts.plain(no_key).field("key").count == 0
    odd = KVContract(contract(6), 4, None, LatentQuant(2, "flashmla"))
    with pytest.raises(
        ValueError, match="an fp8 record needs a latent width divisible by 4, not 6"
    ):
        layouts.fp8_ds_mla(odd)
    with pytest.raises(ValueError, match="an fp8 cache needs a scale rule"):
        layouts.fp8_ds_mla(K2)
    with pytest.raises(
        ValueError, match="a plain record is bfloat16, float16 or float32, not uint8"
    ):
        layouts.plain(K2, "uint8")


def test_fields_are_found_by_name():
    record = layouts.fp8_ds_mla(V32)
    assert record.field("scales").offset == 512 and record.has("key") and not record.has("latent")
    with pytest.raises(KeyError, match="record fp8_ds_mla has no field 'latent'"):
        record.field("latent")


CODES, KEY = Field("codes", 0, 512, "float8_e4m3fn"), Field("key", 512, 64, "bfloat16")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((CODES, Field("key", 511, 64, "bfloat16")), "key begins at byte 511, not 512"),
        ((CODES, Field("key", 513, 64, "bfloat16")), "key begins at byte 513, not 512"),
        ((KEY, CODES), "key begins at byte 512, not 0"),
        ((Field("codes", 4, 512, "uint8"),), "codes begins at byte 4, not 0"),
        ((CODES, CODES), "codes begins at byte 0, not 512"),
        ((Field("codes", 0, -1, "uint8"),), "codes begins at byte 0"),
        ((), "0 bytes"),
        ((Field("codes", 0, 0, "uint8"),), "0 bytes"),
    ],
)
def test_gaps_and_overlaps_are_refused(fields, words):
    with pytest.raises(ValueError, match=f"record r.*{words}"):
        Record("r", "uint8", fields)


def test_a_record_is_whole_elements():
    with pytest.raises(ValueError, match="record r: 3 bytes are no whole bfloat16"):
        Record("r", "bfloat16", (Field("codes", 0, 3, "uint8"),))
    for make in (lambda: Field("a", 0, 4, "int4"), lambda: Record("r", "int4", (CODES,))):
        with pytest.raises(ValueError, match="'int4' is unknown; allowed: bfloat16, float16"):
            make()


def test_sizes_of_tokens_layers_and_models():
    plain, codes, flat = layouts.plain(K2), layouts.fp8_ds_mla(V32), layouts.fp8_per_tensor(V32)
    assert [layouts.bytes_per_token(r) for r in (plain, codes, flat)] == [1152, 656, 576]
    pages = [layouts.bytes_per_layer(r, 64, 64) for r in (plain, codes, flat)]
    assert pages == [73_728, 41_984, 36_864]
    # Whole blocks: none, one token, one too many.
    assert [layouts.bytes_per_layer(plain, n, 64) for n in (0, 1, 64, 65)] == [
        0,
        73_728,
        73_728,
        147_456,
    ]
    assert layouts.bytes_per_layer(plain, 65) == 65 * 1152
    # Kimi K3 caches in 24 of its 93 layers: 27,648 bytes a token, not 107,136.
    k3 = models.get("kimi-k3")
    assert layouts.bytes_per_token(layouts.plain(K3), k3.mla_layers.value) == 27_648
    assert layouts.bytes_per_token(layouts.plain(K3), k3.layers.value) == 107_136
    assert layouts.bytes_per_model(layouts.plain(K3), 65, 24, 64) == 24 * 147_456
    for wrong, words in (((-1, 64), "tokens must be at least 0"), ((1, 0), "block_size must be")):
        with pytest.raises(ValueError, match=words):
            layouts.bytes_per_layer(plain, *wrong)


RECORDS = {
    "bf16": layouts.plain(K2),
    "fp32": layouts.plain(K3, "float32"),
    "fp8_ds_mla": layouts.fp8_ds_mla(V32),
    "fp8_per_tensor": layouts.fp8_per_tensor(V32),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_description_survives_every_transform(name):
    record = RECORDS[name]
    described = record.as_json()
    for other in (
        layouts.from_json(described),
        layouts.from_json(json.loads(json.dumps(described))),
        copy.deepcopy(record),
        pickle.loads(pickle.dumps(record)),
        dataclasses.replace(record),
    ):
        assert other == record and hash(other) == hash(record)
        assert other.as_json() == described and dataclasses.asdict(other) == dataclasses.asdict(
            record
        )
    assert set(described) == {field.name for field in dataclasses.fields(Record)}
    assert [set(f) for f in described["fields"]] == [{"name", "offset", "count", "dtype"}] * len(
        record.fields
    )


def test_a_description_that_lost_a_field_is_refused():
    described = layouts.fp8_ds_mla(V32).as_json()
    del described["fields"][1]
    with pytest.raises(ValueError, match="key begins at byte 528, not 512"):
        layouts.from_json(described)


def test_caches_have_the_size_of_their_description():
    for cache in (LatentCache.paged(K2, 3, 64), LatentCache.paged(K2, 3, 7, dtype=torch.float32)):
        assert cache.records.nbytes == cache.bytes == cache.record.bytes * cache.capacity
    assert LatentCache.fp8(V32, 3).records.nbytes == layouts.bytes_per_layer(
        layouts.fp8_ds_mla(V32), 3 * 64, 64
    )


@pytest.mark.parametrize("width", [0, 2, 16, 64])
def test_the_two_orders_undo_each_other(width):
    there, back = layouts.half_of_interleaved(width), layouts.interleaved_of_half(width)
    assert sorted(there) == sorted(back) == list(range(width))
    assert [there[i] for i in back] == [back[i] for i in there] == list(range(width))


def test_the_formula():
    # half[i] = interleaved[p(i)], p(i) = 2i for i < 32 and 2 (i - 32) + 1 above.
    formula = [2 * i if i < 32 else 2 * (i - 32) + 1 for i in range(64)]
    assert list(layouts.half_of_interleaved(64)) == formula
    key = torch.arange(64.0)
    assert interleaved_to_half(key).tolist() == formula
    assert half_to_interleaved(key).tolist() == [i // 2 + 32 * (i % 2) for i in range(64)]
    assert layouts.half_of_interleaved(64) != layouts.interleaved_of_half(64)


@pytest.mark.parametrize("width", [1, 7, 63])
def test_an_odd_width_has_no_pairs(width):
    for order in (layouts.half_of_interleaved, layouts.interleaved_of_half):
        with pytest.raises(ValueError, match=f"even.*{width}"):
            order(width)
    for convert in (interleaved_to_half, half_to_interleaved):
        with pytest.raises(ValueError, match="even"):
            convert(torch.zeros(3, width))
        with pytest.raises(ValueError, match="dimension"):
            convert(torch.tensor(1.0))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.uint8], ids=name_of)
def test_conversion_moves_bits_and_nothing_else(dtype):
    # Every 16-bit pattern, NaN payloads and -0 with them.
    size = dtype.itemsize
    key = torch.arange(2**16, dtype=torch.int32).repeat(size).short().view(dtype).view(-1, 64)
    for there, back in (
        (interleaved_to_half, half_to_interleaved),
        (half_to_interleaved, interleaved_to_half),
    ):
        moved = there(key)
        assert moved.dtype == dtype and moved.is_contiguous()
        assert not torch.equal(moved.view(torch.uint8), key.view(torch.uint8))
        assert torch.equal(back(moved).view(torch.uint8), key.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_a_key_rotated_in_one_layout_is_the_others(dtype):
    assert K2.rope.layout == "half"
    interleaved = dataclasses.replace(K2, rope=dataclasses.replace(K2.rope, layout="interleaved"))
    down, gain = random_rows(50, 576, dtype=dtype), random_gain(512, dtype)
    positions = torch.arange(50) * 2621
    half = latentkv.compress_kv(down, gain, K2, positions)[1]
    other = latentkv.compress_kv(down, gain, interleaved, positions)[1]
    assert_same(interleaved_to_half(other), half)
    assert_same(half_to_interleaved(half), other)
    assert not torch.equal(half, other)


def test_layouts_need_no_torch():
    check_python(
        "import sys, latentkv.layouts as l, latentkv.models as m\n"
        "kv = m.get('deepseek-v3.2-exp').kv\n"
        "assert l.fp8_ds_mla(kv).bytes == 656 and l.plain(kv).bytes == 1152\n"
        "l.from_json(l.plain(kv).as_json()), l.half_of_interleaved(64)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'imported'"
    )
