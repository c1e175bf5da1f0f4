"""Uploads beyond the common store contract: memory, faults and retries of parts; the meaning of s3fs's options."""

from __future__ import annotations

import random
import re
import socket
import threading
from contextlib import closing
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from local.errors import AccessDenied, Corrupt, Unavailable
from remote.segment_entry import PART_BYTES
from remote.store import UploadSource
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from remote.store.obstore_s3_store import UPLOAD_PARTS
from remote.store.open_store import open_store
from remote.store.s3_options import _credentials, settings
from remote.store.s3_store import READ_BYTES

PART = bytes(PART_BYTES)
REGION = {"client_kwargs": {"region_name": "eu-central-1"}}
VIRTUAL = {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}
KEYS = {"key": "the-key", "secret": "hunter2"}


CUT = 0  # instead of a status: the connection ends without an answer
CUT_EARLY = -1  # the connection ends before the part has arrived


class UploadServer:
    """A server for multipart uploads. `answer(number)` returns the status of each part's PUT, or CUT, and may block.

    `parts` has the number of each arrived PUT, `bodies` the last answered body of each part.
    """

    def __init__(self, answer):
        self.parts, self.calls, self.bodies, self.named = [], [], {}, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self):
                number = int(parse_qs(urlsplit(self.path).query)["partNumber"][0])
                outer.parts.append(number)
                status = answer(number)
                if status == CUT_EARLY:
                    self._cut()
                    return
                body = self._take()
                if status == CUT or len(body) < int(self.headers["Content-Length"]):
                    self._cut()
                    return
                if status == 200:
                    outer.bodies[number] = body
                self._say(status, b"", ETag=f"of-{number}")

            def do_POST(self):
                body = self._take().decode()
                outer.named += [int(each) for each in re.findall(r"<PartNumber>(\d+)</PartNumber>", body)]
                begins = "uploads" in parse_qs(urlsplit(self.path).query, keep_blank_values=True)
                outer.calls.append("begin" if begins else "complete")
                kind = "Initiate" if begins else "Complete"
                name = f"{kind}MultipartUploadResult"
                self._say(200, f"<{name}><UploadId>u</UploadId><ETag>x</ETag></{name}>".encode())

            def do_DELETE(self):
                outer.calls.append("abort")
                self._say(204, b"")

            def _take(self):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))

            def _cut(self):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            def _say(self, status, body, **headers):
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_): ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def store(self, policy, client="obstore"):
        options = {
            "endpoint_url": f"http://127.0.0.1:{self._server.server_port}",
            "client": client,
            **KEYS,
            **REGION,
        }
        return closing(open_store("s3://bucket/x", options, policy=policy))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.mark.server
def test_an_upload_holds_the_parts_in_flight_and_one_more():
    given, answered, ahead, lock = [], [], [], threading.Lock()
    all_in_flight = threading.Barrier(UPLOAD_PARTS)

    def answer(number):
        if number <= UPLOAD_PARTS:
            all_in_flight.wait(60)  # no part is answered before all parts that may be in flight have arrived
        with lock:
            answered.append(number)
        return 200

    def parts():
        for number in range(12):
            with lock:
                given.append(number)
                ahead.append(len(given) - len(answered))
            yield PART

    with UploadServer(answer) as server, server.store(RetryPolicy(attempts_max=1)) as store:
        store.upload("big", UploadSource(parts=parts))
        assert server.calls == ["begin", "complete"]
    assert sorted(answered) == list(range(1, 13))
    assert max(ahead) <= UPLOAD_PARTS + 1


@pytest.mark.server
@pytest.mark.parametrize(("failures", "tries"), [(1, 2), (2, 3), (3, 3)])
def test_a_failed_part_is_sent_again_alone_within_the_retry_policy(failures, tries):
    left = {2: failures}

    def answer(number):
        left[number] = left.get(number, 0) - 1
        return 503 if left[number] >= 0 else 200

    policy = RetryPolicy(attempts_max=3, wait_first_s=0.001, wait_max_s=0.001)
    with UploadServer(answer) as server, server.store(policy) as store:
        source = UploadSource(parts=lambda: iter([PART, PART, b"end"]))
        if failures < policy.attempts_max:
            store.upload("big", source)
            assert server.calls == ["begin", "complete"]
        else:
            with pytest.raises(Unavailable, match=r"the store is busy or has an internal error.*attempts=3$"):
                store.upload("big", source)
            assert server.calls == ["begin", "abort"], "the whole upload must not start again"
        assert server.parts.count(2) == tries


# --- parts that are read again ----------------------------------------------------------------------------------------

PATIENT = RetryPolicy(attempts_max=3, wait_first_s=0.001, wait_max_s=0.001)
BODY = random.Random(5).randbytes(5 * READ_BYTES + 77)  # three parts: two of 2 MiB, and the rest


def joined_source(body, given_bytes, part_bytes, read_again=None):
    """`body` in parts of `given_bytes`, sent as parts of `part_bytes` that are read again."""

    def read(start, length):
        return memoryview(body)[start : start + length]

    def parts():
        return (read(at, given_bytes) for at in range(0, len(body), given_bytes))

    return UploadSource(parts=parts, part_bytes=part_bytes, read_again=read_again or read)


