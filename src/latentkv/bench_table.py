"""What ``latentkv bench`` prints: sizes down, ratios across."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from .bench import Measurement, bytes_moved
from .models.spec import Model
from .terminal import Screen

_OTHERS = {
    "eager": "eager",
    "torch.nn.functional.rms_norm": "F.rms_norm",
    "torch.compile": "torch.compile",
}


def print_bench(model: Model, measurements: Sequence[Measurement]) -> None:
    """One table a kind of work, and the line for the default heap."""
    screen = Screen()
    width = model.norms.kv_latent.width
    parts: list[RenderableType] = [
        screen.text(
            f"{model.display}: rows of {width} bf16 features in rows of {model.down_width}; "
            "medians, warm heap"
        )
    ]
    for work in dict.fromkeys(one.work for one in measurements):
        parts += ["", screen.text(work, "bold"), _table(screen, measurements, work, width)]
    plain = {one.function: one for one in measurements if one.heap == "default"}
    if plain:
        ours, copy = plain["latentkv"], plain["copy"]
        parts += [
            "",
            screen.text(
                f"default heap, {ours.rows:,} rows forward: {_time(ours.seconds)}, "
                f"{ours.seconds / copy.seconds:.2f} of the copy's {_time(copy.seconds)}"
            ),
        ]
    screen.write([(part, screen.console.width) for part in parts])


def _table(screen: Screen, measurements: Sequence[Measurement], work: str, width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    forward = work == "forward"
    last = ["of the copy", "GB/s"] if forward else []
    for heading in ("rows", "latentkv", *(f"{name} takes" for name in _OTHERS.values()), *last):
        table.add_column(screen.text(heading, "bold"), justify="right", no_wrap=True)
    chosen = [one for one in measurements if one.work == work and one.heap == "warm"]
    for rows in dict.fromkeys(one.rows for one in chosen):
        seconds = {one.function: one.seconds for one in chosen if one.rows == rows}
        ours = seconds["latentkv"]
        cells = [f"{rows:,}", _time(ours)]
        cells += [f"{seconds[name] / ours:.2f} x" for name in _OTHERS if name in seconds]
        if forward:
            gigabytes = bytes_moved(rows, width, 2) / ours / 1e9
            cells += [f"{ours / seconds['copy']:.2f}", f"{gigabytes:.1f}"]
        table.add_row(*cells)
    return table


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms"
