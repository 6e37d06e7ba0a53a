"""The raw operator never writes out of bounds, whatever it is given."""

import pytest
import torch
from helpers import assert_same, check_python, random_gain, random_rows
from kv_caches import DOWN, GAIN, POSITIONS, SLOTS, bytes_of, fp8, plain, replaced

LAST = 2**40 + 17


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
