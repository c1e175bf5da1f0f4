"""One Spark session for the whole run, and sample buckets on a disk and behind a real S3 API."""

from __future__ import annotations

import itertools
import json

import pytest
from bucket_samples import SampleBucket
from bucket_truth import assert_sound

from local.errors import InvalidRequest
from remote.store.open_store import open_store

_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark():
    from tiered.spark.session import spark_session

    try:
        session = spark_session("tiered-tests")
    except InvalidRequest as error:
        pytest.skip(str(error))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_endpoint():
    from tiered.demo.s3_endpoint import S3Endpoint

    with S3Endpoint() as endpoint:
        yield endpoint


@pytest.fixture
def file_bucket(request, tmp_path):
    store = open_store(f"file://{tmp_path}")
    yield SampleBucket(store, f"file://{tmp_path}")
    look_at(store, request)


@pytest.fixture
def s3_bucket(request, s3_endpoint):
    name = f"spark-{next(_numbers)}"
    s3_endpoint.create_bucket(name)
    store = open_store(f"s3://{name}/logs", s3_endpoint.options())
    yield SampleBucket(store, f"s3://{name}/logs", s3_endpoint.options())
    look_at(store, request)


def look_at(store, request):
    """Decode every object that the jobs of a test left, unless the test is marked to damage its bucket."""
    try:
        if request.node.get_closest_marker("damages_bucket") is None:
            assert_sound(store)
    finally:
        store.close()


@pytest.fixture(params=["file", "s3"])
def bucket(request):
    return request.getfixturevalue(f"{request.param}_bucket")


@pytest.fixture
def load(spark):
    """``load(bucket, subscribe="a", startingOffsets=...)`` returns a DataFrame. `columns` is an explicit schema."""

    def load(bucket, *, columns=None, **options):
        reader = spark.read.format("tiered").options(**options)
        if bucket.options:
            reader = reader.option("storeOptions", json.dumps(bucket.options))
        return (reader.schema(columns) if columns else reader).load(bucket.url)

    return load
