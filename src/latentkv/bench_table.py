"""What ``latentkv bench`` prints: sizes down, ratios across."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rich.console import RenderableType
from rich.table import Table

from . import bench, bench_path
from .bench_clock import Measurement
from .layouts import Record
from .models.spec import Model
from .screen import Screen

_OTHERS = {
    "eager": "eager",
    "torch.nn.functional.rms_norm": "F.rms_norm",
    "torch.compile": "torch.compile",
}


def print_bench(model: Model, component: str, measurements: Sequence[Measurement]) -> None:
    """One table a kind of work, and the lines for the default heap."""
    screen = Screen()
    what = {
        "norm": f"rows of {model.kv.norm.width} bf16 features in rows of {model.down_width}",
        "path": f"rows of {model.down_width} bf16 features into a cache in blocks",
    }[component]
    parts: list[RenderableType] = [screen.text(f"{model.display}: {what}; medians, warm heap")]
    for work in dict.fromkeys(one.work for one in measurements):
        chosen = [one for one in measurements if one.work == work and one.heap == "warm"]
        parts += ["", screen.text(work, "bold"), _table(screen, chosen, _moved(model, work))]
    for work in dict.fromkeys(one.work for one in measurements if one.heap == "default"):
        plain = {
            one.function: one for one in measurements if one.heap == "default" and one.work == work
        }
        ours = plain["latentkv"]
        line = f"default heap, {ours.rows:,} rows, {work}: {_time(ours.seconds)}"
        if copy := plain.get("copy"):
            line += f", {ours.seconds / copy.seconds:.2f} of the copy's {_time(copy.seconds)}"
        parts += ["", screen.text(line)]
    screen.write([(part, screen.console.width) for part in parts])


def _moved(model: Model, work: str) -> Callable[[int], int] | None:
    """Bytes that this many rows have to move; None where nobody counts them."""
    if work == "forward":
        return lambda rows: bench.bytes_moved(rows, model.kv.norm.width, 2)
    for record in bench_path.records_of(model):
        if work == f"write, {record.name}":
            return partial(_of_record, record, 2 * model.down_width)
    return None


def _of_record(record: Record, row_bytes: int, rows: int) -> int:
    return bench_path.bytes_moved(record, rows, row_bytes)


def _table(
    screen: Screen, chosen: Sequence[Measurement], moved: Callable[[int], int] | None
) -> Table:
    """Sizes down; what others take, of what a copy takes, and bytes a second across."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    measured = {one.function for one in chosen}
    others = {name: label for name, label in _OTHERS.items() if name in measured}
    headings = ["rows", "latentkv", *(f"{label} takes" for label in others.values())]
    headings += ["of the copy"] if "copy" in measured else []
    headings += ["GB/s"] if moved else []
    for heading in headings:
        table.add_column(screen.text(heading, "bold"), justify="right", no_wrap=True)
    for rows in dict.fromkeys(one.rows for one in chosen):
        seconds = {one.function: one.seconds for one in chosen if one.rows == rows}
        ours = seconds["latentkv"]
        cells = [f"{rows:,}", _time(ours), *(f"{seconds[one] / ours:.2f} x" for one in others)]
        cells += [f"{ours / seconds['copy']:.2f}"] if "copy" in measured else []
        cells += [f"{moved(rows) / ours / 1e9:.1f}"] if moved else []
        table.add_row(*cells)
    return table


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms"
