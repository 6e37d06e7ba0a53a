"""A hub that fails or drops the line: all of a repository is read in the end, or an error comes."""

from __future__ import annotations

import dataclasses
import re
import socket
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from hub_server import PIECE, QUICK, Fault, Hub, large, read, refused

from latentkv.checkpoint import CheckpointError
from latentkv.checkpoint.answers import redirected
from latentkv.checkpoint.local import read_local

INDEX = "model.safetensors.index.json"
LAST = "model-00003-of-00003.safetensors"


def ranges(hub: Hub, on: str) -> list[str]:
    server = "cdn" if on.endswith(".safetensors") else "hub"
    return [one.headers["range"] for one in hub.exchanges(on, server)]


def ends(folder: Path) -> tuple[int, int]:
    """The last bytes of the third file's header, and of that file."""
    raw = (folder / LAST).read_bytes()
    return 7 + int.from_bytes(raw[:8], "little"), len(raw) - 1


# Dropped connections


@pytest.mark.parametrize("name", ["config.json", INDEX, LAST])
@pytest.mark.parametrize("byte", [0, 7, 20])
def test_a_dropped_connection_goes_on_at_the_byte_reached(hub, name, byte):
    # The redirect has the file's name, too, and is not cut.
    hub.faults = [Fault(f"/blob/{LAST}" if name == LAST else name, times=1, cut_at=byte)]
    assert read(hub).tensors == read_local(hub.folder).tensors
    first, second = ranges(hub, name)
    end = first.removeprefix("bytes=0-")
    if name == LAST and byte >= 8:  # then it's known how long the header is
        assert end == str(ends(hub.folder)[1])
        end = ends(hub.folder)[0]
    assert second == f"bytes={byte}-{end}"
    for other in {"config.json", INDEX, "model-00001-of-00003.safetensors"} - {name}:
        assert len(ranges(hub, other)) == 1


def test_the_list_of_files_is_asked_for_again_when_its_connection_drops(hub):
    hub.faults = [Fault("/api/", times=2, cut_after=9)]
    assert read(hub).tensors == read_local(hub.folder).tensors
    assert len(hub.exchanges("/api/")) == 3


@pytest.mark.parametrize(("name", "byte"), [("config.json", 3), (INDEX, 100), (LAST, 1_000)])
def test_a_line_that_drops_again_and_again_is_an_error_with_file_and_byte(hub, name, byte):
    hub.faults = [Fault(f"/blob/{name}" if name == LAST else name, cut_at=byte)]
    refused(hub, f"owner/name@0123456789ab/{name}", f"at byte {byte:,} after 5 tries", "127.0.0.1")
    assert len(ranges(hub, name)) == 1 + 5  # one that gains, five that don't


def test_a_line_that_drops_but_gains_is_not_given_up(hub):
    hub.faults = [Fault(f"/blob/{LAST}", cut_after=400)]  # of 5,000 or so
    assert read(hub).tensors == read_local(hub.folder).tensors
    assert len(ranges(hub, LAST)) > 2 * QUICK.tries


def test_ranges_shorter_than_asked_are_put_together_without_a_wait(hub):
    header, last = ends(hub.folder)
    hub.faults = [
        Fault(f"/blob/{LAST}", short=last - 299, times=1),
        Fault(f"/blob/{LAST}", short=header - 2_999, times=1),
    ]
    at_once = dataclasses.replace(QUICK, pause=60.0, whole=30.0)
    assert read(hub, patience=at_once).tensors == read_local(hub.folder).tensors
    assert ranges(hub, LAST) == [
        f"bytes=0-{last}",
        f"bytes=300-{header}",
        f"bytes=3000-{header}",
    ]


def test_a_hub_that_ignores_ranges_is_resumed_by_reading_over(hub):
    hub.faults = [
        Fault(f"/blob/{LAST}", ignore_range=True, cut_at=500, times=1),
        Fault(f"/blob/{LAST}", ignore_range=True),
    ]
    assert read(hub).tensors == read_local(hub.folder).tensors
    assert len(ranges(hub, LAST)) == 2


def test_a_silent_hub_is_given_up(hub):
    patience = dataclasses.replace(QUICK, silence=0.1, tries=2)
    hub.faults = [Fault(f"/blob/{LAST}", pause=1.0)]
    refused(hub, LAST, "ReadTimeout", "at byte 0 after 2 tries", patience=patience)


@pytest.mark.parametrize("on", ["/api/", INDEX])
def test_a_dripping_hub_is_given_up(hub, on):
    patience = dataclasses.replace(QUICK, whole=0.3)
    (hub.folder / INDEX).write_bytes((hub.folder / INDEX).read_bytes() + b" " * 500_000)
    hub.faults = [Fault(on, pause=0.05, body=b" " * 500_000 if on == "/api/" else None)]
    refused(hub, "not read within 0 s", "stopped at byte", patience=patience)


# Answers that another try betters


@pytest.mark.parametrize(
    ("on", "status"),
    [("config.json", status) for status in (408, 429, 500, 502, 503, 504)]
    + [("/api/", 503), (f"/resolve/0123456789abcdef0123456789abcdef01234567/{LAST}", 500)]
    + [(f"/blob/{LAST}", 503)],
)
def test_a_passing_failure_is_asked_again(hub, on, status):
    hub.faults = [Fault(on, times=2, status=status, body=b"busy")]
    assert read(hub).tensors == read_local(hub.folder).tensors
    assert [one.status for one in hub.exchanges(on)].count(status) == 2


