"""A checkpoint on a hub, without its weights: config.json, the index and the headers. No torch.

All is read from one commit, which the first answer names, and only what a count needs: of each
file of weights its header, by range requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any
from urllib.parse import quote

from ..reading.errors import CheckpointError
from ..reading.files import CONFIG, CONFIG_LIMIT, few, short
from ..reading.strict_json import read_object
from . import shards
from .answers import Place, origin
from .contents import Checkpoint, Progress, Stored
from .header import LENGTH, header_length, parse_header
from .index import LIMIT, SUFFIX, Index, parse_index
from .ranges import Patience, Transport

LISTING_LIMIT = 64 << 20  # bytes of the answer that lists a repository's files, 300 or so for each
MOST_FILES = 10_000  # of weights; the largest checkpoints have a few hundred
PATIENCE = Patience()
_ADDRESS = re.compile(r"https?://[^/]*/(?P<name>[^/]+/[^/?#]+)(?:/tree/(?P<revision>[^/?#]+))?/?")
_COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


def read_hub(
    repository: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    progress: Progress | None = None,
    patience: Patience = PATIENCE,
) -> Checkpoint:
    """What a checkpoint on a hub says of itself, from headers alone.

    Arguments:
        repository: ``owner/name``, or its address, https://huggingface.co/owner/name.
        revision: a branch, tag or commit; "main" without it.
        token: sent to the hub and to no other host; without it, the one of HF_TOKEN or of
            ``hf auth login``.
        endpoint: the hub's address; without it, HF_ENDPOINT's or https://huggingface.co.
        progress: called from this thread before the first file's header is read, after each, and
            once after the last.
        patience: waits and tries.

    Returns:
        The checkpoint, its ``revision`` being the commit that all was read from.

    Raises:
        CheckpointError: anything is absent, refused, damaged or not reached; there is no partial
            result. huggingface_hub is not installed, or is told to stay offline.
    """
    try:
        from huggingface_hub import constants, get_token
    except ImportError as error:
        raise CheckpointError(
            f"{short(repository)}: reading a repository needs huggingface_hub: "
            "pip install huggingface_hub. Folders and index files on disk are read without it"
        ) from error
    endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
    origin(endpoint)
    given = repository
    repository, revision = _named(given, revision, endpoint)
    if not token and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        token = get_token()
    place = Place(endpoint, repository, revision or constants.DEFAULT_REVISION, bool(token))
    return _Reader(given, Transport(place, _headers(token), patience), progress).read()


def _named(repository: str, revision: str | None, endpoint: str) -> tuple[str, str | None]:
    """Owner and name, and the revision; both may stand in an address."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    expected = "a repository is owner/name, as in moonshotai/Kimi-K2-Instruct"
    name = repository
    if "://" in repository:
        found = _ADDRESS.fullmatch(repository)
        hubs = (endpoint, "https://huggingface.co", "https://hf.co")
        if not found or origin(repository) not in {origin(one) for one in hubs}:
            raise CheckpointError(
                f"{short(repository)} is no model's address on {endpoint}; {expected}. Another "
                "hub is named by HF_ENDPOINT"
            )
        name, there = found["name"], found["revision"]
        if revision and there and revision != there:
            raise CheckpointError(
                f"{short(repository)} names the revision {there!r}, and {revision!r} was asked "
                "for: give one of them"
            )
        revision = revision or there
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise CheckpointError(f"{short(repository)}: {expected} ({error})") from error
    if "/" not in name:
        raise CheckpointError(f"{short(repository)} has no owner; {expected}")
    if revision is not None and (
        not revision.strip(".") or not revision.isprintable() or len(revision) > 256
    ):
        raise CheckpointError(
            f"{name}: {short(revision)} is no revision; a branch, a tag or a commit is expected"
        )
    return name, revision


def _headers(token: str | None) -> dict[str, str]:
    """Of every request.

    huggingface_hub's build_hf_headers isn't used: to write its user agent it may first fetch a list
    from the hub, which is one more thing to wait for where there's no network.
    """
    from .. import __version__

    headers = {"user-agent": f"latentkv/{__version__}"}
    if token:
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise CheckpointError(
                "the hub's token has characters that no token has: check HF_TOKEN, or log in anew "
                "(hf auth login)"
            )
        headers["authorization"] = f"Bearer {token}"
    return headers


