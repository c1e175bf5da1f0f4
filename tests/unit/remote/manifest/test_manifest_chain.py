"""Finding the newest manifest: listings that lag, and commits and deletions between the requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from manager_world import NAME, NOW, TIERED, World, send, settle

from local.errors import Corrupt, LogError, NotFound, Unavailable
from remote.check.partition_check import survey_partition
from remote.gc.delayed_delete import collect_manifests
from remote.gc.orphan_search import find_orphans
from remote.keys import MANIFESTS, manifest_key
from remote.manifest.catalog import list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_chain import ManifestChain
from remote.manifest.manifest_changes import set_properties
from remote.store import Body, GetRange, ObjectInfo
from remote.store.memory_store import MemoryStore
from tiered.cli.main import invoke
from tiered.inspect.segment_table import TableOptions, segment_rows
from tiered.migrate.restore_plan import LocalSegments, RestoreWish, plan_restore
from tiered.read.bucket_reader import RemoteLog
from tiered.spark.options import parse_options
from tiered.spark.source.planning import plan_read

PREFIX = "orders-AAAAAAAAAAAAAAAAAAAAAA/0/"
pytestmark = pytest.mark.damages_bucket


class Behind(MemoryStore):
    """Its listings lack the last `hidden` objects; `between` runs after a listing."""

    hidden = 0

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        found = list(super().list(prefix, start_after=start_after))
        return iter(found[: len(found) - self.hidden])

    def get_each(self, asked: Sequence[GetRange]) -> Sequence[Body | None]:
        self.between()
        return super().get_each(asked)

    def between(self) -> None:
        pass


def committed(store: MemoryStore, manifests: int) -> MetadataLog:
    log = MetadataLog(store, PREFIX)
    log.become_writer("w", 0, topic="orders", topic_id="A" * 22, partition=0)
    for now_ms in range(manifests - 1):
        log.commit(set_properties({"retention.ms": str(now_ms)}), now_ms)
    return log


@pytest.mark.parametrize("hidden", [0, 1, 2, 3, 6])
def test_manifests_missing_in_a_lagging_listing_are_found(hidden: int) -> None:
    store = Behind()
    newest = committed(store, 8).cached
    store.hidden = hidden
    assert ManifestChain(store, PREFIX).newest(None) == newest


def test_a_manifest_committed_after_the_listing_is_found() -> None:
    store = Behind()
    log = committed(store, 3)
    store.between = lambda: log.commit(set_properties({"a": "b"}), 9)  # type: ignore[method-assign]
    found = ManifestChain(store, PREFIX).newest(None)
    assert found == log.cached


def test_a_listed_manifest_that_was_deleted_is_searched_for_again() -> None:
    store = Behind()
    log = committed(store, 3)
    last = log.cached
    assert last is not None

    def collect() -> None:
        store.between = lambda: None  # type: ignore[method-assign]
        log.commit(set_properties({"a": "b"}), 9)
        store.delete([PREFIX + manifest_key(last.sequence)])

    store.between = collect  # type: ignore[method-assign]
    assert ManifestChain(store, PREFIX).newest(None) == log.cached


@pytest.mark.parametrize("known", [None, 1])
def test_a_void_manifest_under_the_listed_name_is_not_the_newest(known: int | None) -> None:
    """Between the listing and the GET, GC deletes the listed manifest and a writer that slept creates its name."""
    store, other = Behind(), MemoryStore()
    log = committed(store, 3)
    committed(other, 3)
    name = PREFIX + manifest_key(3)
    chain = ManifestChain(store, PREFIX)
    start = chain.read(known) if known is not None else None
    if known is not None:
        collect_manifests(store, PREFIX, log, known + 1, now_ms=9)  # the search finds the known one void, and lists

    def sleep() -> None:
        store.between = lambda: None  # type: ignore[method-assign]
        for now_ms in range(10, 14):
            log.commit(set_properties({"retention.ms": str(now_ms)}), now_ms)
        collect_manifests(store, PREFIX, log, 5, now_ms=99)
        store.put_if_absent(name, other.get(name))

    store.between = sleep  # type: ignore[method-assign]
    assert chain.newest(start, exact=known is not None) == log.cached


def test_a_damaged_manifest_behind_the_listed_one_raises_corrupt_with_its_name() -> None:
    store = Behind()
    last = committed(store, 3).cached
    assert last is not None
    store.put(PREFIX + manifest_key(last.sequence), b"{}")
    store.hidden = 1
    with pytest.raises(Corrupt, match=manifest_key(last.sequence)):
        ManifestChain(store, PREFIX).newest(None)


class Hiding:
    """A store whose listings omit all manifests."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def list(self, prefix, *, start_after=""):
        return (info for info in self._inner.list(prefix, start_after=start_after) if MANIFESTS not in info.key)


