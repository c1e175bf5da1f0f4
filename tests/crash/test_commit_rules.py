"""The rules of the commit protocol one by one: states, refusals, damage, cost of a read."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from local.errors import AlreadyExists, Corrupt, Fenced, InvalidRequest, NotFound
from remote.keys import manifest_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import encode_manifest
from remote.manifest.manifest_chain import PROBES_MAX
from remote.manifest.manifest_changes import set_properties
from remote.manifest.writer_roles import WriterState
from remote.segment_entry import SegmentEntry
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import copy_segment

sys.path.insert(0, str(Path(__file__).parent))
from fault_store import FaultStore
from protocol_world import CHUNK, PREFIX, TOPIC, TOPIC_ID, Writer, chain, segment_of


def test_metadata_log_states_allow_the_operations_of_their_table():
    store = MemoryStore()
    writer = Writer(store)
    assert writer.log.load() is None
    with pytest.raises(NotFound):
        writer.log.refresh()
    with pytest.raises(InvalidRequest, match="it is not open for writing"):
        writer.log.commit(set_properties({}), now_ms=1)
    with pytest.raises(InvalidRequest, match="it is not open for writing"):
        writer.log.check_still_writer()
    writer.open()
    assert (writer.log.state, writer.log.epoch) == (WriterState.WRITER, 1)
    with pytest.raises(InvalidRequest, match="not open for reading"):
        writer.log.become_writer("x", 1, topic=TOPIC, topic_id=TOPIC_ID, partition=0)


def test_a_second_takeover_raises_the_epoch_and_preserves_entries_and_settings():
    store = MemoryStore()
    first = Writer(store)
    first.open()
    first.copy(100)
    log = MetadataLog(store, PREFIX)
    manifest = log.become_writer("next", 7, topic=TOPIC, topic_id=TOPIC_ID, partition=0)
    assert (manifest.epoch, manifest.writer_id, manifest.committed_ms, manifest.properties) == (
        2,
        "next",
        7,
        {"a": "b"},
    )
    assert [entry.base_offset for entry in manifest.segments] == [100]


def test_taking_over_manifests_of_another_partition_is_refused():
    store = MemoryStore()
    Writer(store).open()
    with pytest.raises(InvalidRequest, match=r"another partition.*found=orders-A+/0"):
        MetadataLog(store, PREFIX).become_writer("x", 1, topic="other", topic_id=TOPIC_ID, partition=0)


def test_a_change_without_an_effect_commits_no_manifest():
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    assert writer.log.commit(lambda manifest: manifest, now_ms=5).sequence == 1
    assert len(chain(store)) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: replace(manifest, epoch=manifest.epoch + 1),
        lambda manifest: replace(manifest, sequence=manifest.sequence + 1),
        lambda manifest: replace(manifest, topic="other"),
        lambda manifest: replace(manifest, segments=()),
        lambda manifest: replace(manifest, log_start_offset=-1),
    ],
)
def test_a_change_that_breaks_a_rule_is_refused_and_writes_nothing(change):
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    writer.copy(100)
    with pytest.raises(InvalidRequest, match="invalid manifest"):
        writer.log.commit(change, now_ms=5)
    assert len(chain(store)) == 2


def test_a_damaged_manifest_raises_corrupt_with_its_name_and_is_never_skipped():
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    writer.copy(100)
    key = PREFIX + manifest_key(2)
    store.put(key, store.get(key)[:-1] + b"!")
    with pytest.raises(Corrupt, match=r"checksum differs.*meta/head/00000000000000000002"):
        MetadataLog(store, PREFIX).load()
    with pytest.raises(Corrupt):
        MetadataLog(store, PREFIX).become_writer("x", 1, topic=TOPIC, topic_id=TOPIC_ID, partition=0)


def test_a_manifest_under_the_name_of_another_raises_corrupt():
    store = MemoryStore()
    Writer(store).open()
    store.put(PREFIX + manifest_key(2), store.get(PREFIX + manifest_key(1)))
    with pytest.raises(Corrupt, match="has the name of another"):
        MetadataLog(store, PREFIX).load()


def forge(store: MemoryStore, sequence: int, **changes) -> None:
    """Put a manifest with a valid checksum that does not follow its predecessor."""
    latest = chain(store)[-1]
    store.put(
        PREFIX + manifest_key(sequence), encode_manifest(replace(latest, sequence=sequence, commit_id="F", **changes))
    )


def test_a_manifest_that_does_not_follow_its_predecessor_is_corrupt_for_readers():
    for changes in ({"parent_id": "stranger"}, {"epoch": 1}):
        store = MemoryStore()
        for name in ("a", "b"):
            Writer(store, name).open()
        reader = MetadataLog(store, PREFIX)
        assert reader.load().epoch == 2
        forge(store, 3, **{"parent_id": reader.cached.commit_id, **changes})
        with pytest.raises(Corrupt, match="does not follow"):
            reader.load()


def test_a_manifest_that_does_not_follow_its_predecessor_is_corrupt_for_the_writer():
    for changes in ({"parent_id": "stranger", "epoch": 9}, {"epoch": 1}):
        store = MemoryStore()
        Writer(store, "a").open()
        writer = Writer(store, "b")
        writer.open()
        parent = writer.log.cached.commit_id
        forge(store, 3, **{"parent_id": parent, **changes})
        with pytest.raises(
            Corrupt, match=r"does not follow|a manifest has an epoch below the epoch of an older manifest"
        ):
            writer.log.commit(set_properties({"x": "1"}), now_ms=5)


def test_a_reader_follows_with_single_gets_and_lists_only_when_far_behind():
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    counting = FaultStore(store)
    reader = MetadataLog(counting, PREFIX)
    assert reader.load().sequence == 1
    assert counting.calls == ["list", "get_each", "get"], "expected a GET of the boundary after the listing"
    counting.calls.clear()
    assert reader.load().sequence == 1
    assert counting.calls == ["get"]
    for step in range(2):
        writer.log.commit(set_properties({"step": str(step)}), now_ms=1)
    counting.calls.clear()
    assert reader.load().sequence == 3
    assert counting.calls == ["get"] * 4, "expected GETs of two new manifests, of a miss, and of the boundary"
    for step in range(50):
        writer.log.commit(set_properties({"step": str(step + 100)}), now_ms=1)
    counting.calls.clear()
    assert reader.load().sequence == 53
    assert counting.calls == ["get"] * PROBES_MAX + ["list", "get_each", "get"]


def test_a_listing_that_lags_never_returns_an_older_manifest_to_a_reader():
    store = MemoryStore()
    writer = Writer(store)
    writer.open()

    class Lagging(MemoryStore):
        def list(self, prefix, *, start_after=""):
            return (info for info in tuple(store.list(prefix))[:1] if info.key > start_after)

        def get(self, key):
            return store.get(key)

    reader = MetadataLog(Lagging(), PREFIX)
    seen = []
    for step in range(12):
        seen.append(reader.load().sequence)
        for each in range(step):
            writer.log.commit(set_properties({"step": f"{step}.{each}"}), now_ms=1)
    assert seen == sorted(seen)
    assert reader.load() == writer.log.cached


def test_object_names_are_never_used_twice():
    names: list[str] = []

    class Noting(MemoryStore):
        def upload(self, key, source):
            assert key not in names
            names.append(key)
            super().upload(key, source)

    store = Noting()
    for name in ("a", "b"):
        writer = Writer(store, name)
        writer.open()
        for _ in range(3):
            copy_segment(store, PREFIX, segment_of(100), epoch=writer.log.epoch, now_ms=0, chunk_bytes=CHUNK)
    assert len(names) == 6


def test_a_committed_entry_is_a_remote_segment_with_its_commit_time():
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    writer.copy(100)
    manifest = writer.log.cached
    assert isinstance(manifest.segments[0], SegmentEntry)
    assert manifest.segments[0].committed_ms == 2


def test_without_create_if_absent_two_writers_win_the_same_sequence():
    """Proves that these tests can fail: a store that overwrites acknowledges both commits."""

    class Careless(MemoryStore):
        def put_if_absent(self, key, body):
            self.put(key, body)

    store = Careless()
    first, second = Writer(store, "first"), Writer(store, "second")
    first.open()
    second.open()
    assert first.log.commit(set_properties({"x": "1"}), now_ms=5).sequence == 2
    with pytest.raises((AssertionError, AlreadyExists, Fenced)):
        assert MetadataLog(store, PREFIX).load() == second.log.cached
