"""The rotary tables by their own bits, and rotations by them as the models' own code has it."""

import hashlib
import math

import pytest
import torch
from helpers import DTYPES, assert_same, name_of, random_rows
from kv_rows import K2, V32, some_positions, table_of

import latentkv
from latentkv import KVContract, NormContract, definition

FP32 = torch.float32


TABLES = pytest.mark.parametrize(
    ("contract", "cos_digest", "sin_digest"),
    [
        pytest.param(K2.rope, "3b05a5603872", "c8da7598d957", id="kimi-k2"),
        pytest.param(V32.rope, "51c8a2ed3299", "be45c0593c65", id="deepseek-v3.2-exp"),
    ],
)


ONE = NormContract(1, 1e-6, "cast_then_gain")
K2_KEY_ONLY, V32_KEY_ONLY = (KVContract(ONE, 64, model.rope, None) for model in (K2, V32))


def beside(key):
    """Rows that end with this key, and a gain for the one feature in front of it."""
    ones = torch.ones(len(key), 1, dtype=key.dtype)
    return torch.cat([ones, key], dim=-1), ones[0]


def like_the_models(rows=4096):
    """Keys and positions over the whole of K2's table, each row on a scale of its own."""
    return random_rows(rows, 64, dtype=FP32), some_positions(rows, below=131072)


@TABLES
def test_the_tables_known_by_their_bits(contract, cos_digest, sin_digest):
    cos, sin = definition.rotary_table(contract).chunk(2, dim=-1)
    for part, digest in ((cos, cos_digest), (sin, sin_digest)):
        data = part.contiguous().numpy().astype("<f4").tobytes()
        assert hashlib.sha256(data).hexdigest()[:12] == digest


@TABLES
def test_any_libm_gives_the_tables(contract, cos_digest, sin_digest):
    # An fp64 value has 29 bits more than fp32; those of a middle are 1 and 28 zeros. The nearest
    # lies 6 ulps away (K2's cos; the others 25 to 119), and libms are wrong by less than one. The
    # hardest of all are then worked out with 40 digits.
    mpmath = pytest.importorskip("mpmath")
    table = definition.rotary_table(contract)
    angles = torch.arange(contract.max_positions).float().unsqueeze(-1)
    angles = angles * definition.rope.inverse_frequencies(contract)
    halves = zip(("cos", "sin"), table.chunk(2, dim=-1), strict=True)
    for name, part in halves:
        exact = getattr(torch, name)(angles.double())
        from_middle = ((exact.view(torch.int64) & (2**29 - 1)) - 2**28).abs()
        assert from_middle.min() > 4
        for at in from_middle.flatten().topk(100, largest=False).indices.tolist():
            with mpmath.workdps(40):
                value = getattr(mpmath, name)(mpmath.mpf(angles.flatten()[at].item()))
            mine = part[at // part.shape[1], at % part.shape[1]]
            below, above = (
                torch.nextafter(mine, torch.tensor(side * math.inf)).item() for side in (-1, 1)
            )
            assert abs(value - mine.item()) < min(abs(value - below), abs(value - above))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_the_same_bits_as_transformers_rotation(dtype):
    # Their functions, given this table as they make theirs: cat(freqs, freqs) in the key's dtype.
    module = pytest.importorskip(
        "transformers.models.deepseek_v3.modeling_deepseek_v3", reason="transformers is missing"
    )
    key, positions = like_the_models()
    key = key.to(dtype)
    table = table_of(K2)
    cos, sin = (part[positions].repeat(1, 2).to(dtype) for part in table.chunk(2, dim=-1))
    # [batch, heads, tokens, features], and [batch, tokens, features] for cos and sin
    rows, around = key[None, None], (cos[None], sin[None])
    right = definition.rotate(key, positions, K2.rope, table)
    _, interleaved = module.apply_rotary_pos_emb_interleave(rows, rows, *around)
    assert_same(right, interleaved[0, 0])
    halves = torch.cat([rows[..., 0::2], rows[..., 1::2]], dim=-1)
    _, half = module.apply_rotary_pos_emb(halves, halves, *around)
    assert_same(right, half[0, 0])
    assert_same(latentkv.compress_kv(*beside(key), K2_KEY_ONLY, positions)[1], right)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_the_same_bits_as_a_complex_product(dtype):
    # DeepSeek's own way, from this table: view_as_complex, one product, one rounding.
    key, positions = like_the_models()
    key = key.to(dtype)
    table = table_of(V32)
    cos, sin = (part[positions] for part in table.chunk(2, dim=-1))
    pairs = torch.view_as_complex(key.float().unflatten(-1, (32, 2)))
    product = torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2).to(dtype)
    right = definition.rotate(key, positions, V32.rope, table)
    assert_same(right, product)
    assert_same(latentkv.compress_kv(*beside(key), V32_KEY_ONLY, positions)[1], right)
