"""Bucket reader without a local directory: two topics of one name are never mixed."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from local.errors import Corrupt, InvalidRequest, NotFound
from local.names import TopicPartition
from remote.keys import manifest_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import delete_partition
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore
from tiered.cli.main import invoke
from tiered.read.bucket_reader import RemoteLog, topic_ids
from tiered.read.partition_source import PartitionSource
from tiered.tables.remote_tables import open_remote

OLD, NEW = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBA"


def _partition(store: MemoryStore, topic: str, topic_id: str, partition: int) -> Manifest:
    metadata = MetadataLog(store, f"{topic}-{topic_id}/{partition}/")
    return metadata.become_writer("w", 0, topic=topic, topic_id=topic_id, partition=partition)


def _delete(store: MemoryStore, topic: str, topic_id: str, count: int) -> None:
    for number in range(count):
        metadata = MetadataLog(store, f"{topic}-{topic_id}/{number}/")
        metadata.become_writer("w", 0, topic=topic, topic_id=topic_id, partition=number)
        metadata.commit(delete_partition(now_ms=1), 1)


@pytest.fixture
def store() -> MemoryStore:
    """Two topics named ``t``, with three and with two partitions, and one topic named ``u``."""
    store = MemoryStore("memory://bucket")
    for topic, topic_id, count in (("t", OLD, 3), ("t", NEW, 2), ("u", OLD, 1)):
        for number in range(count):
            _partition(store, topic, topic_id, number)
    return store


def test_ambiguous_topic_name_is_refused_until_a_topic_id_is_chosen(store: MemoryStore) -> None:
    view = RemoteLog(store)
    assert view.topics() == ["t", "u"]
    assert view.topic_ids("t") == [OLD, NEW]
    for use in (
        lambda: view.partitions("t"),
        lambda: view.manifest(TopicPartition("t", 0)),
        lambda: view.reader().offsets(TopicPartition("t", 2)),
    ):
        with pytest.raises(InvalidRequest, match=f"topic_ids={OLD},{NEW}"):
            use()
    assert view.partitions("u") == [TopicPartition("u", 0)]


def test_each_topic_of_an_ambiguous_name_can_be_read_by_its_id(store: MemoryStore) -> None:
    views = RemoteLog(store).each_of("t")
    assert [len(view.partitions("t")) for view in views] == [3, 2]
    assert [view.manifest(TopicPartition("t", 0)).topic_id for view in views] == [OLD, NEW]
    chosen = RemoteLog(store, topic_ids={"t": NEW})
    assert chosen.each_of("t") == [chosen]


def test_deleted_topic_is_not_listed_and_does_not_make_its_name_ambiguous(store: MemoryStore) -> None:
    _delete(store, "u", OLD, 1)
    view = RemoteLog(store)
    assert view.topics() == ["t"]
    _partition(store, "u", NEW, 0)
    view.refresh()
    assert view.topics() == ["t", "u"]
    (entry_filter,) = view.each_of("u")
    assert entry_filter.manifest(TopicPartition("u", 0)).topic_id == NEW


@pytest.mark.damages_bucket
def test_damaged_manifest_of_one_topic_does_not_prevent_listing_the_others(store: MemoryStore) -> None:
    store.put(f"u-{OLD}/0/{manifest_key(1)}", b"{}")
    view = RemoteLog(store, topic_ids={"t": NEW})
    assert view.topics() == ["t", "u"]
    assert view.partitions("t") == [TopicPartition("t", 0), TopicPartition("t", 1)]
    with pytest.raises(Corrupt, match="u-"):
        view.manifest(TopicPartition("u", 0))


def test_every_listed_topic_has_readable_manifests(store: MemoryStore) -> None:
    """The loop of the documentation on scripts: topics, their partitions, their manifests."""
    _delete(store, "u", OLD, 1)
    _delete(store, "t", OLD, 3)
    view = RemoteLog(store)
    assert [view.manifest(name).topic_id for topic in view.topics() for name in view.partitions(topic)] == [NEW, NEW]


@pytest.mark.parametrize(("topic_id", "count"), [(OLD, 3), (NEW, 2)])
def test_chosen_topic_id_shows_all_partitions_of_that_topic_only(store: MemoryStore, topic_id: str, count: int) -> None:
    view = RemoteLog(store, topic_ids={"t": topic_id})
    assert view.partitions("t") == [TopicPartition("t", number) for number in range(count)]
    assert {view.manifest(name).topic_id for name in view.partitions("t")} == {topic_id}
    if count == 2:
        with pytest.raises(NotFound):
            view.manifest(TopicPartition("t", 2))


def test_unknown_topic_id_is_not_found_and_the_error_names_the_known_ones(store: MemoryStore) -> None:
    view = RemoteLog(store, topic_ids={"t": "CCCCCCCCCCCCCCCCCCCCCA"})
    with pytest.raises(NotFound, match=f"there_are={OLD},{NEW}"):
        view.partitions("t")
    with pytest.raises(NotFound):
        RemoteLog(store).topic_ids("v")


def test_topic_recreated_while_a_reader_is_open_is_not_mixed_in(store: MemoryStore) -> None:
    view = RemoteLog(store)
    name = TopicPartition("u", 0)
    assert view.manifest(name).topic_id == OLD
    for number in range(2):
        _partition(store, "u", NEW, number)
    view.refresh()
    assert view.manifest(name).topic_id == OLD
    with pytest.raises(InvalidRequest, match="topic_ids="):
        view.manifest(TopicPartition("u", 1))


class HeldLog(RemoteLog):
    """Holds the first load of `partition` after its requests, from `is_loaded` until `may_end`."""

    def __init__(self, store: MemoryStore, partition: TopicPartition) -> None:
        super().__init__(store, topic_ids={"t": NEW})
        self.partition, self.is_loaded, self.may_end = partition, Event(), Event()

    def _made_source(self, partition: TopicPartition) -> PartitionSource:
        made = super()._made_source(partition)
        if partition == self.partition and not self.is_loaded.is_set():
            self.is_loaded.set()
            assert self.may_end.wait(30)
        return made


def test_a_partition_that_is_loaded_during_a_refresh_is_as_new_as_the_refresh(store: MemoryStore) -> None:
    name = TopicPartition("t", 0)
    view = HeldLog(store, name)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(view.manifest, name)
        assert view.is_loaded.wait(30)
        newest = _partition(store, "t", NEW, 0)
        view.refresh()
        view.may_end.set()
        assert first.result() == newest
    assert view.manifest(name) == newest


def test_a_load_from_before_its_topic_was_deleted_does_not_bring_the_topic_back(store: MemoryStore) -> None:
    name = TopicPartition("u", 0)
    view = HeldLog(store, name)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(view.manifest, name)
        assert view.is_loaded.wait(30)
        assert view.manifest(name).topic_id == OLD
        _delete(store, "u", OLD, 1)
        with pytest.raises(NotFound, match="its topic was deleted"):
            view.refresh_partition(name)
        _partition(store, "u", NEW, 0)
        view.may_end.set()
        assert first.result().topic_id == NEW
    assert view.manifest(name).topic_id == NEW


def test_first_load_of_a_partition_does_not_wait_for_that_of_another(store: MemoryStore) -> None:
    name, other = TopicPartition("t", 0), TopicPartition("t", 1)
    view = HeldLog(store, name)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(view.manifest, name)
        assert view.is_loaded.wait(30)
        second = pool.submit(view.manifest, other)
        assert second.result(30).partition == 1
        assert not first.done()
        view.may_end.set()
        assert first.result().partition == 0


def test_a_partition_is_read_even_if_refreshes_overtake_each_of_its_loads(store: MemoryStore) -> None:
    class OvertakenLog(RemoteLog):
        def _made_source(self, partition: TopicPartition) -> PartitionSource:
            made = super()._made_source(partition)
            self.refresh()
            return made

    assert OvertakenLog(store).manifest(TopicPartition("u", 0)).topic_id == OLD


def test_topic_ids_of_a_name_need_one_list_request(store: MemoryStore, monkeypatch) -> None:
    asked = []
    listing = store.list_prefixes
    monkeypatch.setattr(store, "list_prefixes", lambda prefix: asked.append(prefix) or listing(prefix))
    assert topic_ids(store, "t") == [OLD, NEW]
    assert topic_ids(store, "v") == []
    assert asked == ["t-", "v-"]


USES = {
    "head": (lambda view: view.manifest(TopicPartition("t", 1)), 2, "the ids of the name, the heads"),
    "offsets": (lambda view: view.reader().offsets(TopicPartition("t", 1)), 2, "the same"),
    "partitions": (lambda view: view.partitions("t"), 2, "the ids of the name, the partitions"),
    "head of each": (
        lambda view: [view.manifest(each) for each in view.partitions("t")],
        5,
        "those, and the heads of each",
    ),
    "topic_ids": (lambda view: view.topic_ids("t"), 1, "the ids of the name"),
}


@pytest.mark.parametrize("others", [0, 1, 2500])
@pytest.mark.parametrize("use", USES)
def test_list_requests_for_one_topic_do_not_grow_with_the_other_topics(use: str, others: int) -> None:
    bucket = MemoryStore("memory://bucket")
    for number in range(3):
        _partition(bucket, "t", OLD, number)
    for number in range(others):
        bucket.put(f"{'t' if number % 3 else 't-'}{number}-{NEW}/0/data/something", b"x")
    metered = MeteredStore(bucket)
    act, lists, _ = USES[use]
    act(RemoteLog(metered))
    assert metered.counts().lists == lists


def test_missing_partition_is_not_found_and_one_without_a_manifest_is_corrupt(store: MemoryStore) -> None:
    store.put(f"u-{OLD}/3/data/{0:020d}-{7:020d}-{1:010d}-{'0' * 26}.log", b"x")
    view = RemoteLog(store)
    with pytest.raises(NotFound, match="partition not found in the bucket: partition=u/2"):
        view.manifest(TopicPartition("u", 2))
    with pytest.raises(Corrupt, match="the partition has objects and no manifest"):
        view.manifest(TopicPartition("u", 3))


# -- commands


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    """A bucket with two topics ``orders``: one of three partitions, and one of two from another directory."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    assert invoke(["init"]) == 0
    assert invoke(["init", "again", "--remote", f"file://{tmp_path}/bucket"]) == 0
    for where, count in ((".", 3), ("again", 2)):
        assert invoke(["-C", where, "topic", "create", "orders", "-p", str(count), "-X", "segment.bytes=1KiB"]) == 0
        (tmp_path / "lines").write_text("".join(f"{where} {at}\n" for at in range(500)))
        assert invoke(["-C", where, "append", "orders", "lines", "--batch", "20"]) == 0
        assert invoke(["-C", where, "-q", "run", "--once"]) == 0
    return tmp_path


