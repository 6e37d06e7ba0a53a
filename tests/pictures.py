"""What the tests of pictures share: an ``<svg>`` read back, and what every picture must be."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations

SVG = "{http://www.w3.org/2000/svg}"
CLASSES = {"ink", "muted", "line", "accent", "mark", "fill-a", "fill-b", "fill-c"}
LARGEST = 40_000  # bytes


def texts(svg: str) -> list[str]:
    """What the picture says, in the order of drawing, without title and description."""
    return [node.text or "" for node in ET.fromstring(svg).iter(f"{SVG}text")]


def name_and_description(svg: str) -> tuple[str, str]:
    """What a screen reader reads, found by the ids that the element itself gives."""
    root = ET.fromstring(svg)
    named = {node.get("id"): node.text or "" for node in root.iter() if node.get("id")}
    return named[root.attrib["aria-labelledby"]], named[root.attrib["aria-describedby"]]


def size(svg: str) -> tuple[float, float]:
    root = ET.fromstring(svg)
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    assert (left, top) == (0, 0)
    return width, height


Box = tuple[float, float, float, float]


def text_boxes(svg: str) -> list[tuple[str, Box]]:
    """Each text with left, top, right, bottom: as a wide font (DejaVu) has it."""
    boxes = []
    for node in ET.fromstring(svg).iter(f"{SVG}text"):
        text, high = node.text or "", float(node.attrib["font-size"])
        each = 0.602 if "font-family" in node.attrib else 0.53
        if node.get("font-weight") == "bold":
            each = 0.645
        wide = float(node.get("textLength", each * high * len(text)))
        shift = {"start": 0, "middle": wide / 2, "end": wide}[node.get("text-anchor", "start")]
        left, base = float(node.attrib["x"]) - shift, float(node.attrib["y"])
        boxes.append((text, (left, base - 0.75 * high, left + wide, base + 0.2 * high)))
    return boxes


def check(svg: str) -> None:
    """Well-formed, named, described, without colours, fixed sizes, overlaps or clipped text."""
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    assert root.get("width") is None and root.get("height") is None
    name, description = name_and_description(svg)
    assert name and len(description) > len(name)
    assert len(svg.encode()) < LARGEST
    assert "style" not in svg and not re.search(r"#[0-9a-f]{3,6}|rgb|url\(|href", svg)
    for node in root.iter():
        if node.tag in (f"{SVG}svg", f"{SVG}title", f"{SVG}desc"):
            continue
        assert node.get("class") in CLASSES, node.attrib
        assert node.get("fill", "currentColor") == node.get("stroke", "currentColor")
    width, height = size(svg)
    for node in root.iter(f"{SVG}rect"):
        x, y, wide, high = (float(node.attrib[key]) for key in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and x + wide <= width and y + high <= height, node.attrib
    boxes = text_boxes(svg)
    for text, (left, top, right, bottom) in boxes:
        assert text and left >= 0 and top >= 0, text
        assert right <= width and bottom <= height, (text, right, bottom, width, height)
    for (one, a), (other, b) in combinations(boxes, 2):
        beside = a[2] <= b[0] + 0.5 or b[2] <= a[0] + 0.5
        above = a[3] <= b[1] + 0.5 or b[3] <= a[1] + 0.5
        assert beside or above, f"{one!r} and {other!r} overlap: {a}, {b}"
