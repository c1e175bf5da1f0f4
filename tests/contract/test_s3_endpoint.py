"""The S3 server on loopback: it chooses a free port and always ends with its parent process."""

from __future__ import annotations

import importlib.util
import io
import os
import select
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from local.errors import InvalidRequest, NotFound
from remote.segment_entry import PART_BYTES
from remote.store import ranged_source
from remote.store.open_store import open_store
from remote.store.s3_options import ObjectSettings
from tiered.demo.s3_endpoint import OneChangeAtATime, S3Endpoint

ROOT = Path(__file__).parents[2]
PARENT = """
import sys
from tiered.demo.s3_endpoint import S3Endpoint
endpoint = S3Endpoint()
endpoint.start()
print(endpoint._child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.server
def test_two_servers_run_at_the_same_time_with_separate_buckets(s3_endpoint):
    with S3Endpoint() as other:
        assert other.url != s3_endpoint.url
        other.create_bucket("only-here")
        other.create_bucket("only-here")
        for endpoint, found in ((other, True), (s3_endpoint, False)):
            store = open_store("s3://only-here", endpoint.options())
            if found:
                store.put("a", b"x")
            else:
                with pytest.raises(NotFound):
                    store.get("a")
            store.close()
        child = other._child
    assert child.poll() is not None
    other.stop()


def test_only_requests_that_change_objects_hold_the_lock_and_after_the_body_was_read():
    seen = []

    class Body(io.BytesIO):
        def read(self, size=-1):
            seen.append(("body", changes.lock.locked()))
            return super().read(size)

    def application(environ, _start_response):
        seen.append((environ["REQUEST_METHOD"], changes.lock.locked()))
        return [environ["wsgi.input"].getvalue()]

    changes = OneChangeAtATime(application)
    for method in ("GET", "HEAD", "DELETE"):
        changes({"REQUEST_METHOD": method, "wsgi.input": io.BytesIO()}, None)
    for method in ("PUT", "POST"):
        environ = {"REQUEST_METHOD": method, "CONTENT_LENGTH": "5", "wsgi.input": Body(b"whole and more")}
        assert changes(environ, None) == [b"whole"]
    assert not changes.lock.locked()
    assert seen == [
        ("GET", False),
        ("HEAD", False),
        ("DELETE", True),
        ("body", False),
        ("PUT", True),
        ("body", False),
        ("POST", True),
    ]


@pytest.mark.server
def test_an_invalid_bucket_name_is_refused_and_named(s3_endpoint):
    with pytest.raises(InvalidRequest, match=r"cannot create a bucket, the request was refused: bucket=x "):
        s3_endpoint.create_bucket("x")


@pytest.mark.server
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_its_parent_process(end):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with parent:
        child = int(parent.stdout.readline())
        watch = os.pidfd_open(child)
        parent.send_signal(end)
        parent.wait(60)
        ready, _, _ = select.select([watch], [], [], 60)  # readable when the process has ended
        os.close(watch)
    assert ready


def test_without_moto_the_error_names_the_install_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"library=moto install=pip install 'tiered\[demo\]'$"):
        S3Endpoint()


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
@pytest.mark.parametrize("size_bytes", [1000, 2 * PART_BYTES + 1])
def test_objects_get_the_storage_class_and_the_encryption_of_the_settings(s3_endpoint, s3_bucket, size_bytes, client):
    objects = ObjectSettings(storage_class="STANDARD_IA", encryption="aws:kms", kms_key_id="the-key")
    options = {**s3_endpoint.options(), "client": client}
    with closing(open_store(f"s3://{s3_bucket}", options, objects=objects)) as store:
        store.upload("segment", ranged_source(size_bytes, lambda start, length: bytes(length)))
        store.put("indexes", b"x")
        store.put_if_absent("head", b"x")
        seen = {key: store._inner._inner._call("looking", "head_object", key) for key in ("segment", "indexes", "head")}
    assert {key: each.get("StorageClass", "STANDARD") for key, each in seen.items()} == {
        "segment": "STANDARD_IA",
        "indexes": "STANDARD",
        "head": "STANDARD",
    }
    for each in seen.values():
        assert (each["ServerSideEncryption"], each["SSEKMSKeyId"]) == ("aws:kms", "the-key")
