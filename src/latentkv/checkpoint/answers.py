"""What a hub's answers say, and what to do about those that refuse. No torch."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import urljoin, urlsplit

from ..reading.errors import CheckpointError
from ..reading.files import short

DRAINED = 64 * 1024  # bytes of a redirect's body
LONGEST_URL = 16 * 1024  # characters; a CDN's signed ones have 2,000
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_HOST = re.compile(r"[A-Za-z0-9._-]+")
_PORTS = {"http": 80, "https": 443}

NO_NETWORK = "`latentkv count kimi-k3` needs no network"
LOG_IN = "log in (hf auth login) or set HF_TOKEN"


class Response(Protocol):
    """What is used of an httpx or httpx2 response, whichever huggingface_hub brings."""

    @property
    def status_code(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    def iter_raw(self) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class Place:
    """A repository on a hub, at a revision: as it was asked for, then its commit."""

    endpoint: str
    repository: str
    revision: str
    token: bool
    """Whether one is sent."""

    def file(self, name: str) -> str:
        """How messages name a file: owner/name@revision/file, as in the hub's hf:// paths."""
        return f"{self.repository}@{self.revision[:12]}/{name}"


def denied(
    place: Place, file: str, url: str, status: int, headers: Mapping[str, str]
) -> CheckpointError:
    """The error for an answer that another try doesn't better.

    Statuses alone don't tell: the hub answers 401 for a private, a gated and a missing repository,
    and says which in X-Error-Code, where it says so at all.
    """
    code = headers.get("x-error-code", "")
    said = headers.get("x-error-message", "").strip()
    heard = f"the hub answered {status}" + (f": {short(said)}" if said else "")
    page = f"{place.endpoint}/{place.repository}"
    if code == "GatedRepo":
        why = (
            f"{place.repository} is gated ({heard}). Accept its terms at {page}, then {LOG_IN} of "
            "the same account"
        )
    elif code == "RevisionNotFound":
        why = (
            f"{place.repository} has no revision {place.revision!r} ({heard}). Name a branch, a "
            f"tag or a commit that {page}/commits lists"
        )
    elif code == "EntryNotFound":
        why = f"the repository lists this file and doesn't have it ({heard}). Try again"
    elif status != 416 and origin(url) != origin(place.endpoint):
        why = (
            f"{origin(url)[1]}, where the hub sends readers for it, answered {status}. Try again; "
            "a proxy or firewall may not let it through"
        )
    elif status == 401 and "credentials" in said.lower():
        why = f"the token is refused ({heard}). Make a new one, then {LOG_IN}"
    elif status in (401, 404):
        why = (
            f"no such repository, or a private one ({heard}). Check the name {place.repository!r}"
            + (
                ", and that the token's account may read it"
                if place.token
                else f"; if it's private, {LOG_IN}"
            )
        )
    elif status == 403:
        why = f"access is refused ({heard}). Open {page} to see what it asks for, then {LOG_IN}"
    elif status == 416:
        why = f"{heard}: the file is shorter than the repository lists. Tell its owner"
    else:
        why = f"{heard}. Open {page} to see why; is {place.endpoint} a hub (HF_ENDPOINT)?"
    return CheckpointError(f"{file}: {why}")


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port; CheckpointError where it isn't an http or https address."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise CheckpointError(
            "an address with a user or password in it is not used: set HF_ENDPOINT without, and "
            "HF_TOKEN"
        )
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme, parts.hostname or ""
        port = parts.port or _PORTS.get(scheme, 0)
        named = _HOST.fullmatch(host) or ipaddress.ip_address(host)
    except ValueError:
        scheme, host, port, named = "", "", 0, None
    plain = url.isascii() and url.isprintable() and len(url) <= LONGEST_URL
    if not plain or not named or scheme not in _PORTS:
        raise CheckpointError(
            f"{short(url)} is no address of a hub: https:// or http://, then a host's name, are "
            "expected. Check HF_ENDPOINT"
        )
    return scheme, host, port


def drain(response: Response) -> None:
    """Read a short body that nobody wants: only then can the connection be used again."""
    said = response.headers.get("content-length", "")
    if said.isdecimal() and int(said[:18]) <= DRAINED:
        for _ in response.iter_raw():
            pass


def redirected(url: str, location: str, file: str) -> str:
    """Where a redirect leads; never from https to http."""
    try:
        target = urljoin(url, location)
        (to, host, _), (of, here, _) = origin(target), origin(url)
        # a hub in the world has no business with what only this machine can reach
        followed = bool(location) and (to, of) != ("http", "https")
        followed = followed and (_public(host) or not _public(here))
    except ValueError:  # no address at all
        followed = False
    if not followed:
        raise CheckpointError(
            f"{file}: {origin(url)[1]} redirects to {short(location)}, which isn't followed: it "
            "must be an http or https address, https must stay https, and a public hub lead to no "
            "private address. Check HF_ENDPOINT and the proxy settings"
        )
    return target


def _public(host: str) -> bool:
    """Whether a host is one of the world, as far as its name tells."""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return host != "localhost" and not host.endswith(".localhost")


def ranged(
    response: Response, file: str, start: int, stop: int, size: int | None
) -> tuple[int, int]:
    """The byte before which the answer ends, if it's a part of what was asked for; the size."""
    said = response.headers.get("content-range", "")
    found = _CONTENT_RANGE.fullmatch(said.strip())
    total = size if not found or found[3] == "*" else int(found[3])
    if size is not None and total != size:
        raise _other_size(file, total, size)
    if not found or total is None or not start == int(found[1]) <= int(found[2]) < stop:
        raise CheckpointError(
            f"{file}: asked for bytes {start:,} to {stop - 1:,}, and the answer's Content-Range is "
            f"{short(said)}. The hub or a proxy is at fault: try again, or download the "
            "repository and name its folder"
        )
    return int(found[2]) + 1, total


def sized(response: Response, file: str, size: int | None) -> tuple[int, int]:
    """The size of a file that comes as a whole, twice."""
    said = response.headers.get("content-length", "")
    total = int(said[:18]) if said.isdecimal() else size
    if total is None:
        raise CheckpointError(
            f"{file}: neither the repository's list nor the answer says how large it is. The hub "
            "or a proxy is at fault: download the repository and name its folder"
        )
    if size is not None and total != size:
        raise _other_size(file, total, size)
    return total, total


def _other_size(file: str, said: int | None, size: int) -> CheckpointError:
    return CheckpointError(
        f"{file}: comes with {said:,} bytes, where the repository lists {size:,}: one of them is "
        "wrong. Try again; if it stays, tell the repository's owner"
    )


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that the hub asks to wait, if it does."""
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    said = headers.get("retry-after", "").strip()
    if said.isdecimal():
        return float(said[:9])
    if said:
        try:
            return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
        except (OverflowError, TypeError, ValueError):  # no date, or none that the clock has
            pass
    limit: Any = parse_ratelimit_headers(headers)
    return float(limit.reset_in_seconds) if limit and limit.remaining == 0 else None
