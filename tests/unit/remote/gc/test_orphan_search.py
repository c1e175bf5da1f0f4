"""Orphans are exactly the unnamed objects of older epochs; no other object is an orphan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_samples import entry, manifest

from local.errors import Corrupt, InvalidRequest
from remote.gc.orphan_search import find_orphans, named_by, unreferenced_objects
from remote.gc.pins import pin_newest
from remote.keys import boundary_key, data_key, indexes_key, manifest_key, new_ulid, page_key, parse_epoch, pin_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import PendingDelete, encode_manifest
from remote.manifest.manifest_changes import add_segments, expire_segments, remove_pending_deletes
from remote.manifest.manifest_page import encode_page
from remote.manifest.page_out import PageRule
from remote.manifest.view import CompactedView
from remote.store import ObjectInfo
from remote.store.memory_store import MemoryStore

NOW = 1_800_000_000_000
PREFIX = f"t-{'A' * 22}/0/"
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def _info(key: str, modified_ms: int | None = NOW) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=7, modified_ms=modified_ms)


def _entry(base_offset: int, epoch: int = 1, view: str | None = None, **changes: object):
    names = base_offset, base_offset + 9, epoch, new_ulid(NOW)
    keys = {"data_key": data_key(*names, view=view), "indexes_key": indexes_key(*names, view=view)}
    epochs = ((0, base_offset),)
    return entry(names[-1], base_offset, base_offset + 10, **{**keys, "epochs": epochs, **changes})


@pytest.mark.parametrize(
    "key",
    [
        data_key(0, 9, 2, ULID),
        data_key(0, 9, 2, ULID, is_zstd=True, is_encrypted=True),
        indexes_key(0, 9, 2, ULID),
        data_key(0, 9, 2, ULID, view="v"),
        page_key(0, 10, (None, 5), 2, ULID),
    ],
)
def test_an_unnamed_object_is_an_orphan_only_in_a_later_epoch(key: str) -> None:
    found = {epoch: unreferenced_objects([_info(key)], epoch=epoch, named=()) for epoch in (1, 2, 3, 9)}
    assert {epoch: len(each) for epoch, each in found.items()} == {1: 0, 2: 0, 3: 1, 9: 1}
    assert found[3] == [_info(key)]
    assert unreferenced_objects([_info(key)], epoch=9, named={key}) == []


@pytest.mark.parametrize(
    "key",
    [
        manifest_key(1),
        boundary_key(1),
        pin_key(ULID),
        f"meta/probe/{ULID}",
        "data/notes.txt",
        f"data/{0:020d}-{9:020d}-{1:010d}-{ULID}.log.gz",
        f"other/{0:020d}-{9:020d}-{1:010d}-{ULID}.log",
        f"data/{0:020d}-{9:020d}-{1:010d}-{ULID}.log/more",
        f"meta/spill/{0:020d}-{9:020d}-{ULID}.parquet",
        "",
    ],
)
def test_manifests_boundaries_pins_probes_and_unknown_names_are_never_orphans(key: str) -> None:
    assert parse_epoch(key) is None
    assert unreferenced_objects([_info(key)], epoch=9, named=()) == []


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans()), max_size=20),
    st.integers(1, 5),
)
def test_orphans_are_all_unnamed_objects_of_older_epochs_and_no_others(
    drawn: list[tuple[int, int, bool]], epoch: int
) -> None:
    keys = {data_key(at * 10, at * 10 + 9, each, ULID): (each, named) for at, each, named in drawn}
    named = {key for key, (_, is_named) in keys.items() if is_named}
    found = {orphan.key for orphan in unreferenced_objects(map(_info, keys), epoch=epoch, named=named)}
    assert found == {key for key, (made_in, is_named) in keys.items() if made_in < epoch and not is_named}


def test_a_manifest_names_its_entries_pages_views_and_pending_deletes() -> None:
    entries = [_entry(at * 10) for at in range(4)]
    page, _ = encode_page(tuple(entries[:2]), 1, ULID)
    part = _entry(0, view="v")
    gone = PendingDelete(key=data_key(70, 79, 1, ULID), size_bytes=1, unlinked_ms=1, epoch=1)
    view = CompactedView(name="v", entries=(part,), horizon_offset=10)
    known = manifest(*entries[2:], pages=(page,), views=(view,), pending_deletes=(gone,))
    wanted = {key for each in (*entries, part) for key in (each.data_key, each.indexes_key)} | {page.key, gone.key}
    assert named_by(known, lambda page: tuple(entries[:2])) == wanted


# --- in a bucket -----------------------------------------------------------------------------------------------------


def _opened(store: MemoryStore, **options: object) -> MetadataLog:
    log = MetadataLog(store, PREFIX, **options)  # type: ignore[arg-type]
    log.become_writer("me", NOW, topic="t", topic_id="A" * 22, partition=0)
    return log


def _put(store: MemoryStore, *entries: object) -> None:
    for each in entries:
        store.put(PREFIX + each.data_key, b"d")  # type: ignore[attr-defined]
        store.put(PREFIX + each.indexes_key, b"i")  # type: ignore[attr-defined]


def _found(store: MemoryStore, now_ms: int = NOW) -> list[str]:
    return [orphan.key for orphan in find_orphans(store, PREFIX, MetadataLog(store, PREFIX), now_ms=now_ms)]


def test_an_upload_without_a_commit_is_an_orphan_after_the_next_takeover() -> None:
    store = MemoryStore()
    log, kept, lost = _opened(store), _entry(0), _entry(10)
    _put(store, kept, lost)
    log.commit(add_segments([kept]), NOW)
    assert _found(store) == []  # its writer may be about to commit it
    _opened(store)
    assert _found(store) == [lost.indexes_key, lost.data_key]


def test_pages_in_a_manifest_are_named_and_a_page_without_one_is_an_orphan() -> None:
    store = MemoryStore()
    log = _opened(store, rule=PageRule(manifest_bytes_max=300, page_rows_min=1, kept_entries_min=1))
    entries = [_entry(at * 10) for at in range(6)]
    _put(store, *entries)
    for each in entries:
        log.commit(add_segments([each]), NOW)
    newest = log.cached
    assert newest is not None
    assert newest.pages
    lost, body = encode_page(tuple(entries[:3]), 1, new_ulid(NOW))
    store.put(PREFIX + lost.key, body)
    _opened(store)
    assert _found(store) == [lost.key]


def test_orphans_without_a_manifest_raise_corrupt() -> None:
    store = MemoryStore()
    _put(store, _entry(0))
    with pytest.raises(Corrupt, match="the partition has objects and no manifest"):
        _found(store)


def test_objects_of_a_pinned_manifest_are_no_orphans_until_the_pin_expires() -> None:
    """The newest manifest dropped the object against the rule; the pinned manifest still protects it."""
    store = MemoryStore()
    log, first = _opened(store), _entry(0)
    _put(store, first)
    log.commit(add_segments([first]), NOW)
    pin_newest(store, PREFIX, MetadataLog(store, PREFIX), now_ms=NOW, expires_ms=NOW + 10, holder="x")
    log.commit(expire_segments([first.ulid], now_ms=NOW), NOW)
    log.commit(remove_pending_deletes([first.data_key, first.indexes_key]), NOW)
    _opened(store)
    assert _found(store) == []
    assert _found(store, NOW + 10) == [first.indexes_key, first.data_key]


def test_an_unreadable_manifest_or_page_raises_corrupt_and_gives_no_orphans() -> None:
    store = MemoryStore()
    log = _opened(store, rule=PageRule(manifest_bytes_max=300, page_rows_min=1, kept_entries_min=1))
    entries = [_entry(at * 10) for at in range(4)]
    _put(store, *entries, _entry(50))
    for each in entries:
        log.commit(add_segments([each]), NOW)
    newest = _opened(store).cached
    assert newest is not None
    page = PREFIX + newest.pages[0].key
    body = store.get(page)
    store.put(page, body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(Corrupt):
        _found(store)
    store.put(page, body)
    store.put(PREFIX + manifest_key(newest.sequence), encode_manifest(replace(newest, sequence=1)))
    with pytest.raises(Corrupt):
        _found(store)


@pytest.mark.parametrize("made_in", [1, 3])
def test_a_commit_that_names_an_object_of_another_epoch_is_refused(made_in: int) -> None:
    """Objects of an older epoch may be deleted at any moment; this writer can have none of a later epoch."""
    store = MemoryStore()
    _opened(store)
    log = _opened(store)
    left = _entry(0, made_in)
    _put(store, left)
    with pytest.raises(InvalidRequest, match="an object of another epoch"):
        log.commit(add_segments([left]), NOW)
    log.commit(add_segments([_entry(0, 2)]), NOW)