@pytest.mark.server
@pytest.mark.parametrize("client", ["obstore", "s3fs"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("fault", [CUT_EARLY, CUT, 503])
def test_a_part_that_is_read_again_survives_a_fault_before_and_after_it(client, number, fault):
    faults = {number: [fault]}
    with UploadServer(lambda part: (faults.get(part) or [200]).pop()) as server, server.store(PATIENT, client) as store:
        store.upload("big", joined_source(BODY, READ_BYTES, 2 * READ_BYTES))
    assert (server.calls, server.named) == (["begin", "complete"], [1, 2, 3])
    assert sorted(server.parts) == sorted([1, 2, 3, number]), "only the failed part is sent again"
    assert b"".join(server.bodies[each] for each in (1, 2, 3)) == BODY


@pytest.mark.server
@pytest.mark.parametrize("client", ["obstore", "s3fs"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("fault", [CUT_EARLY, CUT])
def test_an_upload_whose_part_is_always_cut_is_aborted(client, number, fault):
    with (
        UploadServer(lambda part: fault if part == number else 200) as server,
        server.store(PATIENT, client) as store,
        pytest.raises(Unavailable, match=r"cannot upload a part.*attempts=3"),
    ):
        store.upload("big", joined_source(BODY, READ_BYTES, 2 * READ_BYTES))
    assert server.calls == ["begin", "abort"]


@pytest.mark.server
@pytest.mark.parametrize("client", ["obstore", "s3fs"])
def test_a_part_that_cannot_be_read_while_it_is_sent_aborts_the_upload(client):
    """The first read of the part, which signs it, succeeds; the file is truncated before the second one."""
    reads = []

    def read_again(start, length):
        reads.append(start)
        if start == 2 * READ_BYTES and reads.count(start) > 1:
            raise Corrupt("reading a segment again", at=start)
        return memoryview(BODY)[start : start + length]

    with (
        UploadServer(lambda part: 200) as server,
        server.store(PATIENT, client) as store,
        pytest.raises(Corrupt, match="reading a segment again"),
    ):
        store.upload("big", joined_source(BODY, READ_BYTES, 2 * READ_BYTES, read_again))
    assert server.calls == ["begin", "abort"]
    assert 2 not in server.bodies


@pytest.mark.server
@pytest.mark.parametrize("client", ["obstore", "s3fs"])
def test_a_part_that_is_read_again_is_never_held_whole(client):
    lengths = []

    def read_again(start, length):
        lengths.append(length)
        return memoryview(BODY)[start : start + length]

    with UploadServer(lambda part: 200) as server, server.store(PATIENT, client) as store:
        store.upload("big", joined_source(BODY, READ_BYTES, 4 * READ_BYTES, read_again))
    assert server.named == [1, 2]
    assert max(lengths) <= READ_BYTES


@pytest.mark.server
@pytest.mark.parametrize("is_read_again", [True, False])
@pytest.mark.parametrize("client", ["obstore", "s3fs"])
def test_an_upload_of_more_than_100_parts_has_them_in_order(client, is_read_again):
    body = random.Random(6).randbytes(123 * 1000 + 1)
    source = joined_source(body, 500 if is_read_again else 1000, 1000)
    with UploadServer(lambda part: 200) as server, server.store(PATIENT, client) as store:
        store.upload("big", source if is_read_again else UploadSource(parts=source.parts))
    assert server.named == list(range(1, 125))
    assert b"".join(server.bodies[each] for each in server.named) == body


@pytest.mark.parametrize(
    ("bucket", "options", "endpoint", "is_virtual"),
    [
        ("logs", REGION, "https://logs.s3.eu-central-1.amazonaws.com", True),
        ("logs.of.mine", REGION, "https://s3.eu-central-1.amazonaws.com", False),
        ("logs", {**REGION, "config_kwargs": {"s3": {"addressing_style": "path"}}},
         "https://s3.eu-central-1.amazonaws.com", False),
        ("logs", {**REGION, "endpoint_url": "http://127.0.0.1:9"}, "http://127.0.0.1:9", False),
        ("logs", {**REGION, "endpoint_url": "http://s3.local:9", **VIRTUAL},
         "http://logs.s3.local:9", True),
    ],
)  # fmt: skip
def test_obstore_uses_the_same_endpoint_as_botocore(bucket, options, endpoint, is_virtual):
    found = settings(bucket, {**KEYS, **options})
    assert (found.endpoint, found.config["endpoint"]) == (endpoint, endpoint)
    assert found.config["virtual_hosted_style_request"] is is_virtual
    assert found.config["region"] == "eu-central-1"
    assert found.config["client_options"]["allow_http"] is endpoint.startswith("http://")
    assert "hunter2" not in repr(found)


def test_credentials_are_found_in_the_same_places_as_by_botocore(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text("[logs]\naws_access_key_id = of-the-file\naws_secret_access_key = hunter2\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AccessDenied, match="no credentials"):
        settings("logs", REGION)
    told = settings("logs", {**REGION, "profile": "logs"}).config["credential_provider"]()
    assert told == {
        "access_key_id": "of-the-file", "secret_access_key": "hunter2", "token": None, "expires_at": None,
    }  # fmt: skip
    assert settings("logs", {**REGION, "anon": True}).config["skip_signature"] is True
    assert settings("logs", {**REGION, **KEYS, "token": "t"}).config["session_token"] == "t"


def test_expiring_credentials_are_requested_again_before_they_expire():
    frozen = SimpleNamespace(access_key="a", secret_key="b", token="c")
    ending = SimpleNamespace(get_frozen_credentials=lambda: frozen, refresh_needed=lambda: True)
    session = SimpleNamespace(get_credentials=lambda: ending)
    expires = _credentials(session, {})["credential_provider"]()["expires_at"]
    assert 0 < (expires - datetime.now(UTC)).total_seconds() <= 600
