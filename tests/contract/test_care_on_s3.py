"""Bucket checks and repairs against an S3 server: scrub, orphans, unfinished uploads, storage class change, copy."""

from __future__ import annotations

import boto3
import pytest
from bucket_samples import run_copy
from care_world import KEYS, MODES, NOW, CareWorld, batches, fill, named

from remote.keys import data_key
from remote.manifest.commit_protocol import MetadataLog
from remote.store.open_store import open_store
from remote.store.s3_options import ObjectSettings
from remote.store.unfinished_uploads import UnfinishedUploads
from tiered.health.scrub import plan_scrub, report_of, run_scrub
from tiered.jobs.bucket_copying import plan_copy
from tiered.jobs.orphan_deletion import delete_garbage, list_garbage
from tiered.jobs.rewriting import plan_recode, run_rewrite

pytestmark = pytest.mark.timeout(120)
LATER = NOW + 400 * 86_400_000


@pytest.fixture
def client(s3_endpoint):
    options = s3_endpoint.options()
    login = {"aws_access_key_id": options["key"], "aws_secret_access_key": options["secret"]}
    return boto3.client("s3", endpoint_url=s3_endpoint.url, region_name="us-east-1", **login)


def _scrub(store):
    plan = plan_scrub(store, [named("t")], deep=True)
    results = run_scrub(store, plan, keys=KEYS)
    assert results is not None
    return report_of(store, plan, results, started_ms=NOW, now_ms=NOW)


def test_scrub_gc_storage_class_change_and_copy_work_on_an_s3_server(s3_endpoint, s3_bucket, client):
    url, options = f"s3://{s3_bucket}/root", s3_endpoint.options()
    store = open_store(url, options)
    world = CareWorld(store, {})
    fill(world, "t", MODES["zstd"])
    world.add("t", batches(900, (4,))[0], 910, commit=False)
    prefix = named("t").prefix
    lost = data_key(950, 959, 1, "01ARZ3NDEKTSV4RRFFQ69G5FAV")
    key = f"root/{prefix}{lost}"
    upload_id = client.create_multipart_upload(Bucket=s3_bucket, Key=key)["UploadId"]
    client.upload_part(Bucket=s3_bucket, Key=key, UploadId=upload_id, PartNumber=1, Body=b"p" * (5 << 20))
    world.logs.clear()
    world.writer("t")
    assert _scrub(store).of("corrupt") == []

    uploads = UnfinishedUploads(url, options)
    listed = list_garbage(store, [named("t")], now_ms=LATER, uploads=uploads)
    assert sorted(each.kind for each in listed.entries) == ["object", "object", "upload"]
    assert listed.size_bytes > 5 << 20
    delete_garbage(store, listed, now_ms=LATER, uploads=uploads)
    assert uploads.list() == []
    assert list_garbage(store, [named("t")], now_ms=LATER, uploads=uploads).entries == []

    target = open_store(url, options, objects=ObjectSettings(storage_class="STANDARD_IA"))
    plan = plan_recode(store, named("t"), now_ms=NOW, storage_class="STANDARD_IA")
    run_rewrite(store, plan, now_ms=lambda: NOW, keys=KEYS, target=target)
    for row in MetadataLog(store, prefix).refresh().segments:
        assert row.storage_class == "STANDARD_IA"
        told = client.head_object(Bucket=s3_bucket, Key=f"root/{prefix}{row.data_key}")
        assert told["StorageClass"] == "STANDARD_IA"
    assert _scrub(store).of("corrupt") == []

    other = open_store(f"s3://{s3_bucket}/other", options)
    copied = run_copy(store, other, plan_copy(store, other, named("t"), now_ms=NOW), now_ms=lambda: NOW, keys=KEYS)
    assert (copied.differences, copied.entries) == ((), 4)
    assert _scrub(other).of("corrupt") == []
    for each in (store, target, other):
        each.close()