@pytest.fixture
def bucket():
    """A partition with records, and its name."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 200)
        settle(manager)
    (name,) = list_partitions(world.store)
    return world.store, name


def without_heads(store):
    store.delete([info.key for info in store.list("") if MANIFESTS in info.key])
    return store


READERS = {
    "records": lambda store, name: list(RemoteLog(store).reader().records(NAME, 0)),
    "offsets": lambda store, name: RemoteLog(store).reader().offsets(NAME),
    "head": lambda store, name: RemoteLog(store).manifest(NAME),
    "refresh": lambda store, name: MetadataLog(store, name.prefix).refresh(),
    "spark": lambda store, name: plan_read(store, parse_options({"path": "memory://b", "subscribe": "t"}), now_ms=NOW),
    "segments": lambda store, name: list(segment_rows(MetadataLog(store, name.prefix), name, TableOptions(now_ms=NOW))),
    "restore": lambda store, name: plan_restore(store, [name], RestoreWish(kept=LocalSegments.ALL), now_ms=NOW),
    "orphans": lambda store, name: find_orphans(store, name.prefix, MetadataLog(store, name.prefix), now_ms=NOW),
}


@pytest.mark.parametrize("reader", READERS)
def test_objects_without_a_manifest_raise_corrupt_for_every_reader(bucket, reader):
    store, name = bucket
    without_heads(store)
    with pytest.raises(Corrupt, match="the partition has objects and no manifest"):
        READERS[reader](store, name)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("is_collected", [False, True])
def test_a_listing_that_hides_manifests_raises_unavailable_for_every_reader(bucket, reader, is_collected):
    store, name = bucket
    if is_collected:
        log = MetadataLog(store, name.prefix)
        manifest = log.become_writer("w", NOW, topic=name.topic, topic_id=name.topic_id, partition=name.partition)
        collect_manifests(store, name.prefix, log, manifest.sequence - 1, now_ms=NOW)
    with pytest.raises(Unavailable, match="the listing omits objects that exist"):
        READERS[reader](Hiding(store), name)


class Opening(MemoryStore):
    """A store with a writer that creates the first manifest after the reader's `calls` calls."""

    def __init__(self, prefix, calls):
        super().__init__("memory://b")
        self.prefix, self.left, self.is_creating, self.is_open = prefix, calls, False, False

    def list(self, prefix, *, start_after=""):
        found = list(super().list(prefix, start_after=start_after))
        self._create()
        return iter(found)

    def get_each(self, ranges):
        found = super().get_each(ranges)
        self._create()
        return found

    def _create(self):
        if self.is_creating:
            return
        self.left -= 1
        if self.left == 0:
            self.is_creating = True
            MetadataLog(self, self.prefix).become_writer("w", NOW, topic="t", topic_id="A" * 22, partition=0)
            self.put(f"{self.prefix}data/{0:020d}-{7:020d}-{1:010d}-{'0' * 26}.log", b"data")
            self.is_creating, self.is_open = False, True


@pytest.mark.parametrize("calls", range(1, 5))
@pytest.mark.parametrize(
    "reader",
    [
        lambda store: MetadataLog(store, store.prefix).refresh(),
        lambda store: RemoteLog(store).manifest(NAME),
    ],
    ids=["refresh", "head"],
)
def test_a_partition_created_during_a_read_is_read_or_not_found(reader, calls):
    store = Opening(f"t-{'A' * 22}/0/", calls)
    with suppress(NotFound):  # the partition did not exist yet when the reader ended
        assert reader(store).epoch == 1
    while not store.is_open:
        list(store.list(""))
    assert reader(store).epoch == 1


def test_a_prefix_without_any_object_raises_not_found():
    with pytest.raises(NotFound, match="the partition has no manifest"):
        MetadataLog(MemoryStore(), f"t-{'A' * 22}/0/").refresh()


def test_a_scrub_reports_objects_without_a_manifest(bucket):
    store, name = bucket
    without_heads(store)
    store.delete([info.key for info in store.list("") if "/data/" in info.key][1:])
    assert any("no manifest" in each.what for each in survey_partition(store, name.prefix).findings)


def test_a_writer_never_starts_a_new_chain_while_a_listing_hides_the_manifests(bucket):
    store, name = bucket
    before = dict(store._objects)
    log = MetadataLog(Hiding(store), name.prefix)
    try:
        manifest = log.become_writer("w", NOW, topic=name.topic, topic_id=name.topic_id, partition=name.partition)
    except LogError:
        assert store._objects == before
        return
    assert manifest.has_entries, "the takeover lost the entries"


@pytest.mark.parametrize("words", [["consume", "t", "--remote"], ["remote", "ls"]])
def test_commands_exit_with_4_and_name_the_missing_manifest(tmp_path: Path, monkeypatch, capfd, words):
    monkeypatch.chdir(tmp_path)
    bucket = tmp_path / "bucket"
    (tmp_path / "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "file://{bucket}"\n')
    bucket.mkdir()
    (tmp_path / "lines").write_text("".join(f"value {at}\n" for at in range(100)))
    settings = ["-X", "remote.storage.enable=true", "-X", "segment.bytes=1KiB"]
    assert invoke(["topic", "create", "t", *settings]) == 0
    assert invoke(["append", "t", "lines"]) == 0
    assert invoke(["run", "--once"]) == 0
    (manifests,) = bucket.glob("t-*/0/meta/head")
    shutil.rmtree(manifests)
    capfd.readouterr()
    assert invoke([*words, bucket.as_uri(), *(["--from", "earliest"] if "consume" in words else [])]) == 4
    out, said = capfd.readouterr()
    assert "the partition has objects and no manifest" in out + said


def test_a_partition_with_only_unknown_objects_raises_not_found(bucket) -> None:
    store, name = bucket
    store.delete([info.key for info in store.list(name.prefix)])
    store.put(name.prefix + "README.txt", b"of another program")
    with pytest.raises(NotFound):
        MetadataLog(store, name.prefix).refresh(exact=True)
