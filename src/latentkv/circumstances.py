"""When something was measured, and with what: a result without them can't be compared. No torch."""

from __future__ import annotations

from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version

from . import __version__

_PACKAGES = ("torch", "transformers", "liger-kernel")  # those whose code `check` looks at


def versions() -> dict[str, str]:
    """Of latentkv, and of the packages that `check` looks at and that are installed."""
    found = {"latentkv": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def today() -> str:
    """The date in UTC, as 2026-11-30."""
    return f"{datetime.now(timezone.utc):%Y-%m-%d}"
