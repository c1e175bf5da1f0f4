"""Which objects are nobody's: exactly those of older epochs that nothing names; of all others the rule says nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_samples import head, row

from local.errors import Corrupt, InvalidRequest
from remote.gc.orphans import Orphan, find_orphans, named_by, nobodys
from remote.gc.pins import pin_newest
from remote.keys import boundary_key, data_key, head_key, indexes_key, new_ulid, parse_epoch, pin_key, spill_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import UnlinkedObject, encode_head
from remote.manifest.manifest_changes import add_segments, expire_segments, forget_unlinked
from remote.manifest.manifest_page import encode_page
from remote.manifest.page_spill import SpillRule
from remote.manifest.view import CompactedView
from remote.store import ObjectInfo
from remote.store.memory_store import MemoryStore

NOW = 1_800_000_000_000
PREFIX = f"t-{'A' * 22}/0/"
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def _info(key: str, modified_ms: int | None = NOW) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=7, modified_ms=modified_ms)


def _row(base_offset: int, epoch: int = 1, view: str | None = None, **changes: object):
    names = base_offset, base_offset + 9, epoch, new_ulid(NOW)
    keys = {"data_key": data_key(*names, view=view), "indexes_key": indexes_key(*names, view=view)}
    epochs = ((0, base_offset),)
    return row(names[-1], base_offset, base_offset + 10, **{**keys, "epochs": epochs, **changes})


@pytest.mark.parametrize(
    "key",
    [
        data_key(0, 9, 2, ULID),
        data_key(0, 9, 2, ULID, is_zstd=True, is_encrypted=True),
        indexes_key(0, 9, 2, ULID),
        data_key(0, 9, 2, ULID, view="v"),
        spill_key(0, 10, (None, 5), 2, ULID),
    ],
)
def test_only_an_older_epoch_makes_an_unnamed_object_nobodys(key: str) -> None:
    found = {epoch: nobodys([_info(key)], epoch=epoch, named=()) for epoch in (1, 2, 3, 9)}
    assert {epoch: len(each) for epoch, each in found.items()} == {1: 0, 2: 0, 3: 1, 9: 1}
    assert found[3] == [Orphan(key=key, size_bytes=7, modified_ms=NOW, epoch=2)]
    assert nobodys([_info(key)], epoch=9, named={key}) == []


@pytest.mark.parametrize(
    "key",
    [
        head_key(1),
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
def test_heads_boundaries_pins_probes_and_unknown_names_are_never_nobodys(key: str) -> None:
    assert parse_epoch(key) is None
    assert nobodys([_info(key)], epoch=9, named=()) == []


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans()), max_size=20),
    st.integers(1, 5),
)
def test_nothing_named_nothing_of_the_newest_epoch_and_all_else_is_found(
    drawn: list[tuple[int, int, bool]], epoch: int
) -> None:
    keys = {data_key(at * 10, at * 10 + 9, each, ULID): (each, named) for at, each, named in drawn}
    named = {key for key, (_, is_named) in keys.items() if is_named}
    found = {orphan.key for orphan in nobodys(map(_info, keys), epoch=epoch, named=named)}
    assert found == {key for key, (made_in, is_named) in keys.items() if made_in < epoch and not is_named}


def test_a_head_names_its_rows_its_pages_and_their_rows_its_views_and_what_it_gave_up() -> None:
    rows = [_row(at * 10) for at in range(4)]
    page, _ = encode_page(tuple(rows[:2]), 1, ULID)
    part = _row(0, view="v")
    gone = UnlinkedObject(key=data_key(70, 79, 1, ULID), size_bytes=1, unlinked_ms=1, epoch=1)
    view = CompactedView(name="v", rows=(part,), horizon_offset=10)
    known = head(*rows[2:], spills=(page,), views=(view,), unlinked=(gone,))
    wanted = {key for each in (*rows, part) for key in (each.data_key, each.indexes_key)} | {page.key, gone.key}
    assert named_by(known, lambda spill: tuple(rows[:2])) == wanted


# --- in a bucket -----------------------------------------------------------------------------------------------------


def _opened(store: MemoryStore, **options: object) -> MetadataLog:
    log = MetadataLog(store, PREFIX, **options)  # type: ignore[arg-type]
    log.become_writer("me", NOW, topic="t", topic_id="A" * 22, partition=0)
    return log


def _put(store: MemoryStore, *rows: object) -> None:
    for each in rows:
        store.put(PREFIX + each.data_key, b"d")  # type: ignore[attr-defined]
        store.put(PREFIX + each.indexes_key, b"i")  # type: ignore[attr-defined]


def _found(store: MemoryStore, now_ms: int = NOW) -> list[str]:
    return [orphan.key for orphan in find_orphans(store, PREFIX, MetadataLog(store, PREFIX), now_ms=now_ms)]


def test_an_upload_that_was_never_committed_is_nobodys_once_another_writer_came() -> None:
    store = MemoryStore()
    log, kept, lost = _opened(store), _row(0), _row(10)
    _put(store, kept, lost)
    log.commit(add_segments([kept]), NOW)
    assert _found(store) == []  # its writer may be about to commit it
    _opened(store)
    assert _found(store) == [lost.indexes_key, lost.data_key]


def test_pages_and_their_rows_are_named_and_a_page_whose_head_never_came_is_nobodys() -> None:
    store = MemoryStore()
    log = _opened(store, rule=SpillRule(head_bytes_max=300, page_rows_min=1, kept_rows_min=1))
    rows = [_row(at * 10) for at in range(6)]
    _put(store, *rows)
    for each in rows:
        log.commit(add_segments([each]), NOW)
    newest = log.cached
    assert newest is not None
    assert newest.spills
    lost, body = encode_page(tuple(rows[:3]), 1, new_ulid(NOW))
    store.put(PREFIX + lost.key, body)
    _opened(store)
    assert _found(store) == [lost.key]


def test_without_a_head_nothing_is_nobodys() -> None:
    store = MemoryStore()
    _put(store, _row(0))
    with pytest.raises(Corrupt, match="there is none beside its objects"):
        _found(store)


def test_what_a_pinned_head_names_is_somebodys_until_the_pin_expires() -> None:
    """The head forgot it by a rule that was broken: the pin's head still counts."""
    store = MemoryStore()
    log, first = _opened(store), _row(0)
    _put(store, first)
    log.commit(add_segments([first]), NOW)
    pin_newest(store, PREFIX, MetadataLog(store, PREFIX), now_ms=NOW, expires_ms=NOW + 10, holder="x")
    log.commit(expire_segments([first.ulid], now_ms=NOW), NOW)
    log.commit(forget_unlinked([first.data_key, first.indexes_key]), NOW)
    _opened(store)
    assert _found(store) == []
    assert _found(store, NOW + 10) == [first.indexes_key, first.data_key]