def test_topic_create_warns_when_the_bucket_has_a_topic_of_that_name(home: Path, capfd) -> None:
    bucket = f"file://{home}/bucket"
    for create, is_warned in ((["orders"], True), (["other"], False), (["bills"], False)):
        assert invoke(["init", create[0], "--remote", bucket]) == 0
        capfd.readouterr()
        assert invoke(["-C", create[0], "topic", "create", *create]) == 0
        err = capfd.readouterr().err
        assert ("warning: the bucket already has a topic of this name" in err) == is_warned
        assert ("--topic-id" in err) == is_warned


def test_topic_create_does_not_warn_for_names_of_deleted_topics(home: Path, capfd) -> None:
    for where in (".", "again"):
        assert invoke(["-C", where, "topic", "delete", "orders", "--yes"]) == 0
    assert invoke(["-q", "run", "--once"]) == 0
    assert invoke(["-C", "again", "-q", "run", "--once"]) == 0
    capfd.readouterr()
    assert invoke(["topic", "create", "orders"]) == 0
    assert "warning" not in capfd.readouterr().err
    assert invoke(["consume", "orders", "--remote", f"file://{home}/bucket"]) == 0


def test_consume_reads_the_topic_of_the_given_topic_id(home: Path, capfd) -> None:
    ids = sorted(name.removeprefix("orders-") for name in os.listdir(home / "bucket") if name.startswith("orders-"))
    words = ["consume", "orders", "--remote", f"file://{home}/bucket"]
    capfd.readouterr()
    assert invoke(words) == 2
    err = capfd.readouterr().err
    assert "topic_ids=" + ",".join(ids) in err
    assert "--topic-id" in err
    seen = []
    for topic_id in ids:
        assert invoke([*words, "--topic-id", topic_id]) == 0
        seen.append({line.split()[0] for line in capfd.readouterr().out.splitlines()})
    assert sorted(map(sorted, seen)) == [["."], ["again"]]


