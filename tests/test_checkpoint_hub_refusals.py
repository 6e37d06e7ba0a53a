"""A hub that refuses, lacks files, or lies: an error that says what to do, and no partial count."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hub_server import Fault, read, refused, shards
from safetensors.numpy import save_file

from latentkv.checkpoint import CheckpointError
from latentkv.checkpoint.local import read_local

INDEX = "model.safetensors.index.json"
LAST = "model-00003-of-00003.safetensors"


# Refusals


@pytest.mark.parametrize(
    ("denial", "said"),
    [
        ((401, "", "Invalid username or password."), "no such repository, or a private one"),
        ((401, "RepoNotFound", "Repository not found"), "hf auth login"),
        ((404, "RepoNotFound", "Repository not found"), "Check the name 'owner/name'"),
        ((404, "", ""), "HF_TOKEN"),
        ((401, "GatedRepo", "Access is restricted."), "is gated"),
        ((403, "GatedRepo", "You are not in the authorized list."), "Accept its terms at http://"),
        ((401, "", "Invalid credentials in Authorization header"), "the token is refused"),
        ((403, "", "Forbidden"), "access is refused"),
        ((410, "", "Access to this resource is disabled."), "is disabled"),
        ((400, "", ""), "answered 400"),
        ((418, "", "\x1b[31mteapot"), "answered 418"),
    ],
)
def test_a_refusal_says_what_to_do_and_is_not_repeated(hub, denial, said):
    hub.token, hub.denial = "hf_secret", denial
    message = refused(hub, said, f"answered {denial[0]}", "owner/name")
    assert "\x1b" not in message
    assert len(hub.log) == 1


def test_with_a_token_that_may_not_read_it_the_error_speaks_of_its_account(hub):
    hub.token, hub.denial = "hf_secret", (404, "RepoNotFound", "Repository not found")
    assert "hf_other" not in refused(hub, "that the token's account may read it", token="hf_other")


def test_files_may_be_gated_where_the_list_is_not(hub):
    denied = {"X-Error-Code": "GatedRepo", "X-Error-Message": "restricted"}
    hub.faults = [Fault("/resolve/", status=403, headers=denied)]
    refused(hub, "owner/name is gated", "config.json", f"{hub.endpoint}/owner/name")


def test_an_unknown_revision_is_named(hub):
    refused(hub, "no revision 'v9'", "/commits", revision="v9")


def test_a_first_failure_ends_the_reading(bare):
    shards(bare.folder, 60)
    bare.faults = [
        Fault("/blob/model-00001", status=404, body=b""),
        Fault("/blob/", pause=0.02),
    ]
    done = []
    refused(bare, "model-00001-of-00060", progress=lambda *one: done.append(one[:2]))
    assert (60, 60) not in done
    assert len(bare.exchanges("/blob/")) < 30


# What a repository lacks


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "no file at all"),
        (["README.md"], "no .safetensors file and no model.safetensors.index.json"),
        (["pytorch_model.bin", "config.json"], "pickle files, 'pytorch_model.bin'"),
        (["K2-Q4_K_M.gguf"], "GGUF files only"),
        (["unet/model.safetensors"], "in subfolders only"),
        (["a-00001-of-00002.safetensors"], "lacks 1 of the 2 files"),
        (["a-00001-of-00001.safetensors", "b.safetensors"], "more than one checkpoint"),
        (["a.safetensors.index.json", "b.safetensors.index.json"], "2 indices"),
    ],
)
def test_a_repository_without_one_checkpoint_says_what_it_has(bare, names, said):
    for name in names:
        (bare.folder / name).parent.mkdir(exist_ok=True)
        (bare.folder / name).write_text("{}")
    refused(bare, "owner/name@0123456789ab", said)


def test_an_index_that_names_absent_files_is_refused(hub):
    (hub.folder / LAST).unlink()
    refused(hub, f"lacks 1 of the 3 files that {INDEX} names: '{LAST}'")
    assert not hub.exchanges("/blob/")


def test_a_file_that_is_listed_and_absent_is_refused(hub):
    hub.listed = {LAST: (hub.folder / LAST).stat().st_size}
    (hub.folder / LAST).unlink()
    refused(hub, LAST, "lists this file and doesn't have it")


@pytest.mark.parametrize("target", ["../other/x.safetensors", "/x.safetensors", "http://h/x"])
def test_an_index_that_leaves_its_repository_is_refused(hub, target):
    (hub.folder / INDEX).write_text(json.dumps({"weight_map": {"a": target}}))
    refused(hub, f"owner/name@0123456789ab/{INDEX}", "tensor 'a'")
    assert not hub.exchanges("/blob/") and not hub.exchanges("other")


# Lies


@pytest.mark.parametrize(
    "said",
    [None, "", "bytes 1-300/{}", "bytes 0-300/7", "bytes 0-99999999/{}", "bytes 9-5/{}", "0-300"]
    + ["bytes */{}", "bytes 0-300/{0}, 0-300/{0}", "bytes 0--1/{}", "items 0-300/{}"],
)
def test_another_range_than_asked_for_is_refused(hub, said):
    size = (hub.folder / LAST).stat().st_size
    header = said and said.format(size)
    hub.faults = [Fault(f"/blob/{LAST}", headers={"Content-Range": header})]
    refused(hub, LAST, "Content-Range" if said != "bytes 0-300/7" else "comes with 7 bytes")


@pytest.mark.parametrize("listed", [8, 10_000_000])
@pytest.mark.parametrize("whole", [False, True], ids=["range", "whole"])
def test_a_listed_size_that_is_not_true_is_refused(hub, listed, whole):
    hub.listed = {LAST: listed}
    hub.faults = [Fault(f"/blob/{LAST}", ignore_range=whole)]
    size = (hub.folder / LAST).stat().st_size
    refused(hub, LAST, f"comes with {size:,} bytes, where the repository lists {listed:,}")


def test_a_file_shorter_than_asked_for_is_refused(hub):
    hub.faults = [Fault(f"/blob/{LAST}", status=416, body=b"")]
    refused(hub, LAST, "shorter than the repository lists")


def test_more_than_announced_is_refused(hub):
    size = (hub.folder / LAST).stat().st_size
    said = {"Content-Range": f"bytes 0-{size - 1}/{size}", "Content-Length": None}
    hub.faults = [Fault(f"/blob/{LAST}", body=bytes(1_000_000), headers=said)]
    refused(hub, LAST, "sent more than bytes")


def test_a_size_that_nobody_says_is_refused(hub):
    hub.listed = {LAST: None}
    hub.faults = [Fault(f"/blob/{LAST}", ignore_range=True, headers={"Content-Length": None})]
    refused(hub, LAST, "how large it is")


@pytest.mark.parametrize("name", ["config.json", INDEX, f"/blob/{LAST}"])
def test_a_compressed_answer_is_refused(hub, name):
    hub.faults = [Fault(name, headers={"Content-Encoding": "gzip"})]
    refused(hub, name.rpartition("/")[2], "'gzip'", "plain bytes")


def test_every_request_asks_for_plain_bytes(hub):
    read(hub)
    sent = [{name.lower(): value for name, value in one.headers.items()} for one in hub.log]
    assert {one["accept-encoding"] for one in sent} == {"identity"}


@pytest.mark.parametrize("on", ["/api/", "config.json", INDEX, f"/blob/{LAST}"])
@pytest.mark.parametrize("status", [200, 206])
def test_a_web_page_in_place_of_a_file_is_refused(hub, on, status):
    page = {"Content-Type": "text/html; charset=utf-8"}
    hub.faults = [Fault(on, status=status, body=b"<html>Log in</html>", headers=page)]
    refused(hub, on.rpartition("/")[2], "HTML page", "kimi-k3")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is empty"),
        (b"<html>Log in</html>", "a web page"),
        (b'{"sha": ', "is not JSON"),
        (b"[]", "is a list"),
        (b"null", "is null"),
        (b"{}", "its sha is None"),
        (b'{"sha": "main", "siblings": []}', "its sha is 'main'"),
        (b'{"sha": "%s"}' % (b"0" * 40), "its siblings are None"),
        (b'{"sha": "%s", "siblings": [7]}' % (b"0" * 40), "siblings have 7"),
        (b'{"sha": "%s", "siblings": [{"rfilename": 7}]}' % (b"0" * 40), "'rfilename': 7"),
        (
            b'{"sha": "%s", "siblings": [{"rfilename": "a", "size": -1}]}' % (b"0" * 40),
            "'size': -1",
        ),
    ],
)
def test_an_answer_that_is_not_a_hubs_is_refused(hub, body, said):
    hub.faults = [Fault("/api/", body=body)]
    refused(hub, f"{hub.endpoint}/api/models/owner/name/revision/main", said)


@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize(("body", "said"), [(b"", "empty"), (b"{", "not JSON"), (b"[]", "a list")])
def test_a_configuration_or_index_that_is_no_object_is_refused(hub, name, body, said):
    (hub.folder / name).write_bytes(body)
    refused(hub, f"owner/name@0123456789ab/{name}", said)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"", "has 0 bytes"),
        (b"\x10\0\0", "has 3 bytes"),
        (b"\xff" * 8, "the format allows 100,000,000"),
        ((99_999_999).to_bytes(8, "little"), "is truncated"),
        (b"\x02\0\0\0\0\0\0\0[]", "begins with"),
        (b"version https://git-lfs.github.com/spec/v1", "git-lfs pointer"),
        (b"\x02\0\0\0\0\0\0\0{}tail", "4 bytes follow"),
    ],
)
def test_a_damaged_header_is_refused_as_on_disk(hub, start, said):
    (hub.folder / LAST).write_bytes(start)
    assert refused(hub, LAST, said).replace("owner/name@0123456789ab", str(hub.folder)) == str(
        pytest.raises(CheckpointError, read_local, hub.folder).value
    )


def test_an_enormous_configuration_is_not_read(hub):
    hub.listed = {"config.json": 1 << 40}
    refused(hub, "config.json", "1,099,511,627,776 bytes", "at most")
    hub.listed = {"config.json": None}
    hub.faults = [Fault("/resolve/", body=bytes(32 << 20))]
    refused(hub, "config.json", "over 8,388,608 bytes")
    assert hub.sent("config.json") < 24 << 20


def test_a_tensor_in_two_files_is_refused(bare):
    for name in ("a", "b"):
        save_file({"w": np.zeros(1)}, bare.folder / f"{name}.safetensors")
    refused(bare, "'a.safetensors' and 'b.safetensors' both hold tensor 'w'")
