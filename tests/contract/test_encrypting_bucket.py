"""A bucket policy that refuses writes without server-side encryption: every write must request the encryption."""

from __future__ import annotations

import os
from contextlib import closing

import pytest
from between_server import BetweenServer

from local.errors import AccessDenied, InvalidRequest
from local.names import TopicPartition
from remote.gc.pins import list_pins
from remote.keys import partition_prefix
from remote.manifest.commit_protocol import MetadataLog
from remote.segment_entry import PART_BYTES
from remote.store import ranged_source
from remote.store.open_store import open_store
from remote.store.probe import probe_store
from remote.store.s3_options import ObjectSettings
from tiered.cli.errors import Exit
from tiered.cli.main import invoke
from tiered.tables.remote_tables import open_remote

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]
ID = "A" * 22
PREFIX = partition_prefix("orders", ID, 0)
HEADER = "x-amz-server-side-encryption"
CLIENTS = pytest.mark.parametrize("client", ["s3fs", "obstore"])
LARGE = bytes(2 * PART_BYTES + 1)


@pytest.fixture
def server(s3_endpoint):
    """Refuses requests that create an object without the header, like a policy with a Null condition on it."""

    def deny(asked):
        creates = asked.what in ("PUT", "POST uploads") and asked.path.strip("/").count("/") > 0
        return (403, "AccessDenied") if creates and HEADER not in asked.headers else None

    with BetweenServer(s3_endpoint.url, deny) as running:
        yield running


def encryptions(server):
    return {asked.headers[HEADER] for asked in server.requests if HEADER in asked.headers}


@CLIENTS
def test_every_call_that_creates_an_object_requests_encryption(server, s3_bucket, client):
    options = {**server.options(), "client": client}
    with closing(open_store(f"s3://{s3_bucket}", options)) as plain:
        for write in (
            lambda: plain.put("a", b"x"),
            lambda: plain.put_if_absent("a", b"x"),
            lambda: plain.upload("a", ranged_source(1, lambda start, length: b"x")),
            lambda: plain.upload("a", ranged_source(len(LARGE), lambda start, n: LARGE[start : start + n])),
        ):
            with pytest.raises(AccessDenied):
                write()
    for given, objects in (({"sse": "AES256"}, ObjectSettings()), ({}, ObjectSettings(encryption="AES256"))):
        with closing(open_store(f"s3://{s3_bucket}", {**options, **given}, objects=objects)) as store:
            assert repr(store).count("Obstore") == (client == "obstore"), (
                "the encryption option must not change the client"
            )
            store.put("a", b"x")
            store.put_if_absent(f"b{len(given)}", b"x")
            store.upload("c", ranged_source(1, lambda start, length: b"x"))
            store.upload("d", ranged_source(len(LARGE), lambda start, n: LARGE[start : start + n]))
            assert probe_store(store, is_racing=True).allows_writers


@CLIENTS
def test_a_reader_that_creates_a_pin_requests_encryption(server, s3_bucket, client):
    options = {**server.options(), "client": client, "sse": "AES256"}
    with closing(open_store(f"s3://{s3_bucket}", options)) as store:
        MetadataLog(store, PREFIX).become_writer("w", 1, topic="orders", topic_id=ID, partition=0)
    plain = {name: options[name] for name in options if name != "sse"}
    pinned = {"now_ms": 1, "expires_ms": 10, "holder": "me"}
    with open_remote(f"s3://{s3_bucket}", plain) as log, pytest.raises(AccessDenied):
        log.pin(TopicPartition("orders", 0), **pinned)
    with open_remote(f"s3://{s3_bucket}", options) as log:
        log.pin(TopicPartition("orders", 0), **pinned)
        assert len(list_pins(log.store, PREFIX)) == 1


@pytest.mark.parametrize("words", [["-X", "remote.sse=AES256"], []])
def test_commands_with_a_bucket_url_request_encryption(server, s3_bucket, tmp_path, monkeypatch, words):
    url = f"s3://{s3_bucket}/root"
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "loopback")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    option = [] if words else ["--option", "sse=AES256"]
    assert invoke(["init", str(tmp_path / "a"), "--remote", url]) == Exit.FAILED
    assert invoke([*words, "init", str(tmp_path / "b"), "--remote", url, *option]) == 0
    assert encryptions(server) == {"AES256"}


def test_an_invalid_encryption_option_is_refused():
    for options, told in (
        ({"sse": "rot13"}, "unknown encryption"),
        ({"sse_kms_key_id": "k"}, "unknown encryption"),
        ({"sse": "AES256", "sse_kms_key_id": "k"}, "a KMS key needs"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            open_store("s3://bucket", options)
