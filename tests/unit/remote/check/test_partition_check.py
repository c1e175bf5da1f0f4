"""The bucket check finds every kind of planted damage, and has no findings in an undamaged bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from checked_bucket import check_bucket, damage
from manager_world import DAY, NAME, NOW, TIERED, World, send, settle
from remote_samples import forged, table_of

from local.errors import NotFound
from local.format.record import Record
from local.index import txn_index
from local.log.producer_state import Producer
from local.verify.findings import Severity
from remote.check.partition_check import BucketReport, ObjectKind
from remote.keys import data_key, manifest_key, new_ulid
from remote.manifest.manifest import Manifest, decode_manifest, encode_manifest
from remote.segments.stored_segment import decode_bundle, encode_bundle
from remote.store.memory_store import MemoryStore

pytestmark = pytest.mark.damages_bucket


@pytest.fixture
def store() -> MemoryStore:
    """Two epochs, live entries, pending deletes, several manifests of each writer."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": str(3 * DAY)}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        manager.maintenance.delete_records({NAME: 130}, now_ms=NOW)
        settle(manager)
    with world.open() as manager:
        send(manager, 300, start=300)
        settle(manager)
    (report,) = check_bucket(world.store)
    assert damage([report]) == []
    assert report.manifest is not None
    assert report.manifest.epoch == 2
    assert len(report.manifest.segments) > 3
    assert len(report.manifest.pending_deletes) > 1
    assert set(report.counts()) == {ObjectKind.MANIFEST, ObjectKind.SEGMENT, ObjectKind.INDEXES, ObjectKind.UNLINKED}
    return world.store


def _report(store: MemoryStore) -> BucketReport:
    (report,) = check_bucket(store)
    return report


def _told(store: MemoryStore) -> str:
    return "; ".join(f"{each.severity.name} {each.where}: {each.what}" for each in _report(store).findings)


def _newest(store: MemoryStore) -> tuple[str, Manifest]:
    report = _report(store)
    assert report.manifest is not None
    return report.prefix, report.manifest


def _rewrite_head(store: MemoryStore, change: Callable[[Manifest], Manifest]) -> None:
    prefix, manifest = _newest(store)
    store.put(prefix + manifest_key(manifest.sequence), forged(change(manifest)))


def _rewrite_row(store: MemoryStore, **changes: object) -> None:
    """Change fields of the last entry but one."""

    def change(manifest: Manifest) -> Manifest:
        entries = list(manifest.segments)
        entries[-2] = replace(entries[-2], **changes)  # type: ignore[arg-type]
        return replace(manifest, segments=tuple(entries))

    _rewrite_head(store, change)


def _flip(store: MemoryStore, key: str, at: int) -> None:
    body = bytearray(store.get(key))
    body[at] ^= 1
    store.put(key, bytes(body))


def _reseal(store: MemoryStore, change: Callable[[bytearray], None]) -> None:
    """Change the bytes of the last segment, and make every checksum around them fit."""

    prefix, manifest = _newest(store)
    entry = manifest.segments[-1]
    body = bytearray(store.get(prefix + entry.data_key))
    change(body)
    store.put(prefix + entry.data_key, bytes(body))
    bundle = decode_bundle(store.get(prefix + entry.indexes_key))
    table = table_of(bytes(body), bundle.chunks.lengths[0])
    _put_bundle(store, replace(bundle, chunks=table), data_crc32c=table.whole_crc)


def _put_bundle(store: MemoryStore, bundle: object, **changes: object) -> None:
    prefix, manifest = _newest(store)
    entry = manifest.segments[-1]
    encoded, ranges = encode_bundle(bundle)  # type: ignore[arg-type]
    store.put(prefix + entry.indexes_key, encoded)
    changed = replace(entry, indexes=ranges, indexes_bytes=len(encoded), **changes)  # type: ignore[arg-type]
    _rewrite_head(store, lambda manifest: replace(manifest, segments=(*manifest.segments[:-1], changed)))


def _other_index(store: MemoryStore, **sections: bytes) -> None:
    prefix, manifest = _newest(store)
    _put_bundle(store, replace(decode_bundle(store.get(prefix + manifest.segments[-1].indexes_key)), **sections))


