"""An atlas in a folder: written only where nothing but an earlier atlas is replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from .errors import AtlasError

MARKER = ".latentkv-atlas"  # lists the files of the atlas that lies there, one a line


def write(files: Mapping[str, str], out: str | Path) -> None:
    """Write the files below ``out``, in place of an earlier atlas's.

    Raises AtlasError where ``out`` is no folder, holds anything but an atlas or a link in one, or
    can't be written.
    """
    folder = Path(out)
    encoded = {name: text.encode() for name, text in files.items()}  # before the first is written
    earlier = _earlier(folder)
    _check_links(folder, encoded)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # First, and with both lists: whatever stops this, the next run knows what is its own.
        _mark(folder, {*earlier, *files})
        for name in earlier - set(files):
            _remove(folder, name)
        for name, content in encoded.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        _mark(folder, set(files))
    except OSError as error:
        raise AtlasError(
            f"{error.filename or folder} can't be written: {error.strerror}; give a folder that "
            "you may write to"
        ) from None


def _mark(folder: Path, names: set[str]) -> None:
    (folder / MARKER).write_bytes("".join(f"{name}\n" for name in sorted(names)).encode())


def _earlier(folder: Path) -> set[str]:
    """The names of the files of the atlas in this folder, if there is one."""
    try:
        if not folder.is_dir():
            if folder.exists() or folder.is_symlink():
                raise AtlasError(f"{folder} is not a folder: give a new or an empty one")
            return set()
        if (folder / MARKER).is_file():
            names = (folder / MARKER).read_text(encoding="utf-8").splitlines()
            return {name for name in names if name.isprintable()}  # ours are
        found = sorted(path.name for path in folder.iterdir())
    except (OSError, UnicodeDecodeError) as error:
        raise AtlasError(
            f"{folder} can't be read: {error}; give a new or an empty folder"
        ) from None
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise AtlasError(
            f"{folder} is not empty and holds no atlas: {', '.join(found[:3])}{more} would lie "
            "among the pages. Give a new or an empty folder, or one with an earlier atlas"
        )
    return set()


def _check_links(folder: Path, names: Iterable[str]) -> None:
    """A link where a page is to be written would lead out of the folder."""
    below = {MARKER, *names}
    below |= {str(parent) for name in names for parent in Path(name).parents} - {"."}
    for name in sorted(below):
        if (folder / name).is_symlink():
            raise AtlasError(
                f"{folder / name} is a link: what it leads to would be overwritten. Remove it, or "
                "give another folder"
            )


def _remove(folder: Path, name: str) -> None:
    """A file of the earlier atlas, and the folders that it leaves empty."""
    path, root = (folder / name).resolve(), folder.resolve()
    if root not in path.parents or not path.is_file():
        return  # a marker that someone changed removes nothing elsewhere
    path.unlink()
    for parent in path.parents:
        if parent == root or any(parent.iterdir()):
            return
        parent.rmdir()
