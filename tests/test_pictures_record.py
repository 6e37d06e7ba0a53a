"""Cache records as byte diagrams: every byte of a record is drawn, to scale."""

import xml.etree.ElementTree as ET

import pytest
from kv_rows import K2, K3, V32
from pictures import SVG, check, name_and_description, texts

from latentkv import KVContract, NormContract, layouts
from latentkv.atlas.pictures import diagram
from latentkv.layouts import Field, Record

DTYPES = tuple(layouts.SIZES)


def packed(name, *fields):
    end, placed = 0, []
    for label, count, dtype in fields:
        placed.append(Field(label, end, count, dtype))
        end = placed[-1].end
    return Record(name, "uint8", tuple(placed))


RECORDS = {
    "plain bf16": layouts.plain(K2),
    "plain fp32": layouts.plain(K3, "float32"),
    "fp8_ds_mla": layouts.fp8_ds_mla(V32),
    "fp8_per_tensor": layouts.fp8_per_tensor(V32),
    "one byte": packed("tiny", ("flag", 1, "uint8")),
    "one field": packed("one", ("latent", 100_000, "float32")),
    "an empty field": layouts.plain(
        KVContract(NormContract(64, 1e-6, K2.norm.order), 0, None, None)
    ),
    "many fields": packed("many", *((f"part {i}", 3 * i + 1, DTYPES[i % 5]) for i in range(26))),
    "markup in names": packed("<a> & 'b'", ("<key> & more", 4, "float32")),
}


def pieces(svg):
    """Of each fill, in the order of drawing: x, y and width of the rows' rectangles."""
    found = []
    for node in ET.fromstring(svg).iter(f"{SVG}rect"):
        if float(node.attrib["x"]) >= 40:  # the others belong to the legend
            place = (float(node.attrib[key]) for key in ("x", "y", "width"))
            found.append((node.attrib["class"], *place))
    return found


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_a_picture(name):
    svg = diagram(RECORDS[name])
    check(svg)
    assert svg == diagram(RECORDS[name])


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_is_named_with_its_bytes(name):
    record = RECORDS[name]
    said = texts(diagram(record))
    title, told = name_and_description(diagram(record))
    assert record.name in title and f"{record.bytes:,} bytes a token and layer" in told
    for i, field in enumerate(record.fields):
        line = f"{field.name}: {field.count:,} × {field.dtype}"
        assert line in said
        place = said[said.index(line) + 1]
        assert said[said.index(line) - 1] == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i]
        if field.count:
            assert place.startswith(f"bytes {field.offset:,} to {field.end - 1:,} ")
        assert f"{field.bytes:,} byte" in place and place in told


@pytest.mark.parametrize("name", RECORDS)
def test_the_fields_are_to_scale_and_leave_no_gap(name):
    record = RECORDS[name]
    drawn = pieces(diagram(record))
    rows = sorted({y for _, _, y, _ in drawn})
    assert len(rows) <= 10
    (full,) = {max(x + width for _, x, y, width in drawn if y == row) for row in rows[:1]}
    for row in rows:
        right = min(x for _, x, *_ in drawn)
        for _, x, y, width in drawn:
            if y == row:
                # coordinates have two decimals: 0.005 each for x, the one before and its width
                assert x == pytest.approx(right, abs=0.03)
                right = x + width
        assert row == rows[-1] or right == pytest.approx(full, abs=0.03)
    unit = sum(width for *_, width in drawn) / record.bytes
    for i, fill in enumerate(("fill-a", "fill-b", "fill-c")):
        bytes_of = sum(field.bytes for field in record.fields[i::3])
        assert sum(width for kind, *_, width in drawn if kind == fill) == pytest.approx(
            bytes_of * unit, abs=0.5
        )


def test_the_models_records_row_by_row():
    said = texts(diagram(layouts.fp8_ds_mla(V32)))
    assert said[0] == "656 bytes a token and layer, 128 in a row"
    assert said[1:16] == [
        *("0", "A", "128", "A", "256", "A", "384", "A"),
        *("512", "B", "C", "640", "C", "A", "codes: 512 × float8_e4m3fn"),
    ]
    said = texts(diagram(layouts.plain(K2)))
    assert said[0] == "1,152 bytes a token and layer, 128 in a row"
    assert said[15:19] == ["896", "A", "1,024", "B"]


def test_a_field_without_bytes_has_no_piece():
    record = RECORDS["an empty field"]
    assert {kind for kind, *_ in pieces(diagram(record))} == {"fill-a"}
    assert "0 bytes" in texts(diagram(record))


def test_more_fields_than_letters_are_refused():
    record = packed("wide", *((f"part {i}", 1, "uint8") for i in range(27)))
    with pytest.raises(ValueError, match="record wide has 27 fields; a diagram has letters for 26"):
        diagram(record)
