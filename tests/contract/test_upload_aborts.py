"""Aborts of multipart uploads are retried like parts: parts of an unfinished upload cost money and are not listed."""

from __future__ import annotations

from contextlib import closing

import pytest
from between_server import BetweenServer

from local.errors import Corrupt, LogError, Unavailable
from remote.segment_entry import PART_BYTES
from remote.store import UploadSource
from remote.store.middleware.deadlines_and_retries import RetryPolicy
from remote.store.open_store import open_store

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]
PART = bytes(PART_BYTES)
ABORT, PARTS = "DELETE uploadId", "PUT uploadId partNumber"
CLIENTS = pytest.mark.parametrize("client", ["s3fs", "obstore"])


def failing_at_the_third():
    yield PART
    yield PART
    raise Corrupt("reading a segment")


def failed_upload(server, bucket, client, parts=failing_at_the_third, tries=8):
    """The error of an upload through `server`. A client may repeat an abort whose answer was lost, so the tests bound
    the number of aborts from below."""
    policy = RetryPolicy(attempts_max=tries, wait_first_s=0.001, wait_max_s=0.01)
    options = {**server.options(), "client": client}
    with closing(open_store(f"s3://{bucket}", options, policy=policy)) as store, pytest.raises(LogError) as raised:
        store.upload("big", UploadSource(parts=parts))
    server.wait_until_all_are_answered()
    assert server.times("POST uploads") == 1, "the upload must begin once"
    return raised.value


def assert_no_unfinished_upload(bucket, endpoint, client):
    """obstore aborts without waiting for parts in flight. S3 may keep these parts until a second abort."""
    with closing(open_store(f"s3://{bucket}", {**endpoint.options(), "client": "s3fs"})) as store:
        inner = store._inner._inner

        def unfinished():
            answer = inner._fs.call_s3("list_multipart_uploads", Bucket=bucket)
            return [each["UploadId"] for each in answer.get("Uploads", ())]

        for upload_id in unfinished() if client == "obstore" else ():
            inner._abort("big", upload_id)
        assert unfinished() == []


@CLIENTS
@pytest.mark.parametrize("refusals", [1, 3])
def test_a_refused_abort_is_retried(s3_endpoint, s3_bucket, client, refusals):
    left = [(503, "SlowDown")] * refusals
    with BetweenServer(s3_endpoint.url, lambda asked: left.pop() if asked.what == ABORT and left else None) as server:
        assert isinstance(failed_upload(server, s3_bucket, client), Corrupt)
        assert server.times(ABORT) > refusals
    assert_no_unfinished_upload(s3_bucket, s3_endpoint, client)


@CLIENTS
def test_an_abort_with_a_lost_answer_counts_as_done(s3_endpoint, s3_bucket, client, caplog):
    answers = [(503, "SlowDown"), (404, "NoSuchUpload")]
    with BetweenServer(s3_endpoint.url, lambda asked: answers.pop(0) if asked.what == ABORT else None) as server:
        error = failed_upload(server, s3_bucket, client)
    assert isinstance(error, Corrupt), "the source's error must be raised, not an error of the abort"
    assert answers == []
    assert not caplog.records


@CLIENTS
def test_an_upload_with_refused_parts_leaves_no_unfinished_upload(s3_endpoint, s3_bucket, client):
    def refuse(asked):
        return (503, "SlowDown") if asked.what == PARTS and "partNumber=2" in asked.path else None

    with BetweenServer(s3_endpoint.url, refuse) as server:
        error = failed_upload(server, s3_bucket, client, lambda: iter([PART, PART, PART]), tries=3)
    assert isinstance(error, Unavailable)
    assert server.times(ABORT) >= 1
    assert_no_unfinished_upload(s3_bucket, s3_endpoint, client)
