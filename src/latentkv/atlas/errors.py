"""What building an atlas may refuse."""

from __future__ import annotations


class AtlasError(ValueError):
    """Names the file or folder, what was found there, and what to do."""
