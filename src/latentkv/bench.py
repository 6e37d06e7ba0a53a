"""Time against what else is installed, as ratios within one run.

Each function is timed in a block of its own, in a child process whose heap is warm: fresh outputs
above 32 MiB otherwise cost page faults, which are the allocator's and not the kernel's
(``MALLOC_MMAP_MAX_=0`` keeps freed memory in the process). One line shows the default heap.

``python -m latentkv.bench MODEL`` is that child; ``latentkv bench`` starts it and prints.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROWS = (1, 16, 128, 1024, 4096, 32768)
WARM_HEAP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "20000000000"}

_SAMPLES = 11
_SAMPLE_SECONDS = 0.01
_BLOCK_SECONDS = 0.6  # at most, however slow the function


@dataclass(frozen=True)
class Measurement:
    """``seconds`` is the median of one call; ``work`` is "forward" or "forward and backward"."""

    work: str
    function: str
    rows: int
    seconds: float
    heap: str


def bytes_moved(rows: int, width: int, element_size: int) -> int:
    """What a norm, or a copy, has to move at least: each feature read once and written once."""
    return 2 * rows * width * element_size


def run(model: str, heap: str) -> Iterator[Measurement]:
    """Start the child and yield what it measures. Raises RuntimeError with its words if it fails.

    Arguments:
        heap: "warm": everything; "default": the largest size of latentkv and the copy alone.
    """
    env = {**os.environ, **(WARM_HEAP if heap == "warm" else {})}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "latentkv.bench", model, heap],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    ) as child:
        try:
            assert child.stdout is not None and child.stderr is not None
            for line in child.stdout:
                yield Measurement(**json.loads(line))
            said = child.stderr.read()
        finally:
            child.kill()
    if child.wait() != 0:
        raise RuntimeError(f"the benchmark's process failed:\n{said}")


def _measure(model: str, heap: str) -> Iterator[Measurement]:
    import torch

    from . import models
    from .conformance.known import deepseek_eager, kimi_eager
    from .ops import rms_norm

    chosen = models.get(model)
    contract = chosen.norms.kv_latent
    eager = kimi_eager if contract.order == "cast_then_gain" else deepseek_eager
    compiled = torch.compile(eager, dynamic=False)
    eps, width = contract.eps, contract.width
    generator = torch.Generator().manual_seed(0)
    gain = (0.25 + 1.75 * torch.rand(width, generator=generator)).bfloat16()
    functions: dict[str, Callable[..., Any]] = {
        "latentkv": lambda x, g: rms_norm(x, g, contract),
        "copy": lambda x, g: torch.clone(x, memory_format=torch.contiguous_format),
    }
    if heap == "warm":
        functions |= {
            "eager": lambda x, g: eager(x, g, eps),
            "torch.nn.functional.rms_norm": lambda x, g: torch.nn.functional.rms_norm(
                x, (width,), g, eps
            ),
            "torch.compile": lambda x, g: compiled(x, g, eps),
        }
    for rows in ROWS if heap == "warm" else ROWS[-1:]:
        torch._dynamo.reset()  # each size compiled for itself, as a user's first size is
        down = torch.randn(rows, chosen.down_width, generator=generator).bfloat16()
        x = down[:, :width]
        for name, function in functions.items():
            with torch.inference_mode():
                seconds = _median(partial(function, x, gain))
            yield Measurement("forward", name, rows, seconds, heap)
        if heap != "warm":
            continue
        leaf, g = x.detach().requires_grad_(), gain.clone().requires_grad_()
        dy = torch.randn(rows, width, generator=generator).bfloat16()
        for name, function in functions.items():
            if name == "copy":
                continue

            step = partial(_step, function, leaf, g, dy)
            yield Measurement("forward and backward", name, rows, _median(step), heap)


def _step(
    function: Callable[..., Any], x: torch.Tensor, gain: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    import torch

    return torch.autograd.grad(function(x, gain), (x, gain), dy)


def _median(call: Callable[[], object]) -> float:
    """Seconds of one call: the median over samples of many, the first ones thrown away."""
    started = time.perf_counter()
    call()
    call()
    first = time.perf_counter()
    call()
    once = time.perf_counter() - first
    for _ in range(min(20, int(0.1 / once))):
        call()
    repeats = max(1, int(_SAMPLE_SECONDS / once))
    samples = []
    for _ in range(_SAMPLES):
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        samples.append((time.perf_counter() - begin) / repeats)
        if time.perf_counter() - started > _BLOCK_SECONDS and len(samples) >= 5:
            break
    return statistics.median(samples)


if __name__ == "__main__":
    for measurement in _measure(*sys.argv[1:]):
        print(json.dumps(asdict(measurement)), flush=True)
