"""What an atlas is given: a folder to write, and the reader's copies of files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import seeds
from built_atlas import ROW, Element, atlas, files, given, read, refused

from latentkv import models
from latentkv.atlas import AtlasError, build, write
from latentkv.atlas.write import MARKER
from latentkv.describe import page
from latentkv.models import passages
from latentkv.models.spec import File

K3 = "models/kimi-k3/norm.html"


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# The folder


def test_the_command_writes_every_file_and_says_where(tmp_path):
    out = tmp_path / "new" / "pages"
    result = atlas(out)
    assert result.exit_code == 0, result.output
    assert f"{out}/index.html" in result.stdout and str(len(files())) in result.stdout
    assert below(out) == {*files(), MARKER}
    for name, text in files().items():
        assert (out / name).read_bytes() == text.encode()


def test_an_earlier_atlas_is_replaced_and_what_is_no_longer_in_it_goes(tmp_path):
    write({"old/page.html": "old", "index.html": "old"}, tmp_path)
    (tmp_path / "mine.txt").write_text("kept")
    write({"index.html": "new"}, tmp_path)
    assert below(tmp_path) == {"index.html", "mine.txt", MARKER}
    assert (tmp_path / "index.html").read_text() == "new"
    assert not (tmp_path / "old").exists()


def test_a_folder_with_anything_else_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    said = refused(tmp_path)
    assert "thesis.txt" in said and "empty" in said
    assert below(tmp_path) == {"thesis.txt"}


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    assert "not a folder" in refused(tmp_path / "out")
    assert "can't be written" in refused(tmp_path / "out" / "pages")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    try:
        assert "can't be written" in refused(tmp_path / "pages")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("name", ["../mine.txt", "{}/mine.txt", "way/mine.txt"])
def test_a_changed_marker_removes_nothing_elsewhere(tmp_path, name):
    out, mine = tmp_path / "out", tmp_path / "mine.txt"
    write({"index.html": ""}, out)
    mine.write_text("mine")
    (out / "way").symlink_to(tmp_path)
    (out / MARKER).write_text(f"index.html\n{name.format(tmp_path)}\n")
    write({"index.html": "new"}, out)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("link", ["index.html", "models", "models/kimi-k2", MARKER])
def test_a_link_in_an_atlas_is_refused_and_what_it_leads_to_left_alone(tmp_path, link):
    out, mine = tmp_path / "out", tmp_path / "mine"
    write({"index.html": "", "models/kimi-k2/index.html": ""}, out)
    path = out / link
    if path.is_dir():
        path.rename(mine)
    else:
        mine.write_text(path.read_text() if link == MARKER else "mine")
        path.unlink()
    path.symlink_to(mine)
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    with pytest.raises(AtlasError, match="is a link"):
        write({"index.html": "new", "models/kimi-k2/index.html": "new"}, out)
    assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == before


def test_a_page_that_can_not_be_encoded_leaves_the_earlier_atlas(tmp_path):
    write({"index.html": "old"}, tmp_path / "out")
    with pytest.raises(UnicodeEncodeError):
        write({"a.html": "new", "index.html": "\ud800"}, tmp_path / "out")
    assert below(tmp_path / "out") == {MARKER, "index.html"}
    assert (tmp_path / "out" / "index.html").read_text() == "old"


def test_without_its_packages_the_command_says_what_to_install(tmp_path, monkeypatch):
    for package in ("jinja2", "latex2mathml"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, package, None)
            said = refused(tmp_path / "out")
        assert package in said and "pip install jinja2 latex2mathml" in said
    assert not (tmp_path / "out").exists()


# The reader's own copies

FILE = File("moonshotai/Kimi-K3", "modeling_kimi_linear.py", "f831ab668142")
LINES = [f"line {number} <of> a file" for number in range(1, 450)]


@pytest.fixture
def known(monkeypatch):
    """The norm's class as if its lines were those of `LINES`."""
    digests = {FILE.at((226, 236)): passages.digest(LINES[225:236])}
    monkeypatch.setattr(passages, "DIGESTS", digests)


def put(folder: Path, path: str, lines: list[str], end: str = "\n") -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes("".join(line + end for line in lines).encode())


def excerpts(folder: Path) -> list[Element]:
    page = read(build(sources=folder)[K3])
    return [one for one in page.all("pre") if "from your copy" in _caption(page, one)]


def _caption(page: Element, pre: Element) -> str:
    (figure,) = [one for one in page.all("figure") if any(pre is child for child in one.children)]
    return figure.one("figcaption").text


