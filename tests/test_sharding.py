"""DTensor, parallelize_module and FSDP2 over two ranks: bits equal to one process's.

The ranks are started once, as sharding_worker.py, and run every check of sharding_*.py; each is a
test here.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import SOURCE, check_python

WORKER = Path(__file__).with_name("sharding_worker.py")
RANKS = 2
SECONDS = 60  # for all checks together; what hangs fails by then

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
if not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo backend", allow_module_level=True)

CHECKS = [
    node.name
    for path in sorted(WORKER.parent.glob("sharding_*.py"))
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each rank printed."""
    folder = tmp_path_factory.mktemp("ranks")
    env = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([str(SOURCE.parent), str(WORKER.parent)]),
    }
    logs = [folder / f"{rank}.log" for rank in range(RANKS)]
    ranks = []
    for rank, log in enumerate(logs):
        command = [sys.executable, str(WORKER), str(rank), str(RANKS), str(folder / "store")]
        with log.open("wb") as output:
            ranks.append(
                subprocess.Popen(command, env=env, stdout=output, stderr=output, cwd=folder)
            )
    # Until all are done, one has failed (the others then wait in vain), or the time is over.
    end = time.monotonic() + SECONDS
    try:
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
            if any(rank.returncode for rank in ranks):
                break
            time.sleep(0.05)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [log.read_text(encoding="utf-8", errors="replace") for log in logs]


@pytest.mark.parametrize("check", CHECKS)
def test_on_two_ranks(printed, check):
    for rank, text in enumerate(printed):
        assert f"started {check}\n" in text, f"not reached by rank {rank}: {text[-4000:]}"
        assert f"passed {check}\n" in text, f"rank {rank}: {text[-4000:]}"


ONE_RANK = """
import torch
{first}
{second}
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
gain = distribute_tensor(torch.full((64,), 0.7), mesh, [Replicate()])
x = distribute_tensor(torch.randn(4, 64).bfloat16(), mesh, [Shard(0)])
for order in ("cast_then_gain", "gain_then_cast") * 2:
    contract = latentkv.NormContract(64, 1e-6, order)
    leaf = x.detach().requires_grad_()
    results = [
        torch.ops.latentkv.rms_norm(x, gain, 1e-6, order),
        latentkv.rms_norm(leaf, gain, contract),
        torch.ops.latentkv.add_rms_norm(x, x, gain, 1e-6, order)[0],
        latentkv.add_rms_norm(leaf, x, gain, contract)[0],
    ]
    sum(results[1::2]).sum().backward()
    assert leaf.grad.placements == (Shard(0),)
    expected = torch.float32 if order == "cast_then_gain" else torch.bfloat16
    for y in results:
        assert y.placements == (Shard(0),), y.placements
        assert y.dtype == y._spec.tensor_meta.dtype == expected, (order, y._spec)
torch.distributed.destroy_process_group()
"""
OURS, DTENSOR = "import latentkv.ops", "import torch.distributed.tensor"


@pytest.mark.parametrize("imports", [(OURS, DTENSOR), (DTENSOR, OURS)], ids=["first", "last"])
def test_latentkv_imported(imports):
    # With no operator used before: what an operator's very first call does must be right as well.
    check_python(
        ONE_RANK.format(first=imports[0], second=imports[1]),
        GLOO_SOCKET_IFNAME="lo",
        OMP_NUM_THREADS="1",
    )


def test_importing_does_not_import_dtensor():
    # DTensor takes longer to import than everything of latentkv; most never need it.
    check_python(
        "import sys, torch\n"
        "if 'torch.distributed.tensor' in sys.modules: raise SystemExit  # by torch itself\n"
        "import latentkv, latentkv.nn\n"
        "contract = latentkv.NormContract(8, 1e-6, 'cast_then_gain')\n"
        "x = torch.ones(2, 8, requires_grad=True)\n"
        "latentkv.rms_norm(x, torch.ones(8), contract).sum().backward()\n"
        "assert 'torch.distributed.tensor' not in sys.modules\n"
    )
