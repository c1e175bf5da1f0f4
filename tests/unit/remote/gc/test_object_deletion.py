"""Objects are deleted only if each key meets the precondition of the reason, and deletions are counted by reason."""

from __future__ import annotations

import pytest

from local.errors import InvalidRequest
from remote.gc.object_deletion import DeleteReason, Evidence, delete_objects, deletions
from remote.keys import data_key, manifest_key, page_key, pin_key
from remote.manifest.manifest import Manifest, PageEntry, PendingDelete, PendingPageDelete
from remote.store.memory_store import MemoryStore

PREFIX = "t-Yune3fyATvKLNh0q9V3QqQ/0/"
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
OLD, PRESENT = data_key(0, 9, 1, ULID), data_key(10, 19, 3, ULID)
IN_PAGE, PAGE = data_key(105, 109, 1, ULID), page_key(100, 200, (None, None), 1, ULID)
OTHERS = f"/u-Yune3fyATvKLNh0q9V3QqQ/0/{OLD}"


def _manifest() -> Manifest:
    page = PageEntry(
        key=PAGE,
        base_offset=100,
        next_offset=200,
        min_timestamp_ms=None,
        max_timestamp_ms=None,
        first_stamp_ms=0,
        segment_count=1,
        record_count=1,
        size_bytes=1,
        stored_bytes=1,
        page_bytes=1,
        page_crc32c=0,
    )
    listed = (OLD, OTHERS)
    return Manifest(
        sequence=7,
        epoch=3,
        commit_id="c",
        parent_id="b",
        writer_id="w",
        topic="t",
        topic_id="Yune3fyATvKLNh0q9V3QqQ",
        partition=0,
        log_start_offset=200,
        committed_ms=0,
        pending_deletes=tuple(PendingDelete(key=key, size_bytes=1, unlinked_ms=0, epoch=1) for key in listed),
        pending_page_deletes=(PendingPageDelete(page=page, unlinked_ms=0, epoch=1),),
        properties={},
    )


UNLINKED = Evidence(manifest=_manifest())
FORKED = Evidence(manifest=_manifest(), named_by_forks=frozenset({OLD, IN_PAGE}))
ALLOWED = [
    (DeleteReason.PENDING_DELETE, OLD, UNLINKED),
    (DeleteReason.PENDING_PAGE, PAGE, UNLINKED),
    (DeleteReason.PENDING_PAGE, IN_PAGE, UNLINKED),
    (DeleteReason.OLD_MANIFEST, manifest_key(5), Evidence(gc_boundary=5)),
    (DeleteReason.PIN, pin_key(ULID), Evidence()),
    (DeleteReason.ORPHAN, OLD, Evidence(epoch=3)),
    (DeleteReason.OWN_UPLOAD, PRESENT, Evidence()),
    (DeleteReason.PROBE, f"meta/probe/{ULID}", Evidence()),
    (DeleteReason.EXPORT, "topic=t/part-0.parquet", Evidence()),
    (DeleteReason.BENCHMARK, "anything", Evidence()),
]
REFUSED = [
    (DeleteReason.PENDING_DELETE, PRESENT, UNLINKED),  # not listed
    (DeleteReason.PENDING_DELETE, OTHERS, UNLINKED),
    (DeleteReason.PENDING_DELETE, OLD, FORKED),
    (DeleteReason.PENDING_DELETE, OLD, Evidence()),
    (DeleteReason.PENDING_PAGE, PRESENT, UNLINKED),  # outside the page
    (DeleteReason.PENDING_PAGE, IN_PAGE, FORKED),
    (DeleteReason.PENDING_PAGE, PAGE, Evidence()),
    (DeleteReason.OLD_MANIFEST, manifest_key(6), Evidence(gc_boundary=5)),
    (DeleteReason.OLD_MANIFEST, OLD, Evidence(gc_boundary=5)),
    (DeleteReason.OLD_MANIFEST, manifest_key(1), Evidence()),
    (DeleteReason.PIN, OLD, Evidence()),
    (DeleteReason.ORPHAN, PRESENT, Evidence(epoch=3)),  # of the present epoch
    (DeleteReason.ORPHAN, "notes.txt", Evidence(epoch=3)),  # of other software
    (DeleteReason.ORPHAN, OLD, Evidence()),
    (DeleteReason.OWN_UPLOAD, manifest_key(1), Evidence()),
    (DeleteReason.PROBE, OLD, Evidence()),
    (DeleteReason.EXPORT, PREFIX + OLD, Evidence()),
]


@pytest.mark.parametrize(("reason", "key", "evidence"), ALLOWED)
def test_a_key_that_meets_the_precondition_is_deleted_and_counted(
    reason: DeleteReason, key: str, evidence: Evidence
) -> None:
    store = MemoryStore()
    store.put(PREFIX + key, b"x")
    delete_objects(store, PREFIX, [key], reason, evidence)
    assert list(store.list("")) == []
    assert deletions(store).by_reason == {reason: 1}


@pytest.mark.parametrize(("reason", "key", "evidence"), REFUSED)
def test_a_key_without_the_precondition_is_refused_with_all_others(
    reason: DeleteReason, key: str, evidence: Evidence
) -> None:
    sound = next((each for at, each, _ in ALLOWED if at is reason), key)
    store = MemoryStore()
    for each in (sound, key.lstrip("/")):
        store.put(PREFIX + each, b"x")
    before = list(store.list(""))
    with pytest.raises(InvalidRequest, match="nothing was deleted"):
        delete_objects(store, PREFIX, [sound, key], reason, evidence)
    assert list(store.list("")) == before
    assert deletions(store).by_reason == {}


def test_every_reason_has_a_case() -> None:
    assert {reason for reason, _, _ in ALLOWED} == set(DeleteReason)
