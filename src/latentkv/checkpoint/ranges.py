"""The beginnings of a hub's files, over HTTP: ranges, resumed after faults. No torch.

It goes through huggingface_hub's own session, so that proxies, certificates, its offline mode and a
client that the user has set are theirs; that library is imported only when something is fetched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ..reading.errors import CheckpointError
from .answers import (
    NO_NETWORK,
    Place,
    Response,
    asked_wait,
    denied,
    drain,
    origin,
    ranged,
    redirected,
    sized,
)
from .header import LENGTH

REDIRECTS = 5
PASSING = (408, 429, 500, 502, 503, 504)  # answers that another try may better


@dataclass(frozen=True)
class Patience:
    """How long a hub is waited for, and how often; times are in seconds.

    Arguments:
        tries: faults in a row, none of which brought a byte, until a file is given up.
        pause: before the second try; doubled before each further one.
        silence: for a connection, and for the next byte.
        asked: the longest wait that is granted where the hub asks for one.
        whole: for one file, with all tries.
        first: bytes asked for at first, which most headers fit into.
        connections: files read at the same time.
    """

    tries: int = 5
    pause: float = 1.0
    silence: float = 10.0
    asked: float = 60.0
    whole: float = 600.0
    first: int = 256 * 1024
    connections: int = 8


class Cancelled(Exception):
    """Another file has failed."""


class _Fault(Exception):
    """What another try may better, and how long the hub asks to wait before it."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class Transport:
    """Reads a place's files, from several threads.

    Arguments:
        place: the repository; its revision is a commit once ``pinned`` is called.
        headers: sent to the hub; ``authorization`` goes to no other host.
    """

    def __init__(self, place: Place, headers: Mapping[str, str], patience: Patience) -> None:
        self.place = place
        self.patience = patience
        self.cancelled = threading.Event()
        # Ranges are of the stored bytes, so nothing between may compress them.
        self._headers = {**headers, "accept-encoding": "identity"}
        self._commit: str | None = None
        self._answered = False

    def pinned(self, place: Place) -> None:
        """From here on every answer must be of this place's commit."""
        self.place, self._commit = place, place.revision

    def document(self, url: str, file: str, most: int) -> bytes:
        """The whole of a file of unknown size, at most ``most`` bytes; a fault starts it over."""
        held = bytearray()

        def attempt(deadline: float) -> bool:
            held.clear()
            with self._open(url, file, {}) as response:
                for chunk in self._chunks(response, file, held, deadline):
                    held.extend(chunk)
                    if len(held) > most:
                        raise CheckpointError(
                            f"{file}: over {most:,} bytes, which no such file has; not read further"
                        )
            return True

        self._persist(file, attempt, held)
        return bytes(held)

    def beginning(
        self, url: str, file: str, size: int | None, enough: Callable[[bytes, int | None], int]
    ) -> tuple[bytes, int]:
        """The first bytes of a file, next to none after them, and the file's size in bytes.

        ``enough`` says of the bytes held, and the size where it is known, how many are needed in
        all, at most that size; it may raise. A fault goes on at the byte reached. Of a hub that
        ignores ranges, reading stops where it is enough.
        """
        held = bytearray()

        def needed() -> int:
            return enough(bytes(held[:LENGTH]), size)

        def attempt(deadline: float) -> bool:
            nonlocal size
            start, stop = len(held), needed()
            if start < LENGTH:  # not known yet how much it is
                first = self.patience.first
                stop = max(stop, first if size is None else min(first, size))
            if start >= stop:
                return True
            with self._open(url, file, {"range": f"bytes={start}-{stop - 1}"}) as response:
                if whole := response.status_code == 200:  # from its start: what is held comes again
                    end, size = sized(response, file, size)
                    skip = start
                else:
                    end, size = ranged(response, file, start, stop, size)
                    skip = 0
                for chunk in self._chunks(response, file, held, deadline):
                    held.extend(chunk[skip:])
                    skip = max(0, skip - len(chunk))
                    if len(held) > end:
                        raise CheckpointError(
                            f"{file}: the hub sent more than bytes {start:,} to {end - 1:,}, which "
                            "it announced. Try again; if it stays, the hub or a proxy is at fault"
                        )
                    if whole and len(held) >= needed():
                        break  # the rest is weights
            return len(held) >= needed()

        self._persist(file, attempt, held)
        assert size is not None  # each answer that is accepted tells it
        del held[needed() :]
        return bytes(held), size

    def _persist(self, file: str, attempt: Callable[[float], bool], held: bytearray) -> None:
        """Attempts until one is done; each fault is waited out, and the last one is told."""
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        # httpx2's or httpx's HTTPError: the root of all faults of connections.
        connection_fault: type[Exception] = HfHubHTTPError.__bases__[0]
        deadline = time.monotonic() + self.patience.whole
        faults = 0
        while True:
            before = len(held)
            wait = None
            why: Exception | None = None
            try:
                if attempt(deadline):
                    return
                said = "the hub ended its answer early"
                wait = 0.0 if len(held) > before else None  # some give ranges in small parts
            except OfflineModeIsEnabled as error:
                raise CheckpointError(
                    f"{file}: HF_HUB_OFFLINE is set, so the hub isn't asked. Unset it, or name a "
                    f"folder or an index file on disk; {NO_NETWORK}"
                ) from error
            except _Fault as error:
                said, wait = str(error), error.wait
            except connection_fault as error:
                why, said = error, _words(error)
                if not self._answered and _unconnected(error):
                    raise CheckpointError(
                        f"{file}: no connection to {self.place.endpoint} ({said}). Check the "
                        "network, the proxy settings (HTTPS_PROXY) and HF_ENDPOINT, or name a "
                        f"folder or an index file on disk; {NO_NETWORK}"
                    ) from error
            faults = 0 if len(held) > before else faults + 1
            if faults >= self.patience.tries:
                raise CheckpointError(
                    f"{file}: {said}; given up at byte {len(held):,} after {faults} tries without "
                    "progress. Nothing of this repository is counted; try again later"
                ) from why
            if wait is not None and wait > self.patience.asked:
                raise CheckpointError(
                    f"{file}: {said}, and asks to wait {wait:,.0f} s, which is longer than the "
                    f"{self.patience.asked:,.0f} s waited here. Try again then; with a token "
                    "(hf auth login, or HF_TOKEN) the hub allows more requests"
                ) from why
            pause = self.patience.pause * 2 ** max(0, faults - 1) if wait is None else wait
            if time.monotonic() + pause > deadline:
                raise self._late(file, held)
            if self.cancelled.wait(pause):
                raise Cancelled

    def _late(self, file: str, held: bytearray) -> CheckpointError:
        return CheckpointError(
            f"{file}: not read within {self.patience.whole:,.0f} s, stopped at byte "
            f"{len(held):,}. Nothing of this repository is counted; try again on a faster line"
        )

    def _chunks(
        self, response: Response, file: str, held: bytearray, deadline: float
    ) -> Iterator[bytes]:
        """The body as it comes. Silence is the session's to notice, slow dripping is ours."""
        for chunk in response.iter_raw():
            if self.cancelled.is_set():
                raise Cancelled
            if time.monotonic() > deadline:
                raise self._late(file, held)
            yield chunk

    @contextmanager
    def _open(self, url: str, file: str, extra: Mapping[str, str]) -> Iterator[Response]:
        """A successful answer, its body not read yet; redirects are followed, the token stays.

        They are followed here and not by the session, which would read their bodies, however long,
        and keep the hub's own headers out of sight.
        """
        from huggingface_hub import get_session

        headers = {**self._headers, **extra}
        for _ in range(REDIRECTS + 1):
            if origin(url) != origin(self.place.endpoint):
                headers.pop("authorization", None)
            with get_session().stream(
                "GET",
                url,
                headers=headers,
                timeout=self.patience.silence,
                follow_redirects=False,
            ) as response:
                self._answered = True
                self._same_commit(response, file)
                if response.status_code in (301, 302, 303, 307, 308):
                    drain(response)
                    url = redirected(url, response.headers.get("location", ""), file)
                    continue
                self._accept(response, file, url)
                yield response
                return
        raise CheckpointError(
            f"{file}: more than {REDIRECTS} redirects. Check HF_ENDPOINT and the proxy settings"
        )

    def _same_commit(self, response: Response, file: str) -> None:
        answered = response.headers.get("x-repo-commit")
        if self._commit and answered and answered.lower() != self._commit:
            raise CheckpointError(
                f"{file}: the hub answered from commit {answered[:40]}, asked for {self._commit}: "
                "files of two commits are no checkpoint. Try again"
            )

    def _accept(self, response: Response, file: str, url: str) -> None:
        """Raise unless the body is the file's own bytes."""
        status, headers = response.status_code, response.headers
        if status in PASSING:
            raise _Fault(f"the hub answered {status}", asked_wait(headers))
        if status not in (200, 206):
            raise denied(self.place, file, url, status, headers)
        if headers.get("content-type", "").lower().startswith("text/html"):
            raise CheckpointError(
                f"{file}: an HTML page came instead of the file: a login page, a proxy's, or not a "
                "hub. Open the address in a browser, and check HF_ENDPOINT and the proxy settings; "
                f"{NO_NETWORK}"
            )
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise CheckpointError(
                f"{file}: came encoded as {encoding!r}, though the plain bytes were asked for. A "
                "proxy between compresses: go around it, or download the repository and name its "
                "folder"
            )


def _words(error: Exception) -> str:
    """A connection's fault, with the host: the hub's, or its CDN's."""
    said = f"{type(error).__name__}: {error}".rstrip(": ")
    try:
        host = str(error.request.url.host)  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # one that no request is known of
        return said
    return f"{said}, from {host}"


def _unconnected(error: Exception) -> bool:
    return type(error).__name__ in ("ConnectError", "ConnectTimeout", "ProxyError")
