"""The reader's own copies of the models' files: shown where they are what the page cites.

A passage is shown only where its digest is known and the copy's lines have it; otherwise the page
says why not, and nothing of the copy is shown.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..models.passages import covering, digest
from ..models.spec import Lines
from ..pages import CitedFile
from .errors import AtlasError

_LARGEST = 16 * 2**20  # bytes; a model's file has some thousand lines


@dataclass(frozen=True)
class Excerpt:
    """Lines of a copy, or why there are none: then ``text`` is empty and ``why`` is not.

    Arguments:
        lines: those that were asked for.
        copy: the copy's path below the reader's folder.
    """

    lines: Lines
    copy: str
    text: str
    why: str


class Copies:
    """A folder with copies, at FOLDER/repository/path, FOLDER/path, or under the file's name.

    Raises AtlasError where there is no such folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        if not os.path.isdir(folder):
            what = "is a file" if os.path.exists(folder) else "is not there"
            raise AtlasError(
                f"--sources {folder}: that folder {what}; give the folder that holds your copies "
                "of the models' files, as FOLDER/REPOSITORY/PATH or FOLDER/PATH"
            )
        self._read: dict[Path, tuple[str, ...] | str] = {}

    def excerpt(self, file: CitedFile, lines: Lines) -> Excerpt:
        """These lines of the copy of ``file``, if they are the pinned revision's."""
        known = covering(file.repository, file.path, file.revision, lines)
        if known is None:
            return Excerpt(lines, "", "", "no digest of these lines is known")
        passage, expected = known
        why = []
        places = (f"{file.repository}/{file.path}", file.path, file.path.rpartition("/")[2])
        for name in dict.fromkeys(places):
            if not os.path.isfile(self._folder / name):  # pathlib's raises where one may not look
                continue
            text = self._lines(self._folder / name)
            if isinstance(text, str):
                why.append(f"{name} {text}")
            elif digest(text[passage.first - 1 : passage.last]) == expected:
                shown = "\n".join(line.rstrip() for line in text[lines.first - 1 : lines.last])
                return Excerpt(lines, name, shown, "")
            else:
                why.append(f"{name}: lines {passage} are not those of revision {file.revision}")
        return Excerpt(lines, "", "", "; ".join(why) or f"no copy of {file.path} was found")

    def _lines(self, path: Path) -> tuple[str, ...] | str:
        """Its lines, or what is wrong with it."""
        if path not in self._read:
            self._read[path] = _read(path)
        return self._read[path]


def _read(path: Path) -> tuple[str, ...] | str:
    try:
        if path.stat().st_size > _LARGEST:
            return f"is larger than {_LARGEST:,} bytes"
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return tuple(text.split("\n"))  # as editors count lines: a form feed ends none
