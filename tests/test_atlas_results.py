"""What `latentkv check --json` measured, on the atlas's page about implementations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from built_atlas import PATH, ROW, Element, files, given, read, refused

from latentkv.atlas import build


def check_page(*checks: Path) -> Element:
    return read(build(checks=checks)["check.html"])


def test_without_results_the_page_says_how_to_have_them():
    page = read(files()["check.html"])
    assert "latentkv check --json > norm.json" in page.raw and not page.all("table")


def test_results_stand_with_date_and_versions(tmp_path):
    good = ROW | {"implementation": "Other", "grade": "follows", "eps": 1e-6, "differs": 7.6e-6}
    file = given(tmp_path, [ROW, good, ROW | {"model": "kimi-k2"}])
    page = check_page(file)
    grades = page.one(".grades")
    assert [cell.text for cell in grades.one("thead").all("th")] == [
        "Implementation",
        "Kimi K2",
        "Kimi K3",
    ]
    rows = [[cell.text for cell in row.all("th") + row.all("td")] for row in grades.all("tr")][1:]
    assert rows == [
        ["Mine", "deviates 26%", "deviates 26%"],
        ["Other", "not measured", "follows 0.00076%"],
    ]
    assert "Measured on 2026-11-30 (UTC) with latentkv 0.1.0, torch 2.13.0+cpu." in page.text
    assert "guesses" in page.one(".reasons").text
    assert "against Kimi K2, Kimi K3: Mine" in page.one(".reasons").text
    detail = [cell.text for cell in page.all(".measured")[0].all("td")]
    assert {"guesses", "unknown", "26%", "NaN", "depend on neighbours"} <= set(detail)


def test_results_of_two_runs_in_one_file_are_refused(tmp_path):
    later = ROW | {"implementation": "Other", "date": "2026-12-01"}
    said = refused(tmp_path / "out", "--check", given(tmp_path, [ROW, later]))
    assert "several runs" in said


def test_results_of_the_path_come_after_the_norms(tmp_path):
    path = given(tmp_path, [ROW | PATH], "path.json")
    page = check_page(path, given(tmp_path, [ROW]))
    assert [one.text for one in page.all("h2")] == ["The latent norm", "The key–value path"]
    detail = [cell.text for cell in page.all(".measured")[1].all("td")]
    assert {"rotated, half, each_step", "50%", "quantised: act_quant, groups of 64"} <= set(detail)


def test_results_are_shown_as_text(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    page = check_page(given(tmp_path, [ROW | {"implementation": evil, "reason": evil}]))
    assert not page.all("img") and page.one(".grades").one("tbody").one("th").text == evil


def test_what_check_prints_is_taken(everything_checked, tmp_path):
    rows, _ = everything_checked
    text = build(checks=[given(tmp_path, rows)])["check.html"]
    assert len(text.encode()) < 200_000
    grades = read(text).one(".grades")
    for row in rows:
        assert row["implementation"] in grades.text and row["grade"] in grades.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "not a list"),
        ("[]", "not a list"),
        ("[1]", "not a list"),
        ([{"model": "kimi-k3"}], "no 'implementation'"),
        ([ROW | {"model": "gpt-2"}], "'gpt-2'"),
        ([ROW | {"grade": "fine"}], "'fine'"),
        ([ROW | {"differs": "26%"}], "'26%'"),
        ([ROW | {"differs": True}], "True"),
        ([ROW | {"ulp": None}], "None"),
        ([ROW, ROW | PATH], "of norms and of paths"),
        ([ROW | PATH | {"rules": "all"}], "'all'"),
        ([ROW | PATH | {"rules": [1]}], "[1]"),
        ([ROW | {"differs": float("nan")}], "NaN"),
        ([ROW | {"differs": -5}], "differs -5"),
        ([ROW | {"differs": 10**400}], "differs 1000"),
        ([ROW | {"eps": 10**400}], "eps 1000"),
        ([ROW | {"ulp": -1}], "ulp -1"),
        ([ROW | {"versions": {}}], "versions {}"),
        ([ROW | {"versions": {"torch": 2}}], "versions"),
        ([ROW | {"date": "2026-11-30"}, ROW | {"date": "2026-12-01"}], "several runs"),
        ([ROW | PATH | {"group": None}], "rules"),
        ([ROW | {"reason": "x" * (5 << 20)}], "more than"),
    ],
)
def test_another_file_in_place_of_results_is_refused(tmp_path, content, said):
    file = given(tmp_path, content)
    message = refused(tmp_path / "out", "--check", file)
    assert str(file) in message and said in message and "latentkv check --json" in message
    assert not (tmp_path / "out").exists()


def test_odd_text_in_results_is_shown_and_null_is_unknown(tmp_path):
    odd = {"reason": "\ud800 \x00 \u202e", "batch_invariant": None, "residual": None}
    row = ROW | PATH | odd | {"key_differs": None, "strided": None, "special": None}
    page = check_page(given(tmp_path, [row]))
    assert "\\ud800 \\x00 \\u202e" in page.text
    detail = [cell.text for cell in page.all(".measured")[0].all("td")]
    assert "None" not in detail and "depend on neighbours" not in detail
    with_bom = tmp_path / "bom.json"
    with_bom.write_bytes(b"\xef\xbb\xbf" + json.dumps([ROW]).encode())
    assert check_page(with_bom).one(".grades")


def test_two_results_of_one_component_are_refused(tmp_path):
    files = [given(tmp_path, [ROW], name) for name in ("a.json", "b.json")]
    said = refused(tmp_path / "out", "--check", files[0], "--check", files[1])
    assert "given twice for norm" in said


def test_results_that_are_absent_or_no_text_are_refused(tmp_path):
    assert "No such file" in refused(tmp_path / "out", "--check", tmp_path / "absent.json")
    assert "can't be read" in refused(tmp_path / "out", "--check", tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    assert "UTF-8" in refused(tmp_path / "out", "--check", tmp_path / "bytes.json")
