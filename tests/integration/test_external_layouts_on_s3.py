"""External buckets over a real S3 API, with both clients: read, and imported into another bucket."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from external_samples import NAME, TOPIC_ID, Sample, new_key, put_aiven, put_log, write_log
from external_truth import assert_reads

from remote.external.external_formats import external_format
from remote.external.external_layout import LayoutOptions
from remote.store.open_store import open_store
from tiered.demo.s3_endpoint import S3Endpoint
from tiered.migrate.import_bucket import plan_import, run_import
from tiered.tables.remote_tables import open_remote

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as endpoint:
        endpoint.create_bucket("theirs")
        endpoint.create_bucket("ours")
        yield endpoint


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Sample:
    return write_log(tmp_path_factory.mktemp("log") / NAME.directory)


def test_external_buckets_are_read_and_imported_over_http(endpoint: S3Endpoint, sample: Sample, tmp_path) -> None:
    key = new_key(tmp_path / "key1.pem")
    for layout, client in (("aiven", "obstore"), ("logs", "s3fs")):
        url, options = f"s3://theirs/{layout}/deeper", {**endpoint.options(), "client": client}
        store = open_store(url, options)
        for number, files in enumerate(sample.segments):
            match layout:
                case "aiven":
                    put_aiven(store, files, number=number, compressed=True, key=key)
                case "logs":
                    put_log(store, files, indexes=False)
        keys = {"key1": str(key.path)} if layout == "aiven" else {}
        named = {"layout": layout if keys else "auto", "private_keys": keys}
        with open_remote(url, options, **named) as bucket:
            assert_reads(bucket, sample)
        found = external_format(store, LayoutOptions(**named))
        assert found is not None
        assert found.layout.value == layout
        ours = open_store(f"s3://ours/{layout}", options)
        (name,) = found.partitions(store)
        plan = plan_import(store, found, name, ours, topic_id=TOPIC_ID, now_ms=1)
        run_import(store, found, ours, plan, now_ms=lambda: 1)
        with open_remote(f"s3://ours/{layout}", options) as bucket:
            assert_reads(bucket, sample)
        store.close()
        ours.close()
