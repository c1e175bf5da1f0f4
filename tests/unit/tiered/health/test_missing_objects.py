"""A 404 of an object that the newest manifest names is retried, for any number of objects of a read."""

from __future__ import annotations

from collections import Counter

import pytest
from manager_world import DAY, NOW, TIERED, World, send, settle, values
from split_columns import split_columns

from local.errors import Corrupt, NotFound
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.page_out import PageRule
from remote.store import MISSING_TRIES, read_named
from tiered.health.scrub import plan_scrub, report_of, run_scrub
from tiered.read.bucket_reader import RemoteLog
from tiered.spark.options import parse_options
from tiered.spark.source.planning import plan_read


class Forgetful:
    """A store that answers the first `times` reads of every data object, index bundle and page with 404."""

    def __init__(self, inner, times):
        self._inner, self._times, self.asked = inner, times, Counter()

    @property
    def url(self):
        return self._inner.url

    def __getattr__(self, verb):
        return getattr(self._inner, verb)

    def _refuse(self, key):
        if "/data/" in key or "/spill/" in key:
            self.asked[key] += 1
            if self.asked[key] <= self._times:
                raise NotFound("cannot read an object, there is none", key=key)

    def get(self, key):
        self._refuse(key)
        return self._inner.get(key)

    def get_range(self, key, start, length):
        self._refuse(key)
        return self._inner.get_range(key, start, length)

    def get_ranges(self, key, ranges):
        self._refuse(key)
        return self._inner.get_ranges(key, ranges)

    def get_each(self, asked):
        return [None if "/data/" in key else self._inner.get_each([(key, *rest)])[0] for key, *rest in asked]


@pytest.fixture
def world(monkeypatch):
    """A partition with many segments, the older ones in manifest pages."""
    rule = PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=3, kept_entries_min=2)
    monkeypatch.setattr("remote.manifest.commit_protocol.PAGE_RULE", rule)
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 400)
        settle(manager, NOW + DAY)
    (name,) = list_partitions(world.store)
    manifest = MetadataLog(world.store, name.prefix).refresh()
    assert manifest.pages
    assert manifest.segment_count >= 5
    return world


@pytest.mark.parametrize("times", range(1, 2 * MISSING_TRIES))
def test_stream_continues_after_transient_404s_of_all_its_objects(world, times):
    with RemoteLog(world.store) as bucket:
        expected = values(bucket.reader())
    store = Forgetful(world.store, times)
    assert values(RemoteLog(store).reader()) == expected
    assert len(store.asked) >= 2 * 5 + 1


def test_spark_task_continues_after_transient_404s(world):
    store = Forgetful(world.store, 1)
    splits = plan_read(store, parse_options({"path": "memory://b", "subscribe": "t"}), now_ms=NOW)
    columns = [each for split in splits for each in split_columns(store, split)]
    assert [record.offset for each in columns for record in each.records()] == list(range(400))


def test_scrub_has_no_finding_after_transient_404s(world):
    store = Forgetful(world.store, 1)
    plan = plan_scrub(store, list_partitions(store), deep=True)
    results = run_scrub(store, plan, threads=1)
    report = report_of(store, plan, results, started_ms=NOW, now_ms=NOW)
    assert [each for each in report.findings if each.severity != "info"] == []


@pytest.mark.damages_bucket
def test_object_that_stays_missing_while_named_is_corrupt(world):
    (name,) = list_partitions(world.store)
    entry = MetadataLog(world.store, name.prefix).refresh().segments[0]
    world.store.delete([name.prefix + entry.data_key])
    with pytest.raises(Corrupt, match="its object is missing"):
        values(RemoteLog(world.store).reader())


def test_read_named_raises_not_found_only_after_the_last_try():
    asked = []

    def ask(tries):
        asked.append(tries)
        if len(asked) < tries:
            raise NotFound("cannot read an object, there is none")
        return b"there"

    assert read_named(lambda: ask(MISSING_TRIES)) == b"there"
    asked.clear()
    with pytest.raises(NotFound):
        read_named(lambda: ask(MISSING_TRIES + 1))
    assert len(asked) == MISSING_TRIES