class _Reader:
    """One reading of a repository: a `shards.Folder`, once the commit is known."""

    def __init__(self, given: str, transport: Transport, progress: Progress | None) -> None:
        self.given = given
        self.transport = transport
        self.progress = progress or (lambda done, of, file: None)
        self.sizes: dict[str, int | None] = {}

    def read(self) -> Checkpoint:
        self._pin()
        config: dict[str, Any] | None = None
        if self.has(CONFIG):
            config = read_object(self._whole(CONFIG, CONFIG_LIMIT), self.label(CONFIG))
        # gzipped ones are no part of what loaders read
        names = sorted(name for name in self.sizes if "/" not in name and name[-3:] != ".gz")
        index, tensors = shards.gather(self, names)
        return shards.assembled(
            index,
            tensors,
            where=self.given,
            revision=self.transport.place.revision,
            config=config,
            config_file=self.label(CONFIG),
        )

    @property
    def where(self) -> str:
        place = self.transport.place
        return f"{place.repository}@{place.revision[:12]}"

    def label(self, file: str) -> str:
        return self.transport.place.file(file)

    def has(self, file: str) -> bool:
        return file in self.sizes

    def index(self, file: str) -> Index:
        self.progress(0, sum(name.endswith(SUFFIX) for name in self.sizes), file)
        return parse_index(self._whole(file, LIMIT), self.label(file))

    def unfinished(self, index: str) -> str:
        return "Its upload may not be finished: ask its owner, or name another revision"

    def nothing(self, names: Sequence[str]) -> CheckpointError:
        """What the repository has in place of a checkpoint, in folders, too."""
        names, where = list(self.sizes), self.where
        if nested := [name for name in names if name.endswith(SUFFIX)]:
            return CheckpointError(
                f"{where} has {SUFFIX} files in subfolders only, {few(nested)}: no language "
                "model's checkpoint. Download the folder that is meant, and name it"
            )
        if pickles := shards.pickled(where, names):
            return pickles
        if packed := [name for name in names if name.endswith(".gguf")]:
            return CheckpointError(
                f"{where} has GGUF files only, {few(packed)}, which are not read: name the "
                f"repository that they were made from, which has {SUFFIX} files"
            )
        return CheckpointError(
            f"{where} has no {SUFFIX} file and no {shards.INDEX}; it has "
            f"{few(names, 5) or 'no file at all'}. Check the name, or name another revision"
        )

    def _pin(self) -> None:
        """Ask for the revision's commit and its files: from here on, all is of that commit."""
        place = self.transport.place
        url = f"{place.endpoint}/api/models/{place.repository}/revision/"
        url += quote(place.revision, safe="")
        answer = read_object(self.transport.document(f"{url}?blobs=true", url, LISTING_LIMIT), url)
        commit = answer.get("sha")
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise _no_hub(url, f"its sha is {short(commit)}, which is no commit")
        if _COMMIT.fullmatch(place.revision) and commit != place.revision:
            raise CheckpointError(
                f"{url}: the hub answered with commit {commit}, which is another. Try again"
            )
        siblings = answer.get("siblings")
        if not isinstance(siblings, list):
            raise _no_hub(url, f"its siblings are {short(siblings)}, not a list of files")
        for one in siblings:
            name, size = (
                (one.get("rfilename"), one.get("size")) if isinstance(one, dict) else (0, 0)
            )
            if not isinstance(name, str) or not (size is None or type(size) is int and size >= 0):
                raise _no_hub(url, f"its siblings have {short(one)}, not a file's name and size")
            self.sizes[name] = size
        self.transport.pinned(Place(place.endpoint, place.repository, commit, place.token))

    def _url(self, name: str) -> str:
        from huggingface_hub import hf_hub_url

        place = self.transport.place
        return hf_hub_url(place.repository, name, revision=place.revision, endpoint=place.endpoint)

    def _whole(self, name: str, most: int) -> bytes:
        url, file, size = self._url(name), self.label(name), self.sizes[name]
        if size is None:
            return self.transport.document(url, file, most)
        if size > most:
            raise CheckpointError(
                f"{file} has {size:,} bytes; at most {most:,} are read of such a file"
            )
        return self.transport.beginning(url, file, size, lambda first, total: total or 0)[0]

    def _header(self, name: str) -> dict[str, Stored]:
        file = self.label(name)

        def enough(first: bytes, size: int | None) -> int:
            begin = LENGTH if size is None else min(LENGTH, size)
            if len(first) < begin:
                return begin
            return LENGTH + header_length(first, file, size)

        raw, size = self.transport.beginning(self._url(name), file, self.sizes[name], enough)
        return parse_header(raw[LENGTH:], file, size - len(raw))

    def headers(self, names: Sequence[str]) -> list[tuple[str, Mapping[str, Stored]]]:
        """Every file's header, in the order of the names; the first failure ends the others."""
        if len(names) > MOST_FILES:
            raise CheckpointError(
                f"{self.transport.place.repository} has {len(names):,} files of weights; at most "
                f"{MOST_FILES:,} are read. Download it and name its folder"
            )
        headers: dict[str, Mapping[str, Stored]] = {}
        with ThreadPoolExecutor(self.transport.patience.connections, "latentkv-hub") as pool:
            try:
                self.progress(0, len(names), names[0])
                reading = {pool.submit(self._header, name): name for name in names}
                for done in as_completed(reading):
                    headers[reading[done]] = done.result()
                    left = next((name for name in names if name not in headers), "")
                    self.progress(len(headers), len(names), left)
            except (
                BaseException
            ):  # also an interrupt: what isn't begun won't be, the rest breaks off
                self.transport.cancelled.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [(name, headers[name]) for name in names]


def _no_hub(url: str, why: str) -> CheckpointError:
    return CheckpointError(f"{url}: the answer is not a hub's: {why}. Check HF_ENDPOINT")
