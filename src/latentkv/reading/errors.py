"""The error of everything that is read. No torch."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint or configuration that can't be read; says which file, why, and what to do."""
