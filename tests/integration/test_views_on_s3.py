"""Compacted views over a real S3 API: built, read from the bucket only, replaced during reads, deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from checked_bucket import check_bucket, damage
from manager_world import DAY, HOUR, NAME, NOW, TIERED, World, send, settle

from remote.store.open_store import open_store
from tiered.demo.s3_endpoint import S3Endpoint
from tiered.jobs.view_jobs import build_views, plan_views
from tiered.tables.remote_tables import open_remote


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as endpoint:
        endpoint.create_bucket("views")
        yield endpoint


@pytest.mark.server
def test_whole_life_of_a_compacted_view_on_s3(endpoint: S3Endpoint) -> None:
    url = "s3://views/logs"
    store = open_store(url, endpoint.options())
    manager = World().open(store=store)
    manager.topics.create("t", 1, TIERED, now_ms=NOW)
    for turn in range(3):
        send(manager, 200, start=200 * turn, keys=50)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        with open_remote(url, endpoint.options()) as before:
            begun = before.reader(read_compacted=True).records(NAME, 0) if turn else iter(())
            first = next(begun, None)
            build_views(manager, plan_views(manager, "t", now_ms=NOW))
            assert manager.problems == {}
            rest = list(begun)  # the view of its start, whose objects are in their grace period, and the log after it
            assert first is None or [first.offset, *(each.offset for each in rest)][50:] == list(
                range(200 * turn, 200 * (turn + 1))
            )
        with open_remote(url, endpoint.options()) as bucket:
            found = list(bucket.reader(read_compacted=True).records(NAME, 0))
        assert [each.offset for each in found] == list(range(200 * turn + 150, 200 * (turn + 1)))
        assert [each.value for each in found] == [b"value %d" % each.offset for each in found]
    settle(manager, NOW + DAY + HOUR)
    prefix = manager.partitions.all()[0].prefix
    views = {row.data_key for row in manager.partitions.all()[0].manifest().view_entries}
    assert {each.key.removeprefix(prefix) for each in store.list(prefix + "view/") if ".log" in each.key} == views
    assert damage(check_bucket(store)) == []
    manager.close()
