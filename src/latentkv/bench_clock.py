"""One function's time: the median of many calls, the first ones thrown away."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

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


def median_seconds(call: Callable[[], object]) -> float:
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