def test_a_head_or_a_page_that_cannot_be_read_makes_nothing_nobodys() -> None:
    store = MemoryStore()
    log = _opened(store, rule=SpillRule(head_bytes_max=300, page_rows_min=1, kept_rows_min=1))
    rows = [_row(at * 10) for at in range(4)]
    _put(store, *rows, _row(50))
    for each in rows:
        log.commit(add_segments([each]), NOW)
    newest = _opened(store).cached
    assert newest is not None
    page = PREFIX + newest.spills[0].key
    body = store.get(page)
    store.put(page, body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(Corrupt):
        _found(store)
    store.put(page, body)
    store.put(PREFIX + head_key(newest.sequence), encode_head(replace(newest, sequence=1)))
    with pytest.raises(Corrupt):
        _found(store)


def test_one_whose_age_is_not_known_is_never_due() -> None:
    orphan = Orphan(key="k", size_bytes=1, modified_ms=NOW, epoch=1)
    assert [orphan.is_due(NOW + age, 10) for age in (0, 9, 10)] == [False, False, True]
    assert not replace(orphan, modified_ms=None).is_due(NOW + 100, 10)


@pytest.mark.parametrize("made_in", [1, 3])
def test_no_head_names_an_object_of_another_epoch(made_in: int) -> None:
    """What an older epoch left may be deleted at any moment; of a later one this writer can have nothing."""
    store = MemoryStore()
    _opened(store)
    log = _opened(store)
    left = _row(0, made_in)
    _put(store, left)
    with pytest.raises(InvalidRequest, match="an object of another epoch"):
        log.commit(add_segments([left]), NOW)
    log.commit(add_segments([_row(0, 2)]), NOW)
