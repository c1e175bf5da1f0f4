"""Unfinished uploads against a server over HTTP: found by their keys, counted, given up; objects stay as they are."""

from __future__ import annotations

import boto3
import pytest

from local.errors import InvalidRequest, NotFound
from remote.unfinished_uploads import UnfinishedUploads

pytestmark = pytest.mark.timeout(60)
PART = b"p" * (5 << 20)


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


def test_they_are_found_below_the_root_counted_and_given_up(s3_endpoint, s3_bucket, client):
    mine = _begin(client, s3_bucket, "root/t/0/data/a.log", 2)
    _begin(client, s3_bucket, "root/t/1/data/b.log")
    _begin(client, s3_bucket, "elsewhere/c.log")
    client.put_object(Bucket=s3_bucket, Key="root/t/0/data/a.log", Body=b"an object")
    uploads = UnfinishedUploads(f"s3://{s3_bucket}/root", s3_endpoint.options())
    assert [each.key for each in uploads.list()] == ["t/0/data/a.log", "t/1/data/b.log"]
    (found,) = uploads.list("t/0/")
    assert (found.upload_id, uploads.size_bytes(found)) == (mine, 2 * len(PART))
    assert found.begun_ms > 1_000_000_000_000  # moto says 2010
    uploads.abort(found)
    uploads.abort(found)
    assert uploads.size_bytes(found) == 0
    assert uploads.list("t/0/") == []
    assert client.get_object(Bucket=s3_bucket, Key="root/t/0/data/a.log")["Body"].read() == b"an object"
    assert len(uploads.list()) == 1


def test_a_bucket_that_is_not_there_and_a_store_without_such_uploads(s3_endpoint):
    with pytest.raises(NotFound):
        UnfinishedUploads("s3://no-such-bucket-here", s3_endpoint.options()).list()
    with pytest.raises(InvalidRequest, match="only S3 has any"):
        UnfinishedUploads("file:///tmp/x", {})
