"""The key-value compression on a terminal, its cache records drawn byte for byte."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding

from .compare import cite
from .compression import (
    Compression,
    Features,
    Record,
    Rotation,
    Setting,
    Softmax,
    Step,
    Weight,
)
from .parameters import Parameters
from .screen import Screen

_INDENT = 2


def compression_section(screen: Screen, shown: Compression, width: int) -> list[RenderableType]:
    """The section, for a page of this width."""
    beside = 3 * _INDENT + max(len(weight.step) for weight in shown.weights)
    narrow = width < beside + max(len(weight.tensor) for weight in shown.weights)

    def heading(topic: str) -> RenderableType:
        return screen.text(f"Key–value compression · {topic}", "bold")

    return [
        heading("steps"),
        screen.fields({step.name: _step(step) for step in shown.steps}),
        "",
        heading("parameters"),
        screen.fields(
            {weight.step: _weight(weight) for weight in shown.weights}
            | {"together": _parameters(shown.together)},
            stacked=narrow,  # the checkpoint's names are there to be copied
        ),
        "",
        heading("rotation and softmax scale"),
        screen.fields(
            (rotation_fields(shown.rotation) if shown.rotation else {"rotation": "none"})
            | {"softmax scale": softmax_text(shown.softmax)}
        ),
        "",
        heading("cache"),
        screen.fields({"positions": f"up to {setting_text(shown.max_positions)}"}),
        "",
        *(part for record in shown.records for part in record_section(screen, record, width)),
    ]


def _step(step: Step) -> str:
    change = f"{_parts(step.input)} {_shape(step.input)} → {_shape(step.output)}"
    if step.output.parts != step.input.parts:
        change += f" → {_parts(step.output)}"
    told = f"{step.does.rstrip('.')}; {step.note}." if step.note else step.does
    return f"{step.expression}\n{change}\n{cite(told, step.file, step.lines)}"


def _shape(features: Features) -> str:
    return f"[{', '.join(map(str, features.shape))}]"


def _parts(features: Features) -> str:
    """latent, or 512 latent + 64 key: widths where the shape doesn't tell them."""
    if len(features.parts) == 1:
        return features.parts[0].name
    text = " + ".join(f"{part.width} {part.name}" for part in features.parts)
    return text if features.heads == 1 else f"{features.heads} heads × ({text})"


def _weight(weight: Weight) -> str:
    return f"{weight.tensor}\n{_parameters(weight.parameters)}"


def _parameters(numbers: Parameters) -> str:
    products = numbers.calculation
    lines = {"per instance": products.per_instance, numbers.counts.instances: products.total}
    if numbers.whole_model_instances != numbers.instances:
        lines["whole model"] = products.whole_model_total
    return "\n".join(f"{name}: {product}" for name, product in lines.items())


def rotation_fields(rotation: Rotation) -> dict[str, str]:
    """What the configuration sets of a rotation, and what follows from it, by name."""
    return {setting.name: setting_text(setting) for setting in rotation.settings} | {
        "frequency": f"of pair i: {rotation.frequency}; divided: {rotation.stretched}",
        "ramp": rotation.ramp,
        "interpolated": f"{rotation.interpolated}: {rotation.meaning.interpolated}",
        "rounding": f"{rotation.rounding}: {rotation.meaning.rounding}",
        "layout": f"{rotation.layout}: {rotation.meaning.layout}",
    }


def softmax_text(softmax: Softmax) -> str:
    """The scale, its formula and its place."""
    return f"{softmax.scale} = {softmax.formula} ({softmax.file} {softmax.lines})"


def setting_text(setting: Setting) -> str:
    """The value, its place and its note."""
    note = f": {setting.note}" if setting.note else ""
    value = f"{setting.value:,.0f}" if setting.value % 1 == 0 else f"{setting.value:g}"
    return f"{value} ({setting.file} {setting.lines}){note}"


def record_section(screen: Screen, record: Record, width: int) -> list[RenderableType]:
    """One token's record, byte for byte, and what full caches of it take."""
    products = record.calculation
    return [
        screen.text(f"  {record.name}", "bold")
        + screen.text(f": {record.bytes:,} bytes a token and layer"),
        Padding(screen.text(byte_diagram(record, width - _INDENT)), (0, 0, 0, _INDENT)),
        screen.fields(
            {
                "one token": f"{products.per_token} bytes in all {record.layers} MLA layers",
                "full layer": f"{products.per_layer} bytes",
                "full model": f"{products.per_model} bytes "
                f"({record.bytes_per_model / 2**30:,.2f} GiB)",
            }
        ),
        "",
    ]


def byte_diagram(record: Record, width: int) -> str:
    """The record's fields as boxes with their byte offsets: in a row where the width allows."""
    cells = [
        [field.name, f"{field.count} {field.dtype}", f"{field.bytes:,} bytes"]
        for field in record.fields
    ]
    inner = [max(map(len, cell)) + 2 for cell in cells]  # a blank on either side
    lead, tail = len("byte "), len(str(record.bytes))
    spare = width - lead - tail - len(cells) - sum(inner)
    if spare < 0:
        return _column(record, cells)
    # What is left goes to the fields by their bytes: a row isn't to scale, but leans that way.
    wide = [
        cell + spare * field.bytes // record.bytes
        for cell, field in zip(inner, record.fields, strict=True)
    ]
    return _row(record, cells, wide)


def _row(record: Record, cells: list[list[str]], wide: list[int]) -> str:
    offsets = "".join(
        str(field.offset).ljust(cell + 1) for field, cell in zip(record.fields, wide, strict=True)
    )
    rules = ["─" * cell for cell in wide]
    lines = [
        "│" + "│".join(f" {text}".ljust(cell) for text, cell in zip(row, wide, strict=True)) + "│"
        for row in zip(*cells, strict=True)
    ]
    blank = " " * len("byte ")
    drawn = [f"┌{'┬'.join(rules)}┐", *lines, f"└{'┴'.join(rules)}┘"]
    return "\n".join([f"byte {offsets}{record.bytes}", *(blank + line for line in drawn)])


def _column(record: Record, cells: list[list[str]]) -> str:
    wide = max(len(text) for cell in cells for text in cell) + 2
    margin = len(str(record.bytes))
    lines = []
    for field, cell in zip(record.fields, cells, strict=True):
        left, right = "┌┐" if field.offset == 0 else "├┤"
        lines.append(f"{field.offset:>{margin}} {left}{'─' * wide}{right}")
        lines += [f"{'':>{margin}} │{f' {text}':<{wide}}│" for text in cell]
    return "\n".join([*lines, f"{record.bytes:>{margin}} └{'─' * wide}┘"])
