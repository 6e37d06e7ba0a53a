"""A hub on 127.0.0.1: the protocol of huggingface.co as far as reading a model needs it.

It serves one folder as one repository, large files through redirects to a second server that
plays the CDN, counts what it sends, and fails as it is told to.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import forge
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file

from latentkv.checkpoint import CheckpointError
from latentkv.checkpoint.contents import Checkpoint
from latentkv.checkpoint.hub import Patience, read_hub

QUICK = Patience(pause=0.01, silence=5.0)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PIECE = 16 * 1024  # bytes written at once


@dataclass
class Fault:
    """What goes wrong with an answer whose path has ``on`` in it; fields left None do nothing.

    Arguments:
        on: a part of the path; the hub's interface is under /api/, its CDN under /blob/.
        times: how often, or always.
        status, headers, body: in place of the right ones; a header that is None is left out.
        cut_after: bytes of a body, after which the connection is cut.
        cut_at: the byte of the file before which it is cut.
        short: bytes of the range that are left out, in agreement with the headers.
        ignore_range: answer 200 with the whole file.
        pause: seconds before each piece.
    """

    on: str
    times: int | None = None
    status: int | None = None
    headers: dict[str, str | None] = field(default_factory=dict)
    body: bytes | None = None
    cut_after: int | None = None
    cut_at: int | None = None
    short: int = 0
    ignore_range: bool = False
    pause: float = 0.0


@dataclass
class Exchange:
    """A request, and what it was answered with."""

    server: str
    method: str
    path: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0


class Hub:
    """Serves ``folder`` as ``repository`` at ``commit`` until the with block ends."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.patch = patch
        self.repository = "owner/name"
        self.commit = COMMIT
        self.revisions = {"main", COMMIT, "refs/pr/1"}
        self.token = ""  # what requests to the hub must carry, where it is set
        self.denial = (401, "", "Invalid username or password.")  # status, X-Error-Code, message
        self.listed: dict[str, int | None] = {}  # sizes in place of the true ones, and more files
        self.faults: list[Fault] = []
        self.log: list[Exchange] = []
        self.waiting = self.most_waiting = 0  # answers that pause at the same time
        self._lock = threading.Lock()
        self._servers = {name: _Server(self, name) for name in ("hub", "cdn")}
        self.endpoint, self.cdn = (server.url for server in self._servers.values())

    def __enter__(self) -> Hub:
        for server in self._servers.values():
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def exchanges(self, on: str = "", server: str = "") -> list[Exchange]:
        return [one for one in self.log if on in one.path and server in one.server]

    def sent(self, on: str = "") -> int:
        """Bytes of bodies, as far as the kernel took them."""
        return sum(one.sent for one in self.exchanges(on))

    def siblings(self) -> list[dict[str, Any]]:
        sizes: dict[str, int | None] = {
            path.relative_to(self.folder).as_posix(): path.stat().st_size
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
        sizes |= self.listed
        return [{"rfilename": name, "size": size, "blobId": "0"} for name, size in sizes.items()]

    def fault(self, path: str) -> Fault:
        with self._lock:
            for fault in self.faults:
                if fault.on in path and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return Fault("")

    def record(self, exchange: Exchange) -> None:
        with self._lock:
            self.log.append(exchange)

    def pause(self, seconds: float) -> None:
        with self._lock:
            self.waiting += 1
            self.most_waiting = max(self.waiting, self.most_waiting)
        time.sleep(seconds)
        with self._lock:
            self.waiting -= 1


class _Server(ThreadingHTTPServer):
    def __init__(self, hub: Hub, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        # What lies in the socket's buffer counts as sent: keep it small.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
        self.hub, self.name = hub, name
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """A client that has read enough hangs up: no error of the server's."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 30
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, self.name = self.server.hub, self.server.name
        self.exchange = Exchange(self.name, self.command, self.path, dict(self.headers.items()))
        hub.record(self.exchange)
        self.broken = hub.fault(self.path)
        path = urlsplit(self.path).path
        if self.name == "cdn":
            return self.blob(path)
        if hub.token and self.headers["authorization"] != f"Bearer {hub.token}":
            status, code, message = hub.denial
            return self.refuse(status, code, message)
        api = re.fullmatch(rf"/api/models/{hub.repository}/revision/([^/]+)", path)
        file = re.fullmatch(rf"/{hub.repository}/resolve/([^/]+)/(.+)", path)
        if not (found := api or file):
            return self.refuse(404, "RepoNotFound", "Repository not found")
        if unquote(found[1]) not in hub.revisions:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {unquote(found[1])}")
        if file:
            return self.resolve(unquote(file[2]))
        listing: dict[str, Any] = {"id": hub.repository, "sha": hub.commit, "private": False}
        if parse_qs(urlsplit(self.path).query).get("blobs"):
            listing["siblings"] = hub.siblings()
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(listing).encode())

    do_HEAD = do_GET

    def resolve(self, name: str) -> None:
        path = self.server.hub.folder / name
        if not path.is_file():
            return self.refuse(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": self.server.hub.commit, "Accept-Ranges": "bytes"}
        if path.suffix != ".safetensors":
            headers["ETag"] = f'"{hashlib.sha1(path.read_bytes()).hexdigest()}"'
            headers["Content-Type"] = "text/plain; charset=utf-8"
            return self.ranged(path, headers)
        headers["X-Linked-Size"] = str(path.stat().st_size)
        headers["X-Linked-ETag"] = f'"{path.stat().st_ino}"'
        headers["Location"] = f"{self.server.hub.cdn}/blob/{quote(name)}?signature=abc"
        self.answer(302, headers, b"Found. Redirecting")

    def blob(self, path: str) -> None:
        if "signature=" not in self.path:
            return self.refuse(403, "", "not signed")
        file = self.server.hub.folder / unquote(path.removeprefix("/blob/"))
        self.ranged(file, {"Content-Type": "binary/octet-stream"})

    def ranged(self, path: Path, headers: dict[str, str]) -> None:
        size = path.stat().st_size
        start, stop, status = 0, size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if asked and not self.broken.ignore_range:
            start, stop = int(asked[1]), min(size, int(asked[2] or size) + 1)
            status = 206
            if start >= size:
                headers["Content-Range"] = f"bytes */{size}"
                return self.answer(416, headers, b"")
            stop = max(start, stop - self.broken.short)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        self.answer(status, headers, path, start, stop)

    def refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message, "Content-Type": "application/json"}
        if code:
            headers["X-Error-Code"] = code
        self.answer(status, headers, json.dumps({"error": message}).encode())

    def answer(
        self,
        status: int,
        headers: dict[str, str],
        body: bytes | Path,
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        """Send it as it should be, except for what the fault changes."""
        broken = self.broken
        self.exchange.status = status = broken.status or status
        if broken.body is not None:
            body, start, stop = broken.body, 0, None
        if stop is None:
            stop = len(body) if isinstance(body, bytes) else body.stat().st_size
        merged = {"Content-Length": str(stop - start), **headers, **broken.headers}
        self.send_response(status)
        for name, value in merged.items():
            if value is not None:
                self.send_header(name, value)
        if merged["Content-Length"] is None:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = stop
        if broken.cut_after is not None:
            cut = min(cut, start + broken.cut_after)
        if broken.cut_at is not None:
            cut = min(cut, max(start, broken.cut_at))
        for at in range(start, cut, PIECE):
            self.server.hub.pause(broken.pause)
            end = min(at + PIECE, cut)
            self.wfile.write(_piece(body, at, end))
            self.exchange.sent += end - at
        if cut < stop or broken.cut_after is not None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)


def _piece(body: bytes | Path, start: int, end: int) -> bytes:
    if isinstance(body, bytes):
        return body[start:end]
    with body.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


@contextmanager
def serving(tmp_path: Path) -> Iterator[Hub]:
    """An empty repository, without the user's token, offline mode, proxies and connections.

    ``hub.patch`` changes more until the with block ends.
    """
    (tmp_path / "repository").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            patch.delenv(name, raising=False)
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "*")
        for name in ("HF_TOKEN_PATH", "HF_STORED_TOKENS_PATH"):
            patch.setattr(constants, name, str(tmp_path / name))
        for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
            patch.setattr(constants, name, False)
        # Reading the certificates takes longer than most tests, and nothing here is encrypted.
        patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
        huggingface_hub.close_session()
        with Hub(tmp_path / "repository", patch) as hub:
            yield hub
        huggingface_hub.close_session()


def read(hub: Hub, **arguments: Any) -> Checkpoint:
    """What is served, with short waits."""
    given = {"endpoint": hub.endpoint, "patience": QUICK, **arguments}
    return read_hub(hub.repository, **given)


def refused(hub: Hub, *said: str, **arguments: object) -> str:
    """The error of a reading, whose message has each of some texts in it."""
    with pytest.raises(CheckpointError) as error:
        read(hub, **arguments)
    message = str(error.value)
    for one in said:
        assert one in message, message
    return message


def shards(folder: Path, count: int, tensors: int = 2) -> None:
    """A checkpoint of ``count`` files of some tensors, and its index."""
    folder.mkdir(exist_ok=True)
    placed = {}
    for number in range(1, count + 1):
        name = f"model-{number:05d}-of-{count:05d}.safetensors"
        held = {
            f"layers.{number}.{each}.weight": np.zeros((64, 8 + each), np.float16)
            for each in range(tensors)
        }
        save_file(held, folder / name)
        placed |= dict.fromkeys(held, name)
    forge.write(folder / forge.INDEX, forge.index(placed, total_size=64 * 17 * 2 * count))
    (folder / "config.json").write_text('{"model_type": "kimi_k2"}')


def large(path: Path, data_bytes: int) -> None:
    """A file with one tensor, whose zeros take no space on disk."""
    entry = forge.tensor("U8", [data_bytes], 0, data_bytes)
    forge.sparse(path, {f"{path.stem}.weight": entry}, data_bytes)