@pytest.mark.parametrize(
    "path", [f"{FILE.repository}/{FILE.path}", FILE.path], ids=["repository", "path"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "  \n"], ids=["lf", "crlf", "blanks"])
def test_a_copy_with_the_pinned_lines_is_shown(tmp_path, known, path, end):
    put(tmp_path, path, LINES, end)
    shown = excerpts(tmp_path)
    assert len(shown) == 2  # as code, and with its source
    for one in shown:
        assert one.raw == "\n".join(LINES[225:236])


def test_lines_within_a_known_passage_are_shown(tmp_path, known):
    put(tmp_path, FILE.path, LINES)
    from latentkv.atlas.copies import Copies
    from latentkv.models.spec import Lines

    cited = next(file for file in page(models.get("kimi-k3")).files if file.path == FILE.path)
    copies = Copies(tmp_path)
    assert copies.excerpt(cited, Lines(233, 236)).text == "\n".join(LINES[232:236])
    beyond = copies.excerpt(cited, Lines(233, 237))
    assert beyond.text == "" and "no digest" in beyond.why


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:225] + [lines[225].upper(), *lines[226:]],
        lambda lines: ["inserted", *lines],
        lambda lines: lines[:230],
        lambda lines: [],
    ],
    ids=["another letter", "a line more", "cut short", "empty"],
)
def test_a_copy_that_differs_is_not_shown_and_the_page_says_so(tmp_path, known, change):
    put(tmp_path, FILE.path, change(list(LINES)))
    text = build(sources=tmp_path)[K3]
    shown = read(text)
    assert not excerpts(tmp_path)
    told = [one.text for one in shown.all(".unshown")]
    assert any("lines 226–236 are not those of revision f831ab668142" in one for one in told)
    assert "of&gt; a file" not in text


def test_a_passage_of_unknown_digest_is_not_shown(tmp_path, known):
    put(tmp_path, FILE.path, LINES)
    told = [one.text for one in read(build(sources=tmp_path)[K3]).all(".unshown")]
    assert any("340–403" in one and "no digest of these lines is known" in one for one in told)


def test_an_absent_copy_is_said_to_be_absent(tmp_path):
    told = [one.text for one in read(build(sources=tmp_path)[K3]).all(".unshown")]
    assert any("no copy of modeling_kimi_linear.py was found" in one for one in told)


def test_a_copy_that_is_no_text_is_not_shown(tmp_path, known):
    (tmp_path / FILE.path).write_bytes(b"\xff" * 100)
    told = [one.text for one in read(build(sources=tmp_path)[K3]).all(".unshown")]
    assert any("is not UTF-8 text" in one for one in told)


def test_a_second_place_is_tried_where_the_first_differs(tmp_path, known):
    put(tmp_path, f"{FILE.repository}/{FILE.path}", LINES[1:])
    put(tmp_path, FILE.path, LINES)
    assert len(excerpts(tmp_path)) == 2


def test_no_path_of_the_readers_machine_is_in_the_pages(tmp_path, known):
    put(tmp_path, FILE.path, LINES)
    built = build(sources=tmp_path, checks=[given(tmp_path, [ROW])])
    assert not [name for name, text in built.items() if str(tmp_path) in text]


def test_a_folder_of_copies_that_is_not_there_is_refused(tmp_path):
    said = refused(tmp_path / "out", "--sources", tmp_path / "absent")
    assert "is not there" in said and "FOLDER/REPOSITORY/PATH" in said
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(tmp_path / "out", "--sources", tmp_path / "file")
    with pytest.raises(AtlasError):
        build(sources=tmp_path / "absent")


@pytest.mark.skipif(not seeds.SHARED.exists(), reason=seeds.MISSING)
def test_the_seeds_excerpts_have_the_digests_that_ship(tmp_path):
    found = 0
    for seed in seeds.load().values():
        source = seed.sources[0]
        size = max(int(lines.split("–")[1]) for lines in seed.excerpts)
        lines = [""] * size
        for label, text in seed.excerpts.items():
            first, last = map(int, label.split("–"))
            lines[first - 1 : last] = text
            found += 1
        put(tmp_path, f"{source.repository}/{source.file}", lines)
    assert found == len(passages.DIGESTS)
    built = build(sources=tmp_path)
    for seed in seeds.load().values():
        name = next(one for one in models.names() if models.get(one).display == seed.model)
        page = read(built[f"models/{name}/norm.html"])
        code = [one.raw for one in page.all("pre")]
        for text in seed.excerpts.values():
            assert code.count("\n".join(text)) == 2
        assert not page.all(".unshown")