def test_open_remote_reads_the_topic_of_the_given_topic_id(home: Path) -> None:
    (first, second) = sorted(name.removeprefix("orders-") for name in os.listdir(home / "bucket") if "orders-" in name)
    counts = []
    for topic_id in (first, second):
        with open_remote(f"file://{home}/bucket", topic_ids={"orders": topic_id}) as view:
            counts.append(len(view.partitions("orders")))
    assert sorted(counts) == [2, 3]


def test_remote_ls_lists_all_topics_of_a_name_without_deleted_ones(home: Path, capfd) -> None:
    bucket = f"file://{home}/bucket"

    def listed() -> list[tuple[str, int]]:
        capfd.readouterr()
        assert invoke(["remote", "ls", bucket, "-o", "json"]) == 0
        entries = json.loads(capfd.readouterr().out)["partitions"]
        return sorted((entry["topic_id"], entry["partition"]) for entry in entries)

    both = listed()
    assert len(both) == 5
    assert invoke(["topic", "delete", "orders", "--yes"]) == 0
    assert invoke(["-q", "run", "--once"]) == 0
    left = listed()
    assert len(left) == 2
    assert set(left) < set(both)
    assert invoke(["-C", "again", "topic", "delete", "orders", "--yes"]) == 0
    assert listed() == []