def _head_flipped(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    _flip(store, prefix + manifest_key(manifest.sequence - 1), 100)


def _head_missing(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    store.delete([prefix + manifest_key(manifest.sequence - 2)])


def _first_head_missing(store: MemoryStore) -> None:
    store.delete([_newest(store)[0] + manifest_key(1)])


def _head_under_anothers_name(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    store.put(prefix + manifest_key(manifest.sequence + 1), encode_manifest(manifest))


def _head_of_another_partition(store: MemoryStore) -> None:
    _rewrite_head(store, lambda manifest: replace(manifest, partition=7))


def _two_writers_in_one_epoch(store: MemoryStore) -> None:
    _rewrite_head(store, lambda manifest: replace(manifest, writer_id="somebody"))


def _epoch_goes_back(store: MemoryStore) -> None:
    _rewrite_head(store, lambda manifest: replace(manifest, epoch=1))


def _other_parent(store: MemoryStore) -> None:
    _rewrite_head(store, lambda manifest: replace(manifest, parent_id="X" * 26))


def _log_start_goes_back(store: MemoryStore) -> None:
    _rewrite_head(store, lambda manifest: replace(manifest, log_start_offset=manifest.log_start_offset - 1))


def _row_forgotten(store: MemoryStore) -> None:
    _rewrite_head(store, lambda manifest: replace(manifest, segments=manifest.segments[1:]))


def _named_again(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    old = next(each for each in _manifests(store, prefix) if len(each.segments) > 1 and each.epoch == 1)
    again = old.segments[0]
    assert again.data_key in {each.key for each in manifest.pending_deletes}
    _rewrite_head(store, lambda manifest: replace(manifest, segments=(again, *manifest.segments)))


def _manifests(store: MemoryStore, prefix: str) -> list[Manifest]:
    return [decode_manifest(store.get(info.key)) for info in store.list(prefix + "meta/head/")]


def _data_missing(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    store.delete([prefix + manifest.segments[1].data_key])


def _indexes_missing(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    store.delete([prefix + manifest.segments[1].indexes_key])


def _data_short(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    key = prefix + manifest.segments[1].data_key
    store.put(key, store.get(key)[:-1])


def _bit_in_data(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    _flip(store, prefix + manifest.segments[1].data_key, 77)


def _bit_in_indexes(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    _flip(store, prefix + manifest.segments[1].indexes_key, 5)


def _name_of_another_segment(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    entry = manifest.segments[-2]
    key = data_key(entry.base_offset, entry.next_offset, manifest.epoch, entry.ulid)
    store.put(prefix + key, store.get(prefix + entry.data_key))
    _rewrite_row(store, data_key=key)


def _batch_crc(store: MemoryStore) -> None:
    _reseal(store, lambda body: body.__setitem__(-1, body[-1] ^ 1))


def _not_a_batch_at_the_end(store: MemoryStore) -> None:
    def change(body: bytearray) -> None:
        body[-8:] = b"\0" * 8

    _reseal(store, change)


def _index_points_beside(store: MemoryStore) -> None:
    _other_index(store, offset=b"\0\0\0\1\0\0\0\5")


def _time_index_is_another(store: MemoryStore) -> None:
    _other_index(store, time=b"\0" * 7 + b"\1" + b"\0\0\0\3")


def _producer_snapshot_is_none(store: MemoryStore) -> None:
    _other_index(store, producers=b"\0\1garbage")


def _epochs_are_none(store: MemoryStore) -> None:
    _other_index(store, epochs=b"7\n1\n")


def _aborted_transactions_are_none(store: MemoryStore) -> None:
    _other_index(store, txn=b"\1" * 34)


def _row_of_a_later_epoch(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    entry = manifest.segments[-2]
    key = data_key(entry.base_offset, entry.next_offset - 1, manifest.epoch + 1, entry.ulid)
    store.put(prefix + key, store.get(prefix + entry.data_key))
    _rewrite_row(store, data_key=key)


def _object_of_a_later_epoch(store: MemoryStore) -> None:
    store.put(_newest(store)[0] + data_key(5, 6, 9, new_ulid(1)), b"x")


def _counts(store: MemoryStore) -> None:
    _rewrite_row(store, record_count=1)


def _oldest_time(store: MemoryStore) -> None:
    _rewrite_row(store, min_timestamp_ms=5)


def _newest_time(store: MemoryStore) -> None:
    _rewrite_row(store, max_timestamp_ms=NOW + 5)


def _epochs_of_the_row(store: MemoryStore) -> None:
    _, manifest = _newest(store)
    _rewrite_row(store, epochs=((77, manifest.segments[-2].base_offset),))


def _offsets_of_the_row(store: MemoryStore) -> None:
    _, manifest = _newest(store)
    _rewrite_row(store, next_offset=manifest.segments[-2].next_offset - 3)


def _index_range(store: MemoryStore) -> None:
    _, manifest = _newest(store)
    entry = manifest.segments[-2]
    _rewrite_row(
        store, indexes={**entry.indexes, "time": replace(entry.indexes["time"], length=entry.indexes_bytes + 1)}
    )


def _segments_without_a_head(store: MemoryStore) -> None:
    store.delete([info.key for info in store.list("") if "/meta/head/" in info.key])


PLANTED: dict[Callable[[MemoryStore], None], str] = {
    _head_flipped: "checksum differs",
    _head_missing: "manifests are missing",
    _first_head_missing: "manifests are missing: from_sequence=1",
    _head_under_anothers_name: "has the name of another",
    _head_of_another_partition: "manifest of another partition",
    _two_writers_in_one_epoch: "two writers in one epoch",
    _epoch_goes_back: "the writer epoch skips a number",
    _other_parent: "does not follow its parent",
    _log_start_goes_back: "the log start offset would decrease from",
    _row_forgotten: "neither in a segment entry nor a pending delete",
    _named_again: "a manifest names an object again after it was unlinked",
    _data_missing: "a segment entry names an object that does not exist",
    _indexes_missing: "a segment entry names an object that does not exist",
    _data_short: "size differs",
    _bit_in_data: "checksum differs",
    _bit_in_indexes: "checksum differs",
    _name_of_another_segment: "the object name has another segment than its entry",
    _batch_crc: "crc",
    _not_a_batch_at_the_end: "crc",
    _index_points_beside: "the position of an index entry is not the start of a batch",
    _time_index_is_another: "time index entry",
    _producer_snapshot_is_none: "snapshot",
    _epochs_are_none: "its version or entry count is wrong",
    _aborted_transactions_are_none: "transaction",
    _row_of_a_later_epoch: "a segment entry has a later epoch than its manifest",
    _object_of_a_later_epoch: "the object has an epoch that no manifest has",
    _counts: "record_count=1",
    _oldest_time: "min_timestamp_ms=5",
    _newest_time: "max_timestamp_ms",
    _epochs_of_the_row: "a batch has another leader epoch than its segment entry",
    _offsets_of_the_row: "the object name has another segment than its entry",
    _index_range: "an index is outside its object",
    _segments_without_a_head: "the partition has segment objects and no manifest",
}


@pytest.mark.parametrize("plant", list(PLANTED), ids=lambda plant: plant.__name__.strip("_"))
def test_planted_damage_is_found_and_named(store: MemoryStore, plant: Callable[[MemoryStore], None]) -> None:
    plant(store)
    found = [f"{each.where}: {each.what}" for each in damage([_report(store)])]
    assert any(PLANTED[plant].lower() in each.lower() for each in found), found


@pytest.mark.parametrize(
    ("kept", "more", "what"),
    [
        (slice(0, None), (), None),
        (slice(1, None), (), "the index lacks an aborted transaction: producer_id=1 marker_at=7"),
        (slice(0, None), (2,), "the log has no aborted transaction for this entry: producer_id=2"),
    ],
)
def test_a_transaction_index_that_differs_from_the_data_is_found(
    kept: slice, more: tuple[int, ...], what: str | None
) -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        log = manager.partitions.all()[0].log
        for number in range(4):
            who = Producer(producer_id=number, producer_epoch=0, base_sequence=0, is_transactional=True)
            log.append([Record(b"k", b"v", NOW)] * 3, now_ms=NOW, producer=who)
            log.append_marker(number, 0, commit=number % 2 == 0, coordinator_epoch=0, now_ms=NOW)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    assert damage([_report(world.store)]) == []
    prefix, manifest = _newest(world.store)
    bundle = decode_bundle(world.store.get(prefix + manifest.segments[-1].indexes_key))
    entries = txn_index.entries(bundle.txn)
    assert [each.producer_id for each in entries] == [1, 3]
    wrong = [*entries[kept], *(entries[-1]._replace(producer_id=each, last_offset=99) for each in more)]
    _put_bundle(world.store, replace(bundle, txn=txn_index.encode(wrong)))
    found = [each.what for each in damage([_report(world.store)])]
    assert (found == []) if what is None else any(what in each for each in found), found


def test_a_pending_delete_that_an_entry_still_names_is_damage(store: MemoryStore) -> None:
    _, manifest = _newest(store)
    twice = replace(manifest.pending_deletes[0], key=manifest.segments[-1].data_key)
    _rewrite_head(store, lambda manifest: replace(manifest, pending_deletes=(*manifest.pending_deletes, twice)))
    assert "a segment entry still names it" in _told(store)


def test_unnamed_objects_are_reported_by_kind_and_are_not_damage(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    store.put(prefix + data_key(500, 509, 1, new_ulid(1)), b"12345")
    store.put(prefix + data_key(500, 509, 2, new_ulid(1)), b"123")
    store.put(prefix + "meta/probe/01", b"p")
    store.put(prefix + "data/notes.txt", b"somebody's")
    report = _report(store)
    assert damage([report]) == []
    counts = report.counts()
    told = (ObjectKind.ORPHAN, ObjectKind.IN_FLIGHT, ObjectKind.PROBE, ObjectKind.UNKNOWN)
    assert [counts[kind] for kind in told] == [1, 1, 1, 1]
    assert "INFO" in _told(store)
    assert "orphan of an older epoch: objects=1 bytes=5" in _told(store)
    assert f"WARNING {prefix}data/notes.txt: unknown object" in _told(store)
    assert manifest == _newest(store)[1]


def test_a_pending_delete_that_is_already_deleted_is_not_damage(store: MemoryStore) -> None:
    prefix, manifest = _newest(store)
    store.delete([prefix + each.key for each in manifest.pending_deletes])
    assert damage([_report(store)]) == []


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("is_cleaned", [False, True])
def test_missing_offsets_between_entries_are_a_warning_unless_cleaning_removed_them(
    store: MemoryStore, is_cleaned: bool, is_compacted: bool
) -> None:
    prefix, manifest = _newest(store)
    gone = manifest.segments[2]
    store.delete([prefix + gone.data_key, prefix + gone.indexes_key])

    def without(manifest: Manifest) -> Manifest:
        behind = manifest.segments[3]
        behind = replace(behind, cleaned_through=behind.next_offset if is_cleaned else None)
        properties = {"cleanup.policy": "compact,delete"} if is_compacted else {"cleanup.policy": "delete"}
        return replace(
            manifest, segments=(*manifest.segments[:2], behind, *manifest.segments[4:]), properties=properties
        )

    _rewrite_head(store, without)
    holes = [each for each in _report(store).findings if "no segment entry covers these offsets" in each.what]
    assert [each.severity for each in holes] == [Severity.INFO if is_cleaned or is_compacted else Severity.WARNING]
    assert f"from_offset={gone.base_offset} to_offset={gone.next_offset}" in holes[0].what


def test_an_entry_that_expires_during_the_check_is_not_damage(store: MemoryStore) -> None:
    """The writer commits and deletes between the check's reads of manifests and of entries."""
    prefix, manifest = _newest(store)
    gone = manifest.segments[0]

    class Meanwhile(MemoryStore):
        def get(self, key: str) -> bytes:
            if key == prefix + gone.indexes_key:
                after = replace(
                    manifest,
                    sequence=manifest.sequence + 1,
                    parent_id=manifest.commit_id,
                    commit_id="Z" * 26,
                    segments=manifest.segments[1:],
                    log_start_offset=gone.next_offset,
                )
                store.put(prefix + manifest_key(after.sequence), encode_manifest(after))
                store.delete([prefix + gone.data_key, prefix + gone.indexes_key])
                raise NotFound("cannot read an object, there is none", key=key)
            return store.get(key)

    moving = Meanwhile()
    moving._objects = store._objects
    assert damage([_report(moving)]) == []


def test_a_bucket_without_known_objects_has_no_reports() -> None:
    empty = MemoryStore()
    assert check_bucket(empty) == []
    empty.put("somebody/else", b"x")
    assert check_bucket(empty) == []
