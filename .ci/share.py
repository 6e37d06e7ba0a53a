"""Link what one distribution needs, itself included, from this environment into a folder.

    python share.py DISTRIBUTION FOLDER

A .pth file naming the folder lets a new environment use a torch without a copy of its gigabytes,
and nothing else of this environment.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path


def needed(name: str, found: set[str]) -> set[str]:
    """The distribution and those it requires that are installed here, by canonical name."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name not in found:
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            return found  # for another platform or Python
        found.add(name)
        for requirement in requirements:
            if "extra ==" not in requirement:
                needed(re.split(r"[^\w.-]", requirement, maxsplit=1)[0], found)
    return found


def main() -> None:
    distribution, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True)
    for name in sorted(needed(distribution, set())):
        files = metadata.files(name)
        assert files, f"{name} doesn't say which files it has"
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (folder / top).symlink_to(metadata.distribution(name).locate_file(top))


if __name__ == "__main__":
    main()
