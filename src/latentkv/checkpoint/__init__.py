"""Checkpoints without their weights: config.json, indices and safetensors headers. No torch."""

from __future__ import annotations

import os

from ..reading.errors import CheckpointError
from .contents import BITS, Checkpoint, Progress, Stored
from .local import read_local

__all__ = ["BITS", "Checkpoint", "CheckpointError", "Progress", "Stored", "read"]


def read(
    where: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """What a checkpoint says of itself: from disk where there is such a path, else from the hub.

    Arguments:
        where: a folder, a .safetensors file, an index file alone, or a repository's name.
        revision: a branch, tag or commit, of a repository; misuse with a path.
        token: for a repository that wants one; else the one that is logged in.
        progress: called with files done, files in all, and the file at work.

    Raises:
        CheckpointError: something can't be read, is broken or contradicts itself.
    """
    if not isinstance(where, str) or os.path.exists(where) or not _may_be_repository(where):
        if revision is not None:
            raise CheckpointError(
                f"{os.fspath(where)}: a revision is that of a repository, and this is a path"
            )
        return read_local(where, progress)
    from .hub import read_hub

    return read_hub(where, revision=revision, token=token, progress=progress)


def _may_be_repository(where: str) -> bool:
    """owner/name, or its address; anything else means a path, which may not exist."""
    if where.startswith(("http://", "https://")):
        return True
    return where.count("/") == 1 and not where.startswith(("/", ".", "~")) and "\\" not in where