def test_a_lasting_failure_is_an_error(hub):
    hub.faults = [Fault("/api/", status=500, body=b"{}")]
    refused(hub, f"{hub.endpoint}/api/models/owner/name", "answered 500", "after 5 tries")
    assert len(hub.exchanges()) == 5


@pytest.mark.parametrize("status", [429, 503])
def test_a_wait_that_the_hub_asks_for_is_kept(hub, status):
    hub.faults = [Fault("config.json", times=1, status=status, headers={"Retry-After": "1"})]
    begun = time.monotonic()
    assert read(hub).tensors == read_local(hub.folder).tensors
    assert time.monotonic() - begun >= 1


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "3600"},
        {"Retry-After": "in an hour"},
        {"RateLimit": '"api";r=0;t=3600'},
    ],
    ids=["seconds", "date", "limit"],
)
def test_a_wait_that_is_too_long_is_told(hub, headers):
    if headers.get("Retry-After") == "in an hour":  # of when the test runs, not of its collection
        headers = {"Retry-After": formatdate(time.time() + 3600, usegmt=True)}
    hub.faults = [Fault("config.json", status=429, headers=headers)]
    message = refused(hub, "config.json", "answered 429", "HF_TOKEN")
    assert re.search(r"asks to wait 3,(600|5\d\d) s", message)
    assert len(hub.exchanges("config.json")) == 1


def test_what_is_no_time_to_wait_is_not_waited(hub):
    hub.faults = [Fault("config.json", times=1, status=429, headers={"Retry-After": "soon"})]
    assert read(hub).tensors == read_local(hub.folder).tensors


def test_a_failure_breaks_off_the_files_at_work(hub):
    hub.faults = [Fault(f"/blob/{LAST}", status=404, body=b""), Fault("/blob/", pause=0.15)]
    refused(hub, LAST, "127.0.0.1, where the hub sends readers for it, answered 404")
    # 13 pieces each, 2 s: what was broken off was not sent to its end
    assert hub.sent("/blob/") < 2 * 13 * PIECE


# No way to the hub


def test_a_hub_that_is_not_there_is_told_at_once(hub):
    with socket.socket() as taken:  # bound and not listening: a port that refuses
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        refused(hub, f"no connection to {nowhere}", "HF_ENDPOINT", "kimi-k3", endpoint=nowhere)


def test_a_name_that_is_not_found_is_told_at_once(hub):
    def lost(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    hub.patch.setattr(socket, "getaddrinfo", lost)
    refused(hub, "no connection to http://hub.invalid", "not known", endpoint="http://hub.invalid")


def test_a_cdn_that_is_not_there_is_named(hub):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}/blob"
        hub.faults = [Fault("/resolve/", headers={"Location": nowhere}, status=302)]
        refused(hub, "config.json", "ConnectError", "127.0.0.1", "after 5 tries")


def test_offline_mode_is_respected(hub):
    from huggingface_hub import constants

    hub.patch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(hub, "HF_HUB_OFFLINE is set", "kimi-k3")
    assert not hub.log


@pytest.mark.parametrize("location", [None, "", "file:///etc/passwd", "http://u:p@h/"])
def test_a_redirect_to_no_address_is_refused(hub, location):
    hub.faults = [Fault(LAST, status=302, headers={"Location": location})]
    refused(hub, LAST, "Check HF_ENDPOINT")


def test_redirects_without_end_are_refused(hub):
    hub.faults = [Fault("config.json", status=307, headers={"Location": "config.json"})]
    refused(hub, "config.json", "more than 5 redirects")
    assert len(hub.exchanges("config.json")) == 6


def test_a_redirect_without_end_to_its_body_is_not_read(bare):
    large(bare.folder / "model.safetensors", 64 << 20)
    blob = f"{bare.cdn}/blob/model.safetensors?signature=abc"
    bare.faults = [Fault("/resolve/", status=302, headers={"Location": blob}, body=bytes(32 << 20))]
    assert len(read(bare).tensors) == 1
    assert bare.sent("/resolve/") < 8 << 20


def test_a_redirect_never_leaves_https():
    assert redirected("https://h/a", "/b?c", "f") == "https://h/b?c"
    assert redirected("http://h/a", "https://g/b", "f") == "https://g/b"
    with pytest.raises(CheckpointError, match="https must stay https"):
        redirected("https://h/a", "http://h/b", "f")


@pytest.mark.parametrize(
    ("here", "there", "followed"),
    [
        ("https://huggingface.co/a", "https://cdn.example.com/b", True),
        ("https://huggingface.co/a", "https://169.254.169.254/latest", False),
        ("https://huggingface.co/a", "https://127.0.0.1/b", False),
        ("https://huggingface.co/a", "https://[::1]/b", False),
        ("https://huggingface.co/a", "https://10.0.0.1/b", False),
        ("https://huggingface.co/a", "https://localhost/b", False),
        ("http://127.0.0.1:1/a", "http://127.0.0.1:2/b", True),
        ("http://localhost:1/a", "http://10.0.0.1/b", True),
    ],
)
def test_a_public_hub_leads_to_no_private_address(here, there, followed):
    if followed:
        assert redirected(here, there, "f") == there
    else:
        with pytest.raises(CheckpointError, match="a public hub lead to no private address"):
            redirected(here, there, "f")
