"""Time against what else is installed, as ratios within one run.

Each function is timed in a block of its own, in a child process whose heap is warm: fresh outputs
above 32 MiB otherwise cost page faults, which are the allocator's and not the kernel's
(``MALLOC_MMAP_MAX_=0`` keeps freed memory in the process). One line shows the default heap.

``python -m latentkv.bench MODEL COMPONENT HEAP`` is that child; ``latentkv bench`` starts it and
prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from . import models
from .bench_clock import Measurement, median_seconds
from .models.spec import Model

if TYPE_CHECKING:
    import torch

ROWS = (1, 16, 128, 1024, 4096, 32768)
WARM_HEAP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "20000000000"}


def bytes_moved(rows: int, width: int, element_size: int) -> int:
    """What a norm, or a copy, has to move at least: each feature read once and written once."""
    return 2 * rows * width * element_size


def others_load() -> str:
    """A warning where the machine has other work: threads then wait for each other in turns."""
    cores = os.cpu_count() or 1
    try:
        load = os.getloadavg()[0]
    except OSError:
        return ""
    if load < cores / 2:
        return ""
    return (
        f"The machine was busy before (load {load:.1f} on {cores} cores): times of small sizes may "
        "be off by a thousandfold, and no ratio is worth quoting."
    )


def run(model: str, component: str, heap: str) -> Iterator[Measurement]:
    """Start the child and yield what it measures. Raises RuntimeError with its words if it fails.

    Arguments:
        component: "norm" or "path".
        heap: "warm": everything; "default": the largest size of latentkv and the copy alone.
    """
    env = {**os.environ, **(WARM_HEAP if heap == "warm" else {})}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "latentkv.bench", model, component, heap],
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


def measure_norm(model: Model, heap: str) -> Iterator[Measurement]:
    """Each function at each size. ``heap`` as in `run`."""
    import torch

    from .conformance.known import deepseek_eager, kimi_eager
    from .ops import rms_norm

    contract = model.norms.kv_latent
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
        down = torch.randn(rows, model.down_width, generator=generator).bfloat16()
        x = down[:, :width]
        for name, function in functions.items():
            with torch.inference_mode():
                seconds = median_seconds(partial(function, x, gain))
            yield Measurement("forward", name, rows, seconds, heap)
        if heap != "warm":
            continue
        leaf, g = x.detach().requires_grad_(), gain.clone().requires_grad_()
        dy = torch.randn(rows, width, generator=generator).bfloat16()
        for name, function in functions.items():
            if name == "copy":
                continue

            step = partial(_step, function, leaf, g, dy)
            yield Measurement("forward and backward", name, rows, median_seconds(step), heap)


def _step(
    function: Callable[..., Any], x: torch.Tensor, gain: torch.Tensor, dy: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    import torch

    return torch.autograd.grad(function(x, gain), (x, gain), dy)


def _main(name: str, component: str, heap: str) -> None:
    from .bench_path import measure_path

    measure = {"norm": measure_norm, "path": measure_path}[component]
    for measurement in measure(models.get(name), heap):
        print(json.dumps(asdict(measurement)), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
