"""Unfinished uploads on an S3 server: listed by key, measured and aborted. Completed objects do not change."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

import boto3
import pytest
from between_server import BetweenServer

from local.errors import InvalidRequest, NotFound, Unavailable
from remote.store.middleware.deadlines_and_retries import Deadlines, RetryPolicy
from remote.store.unfinished_uploads import UnfinishedUploads

pytestmark = pytest.mark.timeout(60)
PART = b"p" * (5 << 20)
BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def client(s3_endpoint):
    options = s3_endpoint.options()
    login = {"aws_access_key_id": options["key"], "aws_secret_access_key": options["secret"]}
    return boto3.client("s3", endpoint_url=s3_endpoint.url, region_name="us-east-1", **login)


def _begin(client, bucket, key, parts=1):
    upload_id = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    for number in range(1, parts + 1):
        client.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=PART)
    return upload_id


def test_unfinished_uploads_below_the_root_are_listed_measured_and_aborted(s3_endpoint, s3_bucket, client):
    mine = _begin(client, s3_bucket, "root/t/0/data/a.log", 2)
    _begin(client, s3_bucket, "root/t/1/data/b.log")
    _begin(client, s3_bucket, "elsewhere/c.log")
    client.put_object(Bucket=s3_bucket, Key="root/t/0/data/a.log", Body=b"an object")
    uploads = UnfinishedUploads(f"s3://{s3_bucket}/root", s3_endpoint.options())
    assert [each.key for each in uploads.list()] == ["t/0/data/a.log", "t/1/data/b.log"]
    (found,) = uploads.list("t/0/")
    assert (found.upload_id, uploads.size_bytes(found)) == (mine, 2 * len(PART))
    assert found.begun_ms > 1_000_000_000_000  # moto reports 2010
    uploads.abort(found)
    uploads.abort(found)
    assert uploads.size_bytes(found) == 0
    assert uploads.list("t/0/") == []
    assert client.get_object(Bucket=s3_bucket, Key="root/t/0/data/a.log")["Body"].read() == b"an object"
    assert len(uploads.list()) == 1


def test_a_missing_bucket_raises_not_found_and_other_stores_are_refused(s3_endpoint):
    with pytest.raises(NotFound):
        UnfinishedUploads("s3://no-such-bucket-here", s3_endpoint.options()).list()
    with pytest.raises(InvalidRequest, match="only S3 has them"):
        UnfinishedUploads("file:///tmp/x", {})


VERBS = {
    "GET uploads": lambda uploads, found: uploads.list(),
    "GET uploadId": lambda uploads, found: uploads.size_bytes(found),
    "DELETE uploadId": lambda uploads, found: uploads.abort(found),
}


@pytest.mark.parametrize("what", VERBS)
def test_a_request_that_a_busy_store_refused_is_retried(s3_endpoint, s3_bucket, client, what):
    _begin(client, s3_bucket, "root/a.log")
    (found,) = UnfinishedUploads(f"s3://{s3_bucket}/root", s3_endpoint.options()).list()
    left = [(503, "SlowDown")] * 2
    policy = RetryPolicy(wait_first_s=0.001, wait_max_s=0.01)
    with BetweenServer(s3_endpoint.url, lambda asked: left.pop() if asked.what == what and left else None) as server:
        VERBS[what](UnfinishedUploads(f"s3://{s3_bucket}/root", server.options(), policy=policy), found)
        assert server.times(what) == 3

    few = RetryPolicy(attempts_max=3, wait_first_s=0.001, wait_max_s=0.01)
    with BetweenServer(s3_endpoint.url, lambda asked: (503, "SlowDown")) as server:
        with pytest.raises(Unavailable, match=r"cause=SlowDown attempts=3"):
            VERBS[what](UnfinishedUploads(f"s3://{s3_bucket}/root", server.options(), policy=few), found)
        assert len(server.requests) == 3, "the client itself must not retry"


@pytest.mark.parametrize("what", VERBS)
def test_a_store_that_does_not_answer_is_unavailable_at_the_deadline(s3_endpoint, s3_bucket, client, what):
    _begin(client, s3_bucket, "root/a.log")
    (found,) = UnfinishedUploads(f"s3://{s3_bucket}/root", s3_endpoint.options()).list()
    let_go = threading.Event()

    def hang(_):
        let_go.wait(60)

    policy = RetryPolicy(attempts_max=2, wait_first_s=0.001, wait_max_s=0.01)
    with BetweenServer(s3_endpoint.url, hang) as server:
        hanging = UnfinishedUploads(
            f"s3://{s3_bucket}/root", server.options(), policy=policy, deadlines=Deadlines(call_s=0.3)
        )
        begun = time.monotonic()
        with pytest.raises(Unavailable, match=r"no reply before the deadline.*attempts=2"):
            VERBS[what](hanging, found)
        assert time.monotonic() - begun < 20
        let_go.set()


def test_a_listing_of_several_pages_of_uploads_and_of_parts_is_complete():
    class Client:
        """A client that returns two entries per page, instead of a server's thousand."""

        def list_multipart_uploads(self, *, KeyMarker="", UploadIdMarker="", **_):  # noqa: N803
            keys = [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1")]
            rest = [each for each in keys if each > (KeyMarker, UploadIdMarker)]
            uploads = [{"Key": key, "UploadId": name, "Initiated": BEGUN} for key, name in rest[:2]]
            last = {"NextKeyMarker": uploads[-1]["Key"], "NextUploadIdMarker": uploads[-1]["UploadId"]}
            return {"Uploads": uploads, "IsTruncated": len(rest) > 2, **last}

        def list_parts(self, *, PartNumberMarker=0, **_):  # noqa: N803
            numbers = [number for number in range(1, 6) if number > PartNumberMarker][:2]
            parts = [{"PartNumber": number, "Size": 10**number} for number in numbers]
            return {"Parts": parts, "IsTruncated": numbers[-1] < 5, "NextPartNumberMarker": numbers[-1]}

    uploads = UnfinishedUploads("s3://bucket", {})
    uploads._client = Client()
    found = uploads.list()
    assert [(each.key, each.upload_id) for each in found] == [
        ("a", "1"),
        ("a", "2"),
        ("a", "3"),
        ("b", "1"),
        ("c", "1"),
    ]
    assert uploads.size_bytes(found[0]) == 111_110
