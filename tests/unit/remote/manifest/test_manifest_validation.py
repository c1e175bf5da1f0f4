"""Forged manifests: every reader refuses them, and the error names the place of each contradiction."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from remote_samples import forged, manifest, stored_row, ulid_of
from view_samples import view, view_row

from local.errors import Corrupt, InvalidRequest, NotFound
from local.format.crc32c import crc32c
from remote.check.partition_check import salvage_manifest
from remote.gc.delayed_delete import delete_due_objects, delete_due_pages
from remote.gc.pins import PinWatch, list_pins
from remote.keys import data_key, indexes_key, manifest_key, new_ulid, partition_prefix, pin_key
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import (
    PendingDelete,
    PendingPageDelete,
    decode_line,
    decode_manifest,
    encode_line,
    encode_manifest,
)
from remote.manifest.manifest_chain import decode_boundary
from remote.manifest.manifest_changes import add_segments
from remote.manifest.manifest_page import decode_page, encode_page
from remote.manifest.manifest_validation import Part
from remote.manifest.page_out import PageRule
from remote.segment_entry import OBJECT_BYTES_MAX, SegmentState
from remote.store.memory_store import MemoryStore

PREFIX = partition_prefix("orders", "A" * 22, 2)
ROWS = tuple(stored_row(f"R{at}", at * 10, at * 10 + 10) for at in range(4))
SPILL, _ = encode_page((stored_row("S1", 0, 10), stored_row("S2", 10, 20)), 1, ulid_of("P"))
WAITING = PendingDelete(key=stored_row("U0").data_key, size_bytes=9, unlinked_ms=8, epoch=2, unlinked_sequence=5)
SAMPLE = manifest(*ROWS, pending_deletes=(WAITING,), views=(view(view_row()),), properties={"a": "b"})


def with_row(at=1, **changes):
    return replace(SAMPLE, segments=(*ROWS[:at], replace(ROWS[at], **changes), *ROWS[at + 1 :]))


def with_waiting(**changes):
    return replace(SAMPLE, pending_deletes=(replace(WAITING, **changes),))


def with_spill(**changes):
    return manifest(*ROWS[2:], pages=(replace(SPILL, **changes),))


FORK = f"/other-{'B' * 22}/0/"
OTHER = stored_row("R1", 0, 10)
FORGERIES = {
    "an offset beyond int64": (with_row(3, next_offset=2**63), "segments[3].next_offset"),
    "a log start beyond int64": (replace(SAMPLE, log_start_offset=2**64), "log_start_offset"),
    "a negative log start": (replace(SAMPLE, log_start_offset=-1), "log_start_offset"),
    "a tiered_upto beyond int64": (replace(SAMPLE, expired_end_offset=10**19), "tiered_upto"),
    "a sequence of 21 digits": (replace(SAMPLE, sequence=10**20), "sequence"),
    "a writer epoch of 2^40": (replace(SAMPLE, epoch=2**40), "epoch"),
    "a leader epoch of 2^40": (with_row(epochs=((2**40, 10),)), "epochs"),
    "a leader epoch that begins behind its segment": (with_row(epochs=((1, 2**60),)), "leader epoch"),
    "leader epochs out of order": (with_row(epochs=((1, 15), (2, 12))), "leader epoch"),
    "a time beyond int64": (with_row(max_timestamp_ms=2**63), "max_timestamp_ms"),
    "a size beyond any object": (with_row(size_bytes=OBJECT_BYTES_MAX + 1), "size_bytes"),
    "an empty segment": (with_row(stored_bytes=0), "stored_bytes"),
    "a checksum of 33 bits": (with_row(data_crc32c=2**32), "data_crc32c"),
    "a negative record count": (with_row(record_count=-1), "record_count"),
    "an entry whose key climbs out": (with_row(data_key="data/../../x.log"), "not a data object"),
    "an entry whose key is a head's": (with_row(data_key=manifest_key(7)), "not a data object"),
    "an entry whose key is of another segment": (with_row(data_key=OTHER.data_key), "another segment than its entry"),
    "an entry whose key has other offsets": (with_row(3, next_offset=2**62), "another segment than its entry"),
    "an entry with another ULID": (with_row(ulid=ulid_of("X")), "another segment than its entry"),
    "an entry of another's indexes": (with_row(indexes_key=OTHER.indexes_key), "another segment than its entry"),
    "an entry with a view's key": (with_row(data_key=view_row("R1", 10, 20).data_key), "not a data object"),
    "an entry of a later epoch": (
        with_row(data_key=data_key(10, 19, 9, ulid_of("R1")), indexes_key=indexes_key(10, 19, 9, ulid_of("R1"))),
        "later epoch",
    ),
    "an entry of a partition with no legal name": (with_row(data_key=f"/x/0/{ROWS[1].data_key}"), "another partition"),
    "an entry with an unknown codec": (with_row(codec="rot13"), "codec"),
    "an entry with another codec than its key says": (with_row(codec="zstd"), "the object name has another encoding"),
    "an entry with half a data key": (with_row(wrapped_key="AAAA"), "or a key id without a data key"),
    "an index behind its object": (
        with_row(indexes={"txn": replace(ROWS[1].indexes["offset"], start=49, length=2)}),
        "outside its object",
    ),
    "two entries of one object": (
        replace(SAMPLE, segments=(*ROWS, replace(ROWS[3], base_offset=40, next_offset=50))),
        "another segment than its entry",
    ),
    "entries that overlap": (with_row(base_offset=9), "overlap"),
    "entries out of order": (replace(SAMPLE, segments=(ROWS[1], ROWS[0])), "overlap"),
    "an entry that ends before it begins": (with_row(next_offset=10), "overlap"),
    "a pending delete of a head": (with_waiting(key=manifest_key(3)), "neither a segment object nor a manifest page"),
    "a pending delete of a boundary": (with_waiting(key="meta/gc/boundary/" + "0" * 20), "neither a segment"),
    "a pending delete that climbs out": (with_waiting(key="../../x/data/y"), "neither a segment"),
    "a pending delete of another bucket's object": (with_waiting(key="/x"), "another partition"),
    "a pending delete of a named object": (
        with_waiting(key=ROWS[2].data_key),
        "the object is a pending delete and a segment entry still names it",
    ),
    "a pending delete of a named index": (
        with_waiting(key=ROWS[2].indexes_key),
        "the object is a pending delete and a segment entry still names it",
    ),
    "a pending delete of a view's object": (
        with_waiting(key=view_row().data_key),
        "the object is a pending delete and a segment entry still names it",
    ),
    "a pending delete of a later manifest": (with_waiting(unlinked_sequence=8), "a later manifest"),
    "a pending delete of a later epoch": (with_waiting(epoch=4), "a later manifest"),
    "a pending delete before 1970": (with_waiting(unlinked_ms=-1), "unlinked_ms"),
    "a page with no page's key": (with_spill(key="meta/spill/x.parquet"), "its key is not the key of a manifest page"),
    "a page with other offsets than its key": (with_spill(base_offset=1), "its key has other offsets"),
    "a page with more segments than offsets": (with_spill(segment_count=21), "the segment count is zero or larger"),
    "a page with a gap outside it": (with_spill(gaps=((5, 25),)), "a gap is outside the page or out of order"),
    "a page whose leader epoch is beyond it": (with_spill(epochs=((1, 2**50),)), "outside the page"),
    "a pending delete of a named page": (
        replace(with_spill(), pending_page_deletes=(PendingPageDelete(page=SPILL, unlinked_ms=1, epoch=1),)),
        "the object is a pending delete and a segment entry still names it",
    ),
    "a view with an illegal name": (replace(SAMPLE, views=(view(name="../x"),)), "invalid view name"),
    "a view with an entry of the log": (replace(SAMPLE, views=(view(ROWS[0]),)), "not a data object"),
    "another topic's identity": (replace(SAMPLE, topic="others"), "manifest of another partition"),
    "another topic's id": (replace(SAMPLE, topic_id="B" * 22), "manifest of another partition"),
    "another partition": (replace(SAMPLE, partition=3), "manifest of another partition"),
    "an illegal topic": (replace(SAMPLE, topic="../x"), "the name of its partition is invalid"),
    "an illegal topic id": (replace(SAMPLE, topic_id="short"), "the name of its partition is invalid"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_manifest_raises_corrupt_with_the_place(forgery):
    wrong, told = FORGERIES[forgery]
    with pytest.raises(Corrupt) as error:
        decode_manifest(forged(wrong), PREFIX)
    assert told in str(error.value)


@pytest.mark.parametrize("forgery", [name for name in FORGERIES if not name.startswith("another ")])
def test_a_manifest_that_readers_refuse_is_not_written(forgery):
    with pytest.raises(InvalidRequest, match=r"invalid manifest|refuse the new manifest"):
        encode_manifest(FORGERIES[forgery][0])


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_operation_of_the_chain_accepts_a_forged_manifest_or_writes_after_it(forgery):
    wrong = FORGERIES[forgery][0]
    store = MemoryStore()
    store.put(PREFIX + manifest_key(7), forged(wrong))
    before = dict(store._objects)
    for read in (lambda log: log.load(exact=True), lambda log: log.refresh(), become_writer):
        with pytest.raises(Corrupt):
            read(MetadataLog(store, PREFIX))
    assert store._objects == before


def become_writer(log):
    log.become_writer("w", 1, topic="orders", topic_id="A" * 22, partition=2)


def test_a_valid_manifest_with_entries_of_all_kinds_is_accepted():
    fork = replace(ROWS[1], data_key=FORK + ROWS[1].data_key, indexes_key=FORK + ROWS[1].indexes_key)
    job = replace(ROWS[3], next_offset=55, made_by="a-job")
    whole = replace(
        SAMPLE,
        segments=(ROWS[0], fork, ROWS[2], job),
        pending_deletes=(WAITING, replace(WAITING, key=FORK + WAITING.key), replace(WAITING, key=SPILL.key)),
    )
    assert decode_manifest(encode_manifest(whole), PREFIX) == whole
    assert decode_manifest(encode_manifest(with_spill()), PREFIX) == with_spill()


@pytest.mark.parametrize("forgery", FORGERIES)
def test_the_salvaged_part_of_a_forged_manifest_is_valid_and_the_rest_is_named(forgery):
    salvage = salvage_manifest(forged(FORGERIES[forgery][0]), PREFIX)
    assert salvage.found
    if salvage.manifest is not None:
        assert {entry.ulid for entry in salvage.manifest.segments} <= {entry.ulid for entry in (*ROWS, OTHER)} | {
            ulid_of("X")
        }
        assert decode_manifest(forged(salvage.manifest), PREFIX) == salvage.manifest


def test_a_refused_entry_is_reported_with_its_key_and_the_others_are_salvaged():
    salvage = salvage_manifest(forged(with_row(data_crc32c=2**32)), PREFIX)
    assert salvage.manifest is not None
    assert [entry.ulid for entry in salvage.manifest.segments] == [ROWS[0].ulid, ROWS[2].ulid, ROWS[3].ulid]
    (found,) = salvage.found
    assert (found.part, found.index, found.key) == (Part.SEGMENTS, 1, ROWS[1].data_key)


def test_a_manifest_with_wrong_json_types_raises_corrupt():
    body = json.loads(decode_line(encode_manifest(SAMPLE)))
    for field in body:
        for value in (None, [], {}, "x", 1.5, [[None]], {"a": []}, "\ud800"):
            text = json.dumps({**body, field: value}).encode()
            try:
                found = decode_manifest(encode_line(text), PREFIX)
            except Corrupt:
                continue
            assert decode_manifest(encode_manifest(found), PREFIX) == found


@pytest.mark.deep("a manifest of sixty thousand entries")
def test_a_manifest_of_sixty_thousand_entries_is_validated_to_the_end():
    entries = []
    for at in range(60_000):
        ulid = new_ulid(1_700_000_000_000 + at)
        names = at * 10, at * 10 + 9, 3, ulid
        keys = {"data_key": data_key(*names), "indexes_key": indexes_key(*names)}
        entries.append(replace(ROWS[0], ulid=ulid, base_offset=names[0], next_offset=names[1] + 1, epochs=(), **keys))
    body = encode_manifest(manifest(*entries))
    assert decode_manifest(body, PREFIX).segment_count == 60_000
    with pytest.raises(Corrupt, match=r"place=segments\[59999\]"):
        decode_manifest(forged(manifest(*entries[:-1], replace(entries[-1], ulid=ulid_of("X")))), PREFIX)


@pytest.fixture
def paged():
    """A store with the objects of eight entries, the older ones in pages, and the writer's log."""
    store = MemoryStore()
    log = MetadataLog(
        store, PREFIX, rule=PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=3, kept_entries_min=2)
    )
    become_writer(log)
    for at in range(8):
        made = stored_row(f"R{at}", at * 10, at * 10 + 10)
        for key in (made.data_key, made.indexes_key):
            store.put(PREFIX + key, b"x")
        log.commit(add_segments([made]), 2)
    assert log.cached.pages
    return store, log


def next_head(store, newest, **changes):
    """Put a forged successor of `newest`."""
    following = replace(newest, sequence=newest.sequence + 1, parent_id=newest.commit_id, commit_id="F", **changes)
    store.put(PREFIX + manifest_key(following.sequence), forged(following))
    return following


def data_objects(store):
    return {key for key in store._objects if "/data/" in key}


@pytest.mark.parametrize("at", [0, 4])
def test_a_forged_pending_delete_of_an_object_named_in_a_page_deletes_nothing(paged, at):
    store, log = paged
    victim = stored_row(f"R{at}", at * 10, at * 10 + 10)
    before = data_objects(store)
    for key in (victim.data_key, victim.indexes_key):
        waiting = PendingDelete(key=key, size_bytes=1, unlinked_ms=0, epoch=1)
        next_head(store, log.refresh(exact=True), pending_deletes=(waiting,))
        log.refresh(exact=True)
        with pytest.raises(Corrupt, match="nothing was deleted"):
            delete_due_objects(store, PREFIX, log, PinWatch(store, PREFIX), [key], 10**12)
    assert data_objects(store) == before


def test_a_pending_page_delete_spares_objects_that_another_page_names(paged):
    store, log = paged
    newest = log.refresh(exact=True)
    page = newest.pages[0]
    entries = tuple(log.page_entries(page))
    twin, body = encode_page(entries, 1, ulid_of("TW"))
    store.put(PREFIX + twin.key, body)
    before = data_objects(store)
    next_head(store, newest, pending_page_deletes=(PendingPageDelete(page=twin, unlinked_ms=0, epoch=1),))
    log.refresh(exact=True)
    delete_due_pages(store, PREFIX, log, PinWatch(store, PREFIX), [twin.key], 10**12)
    assert data_objects(store) == before


FORGED_PAGES = {
    "an illegal key": ({"data_key": "data/../../x.log"}, "not a data object"),
    "another segment's key": ({"data_key": ROWS[3].data_key}, "another segment than its entry"),
    "a leader epoch beyond the segment": ({"epochs": ((1, 2**50),)}, "leader epoch"),
    "a leader epoch of 2^40": ({"epochs": ((2**40, 11),)}, "epochs"),
    "a negative size": ({"size_bytes": -5}, "size_bytes"),
    "an entry that is is unfinished": ({"state": SegmentState.DELETE_STARTED}, "is unfinished"),
    "entries that overlap": ({"base_offset": 9}, "overlap or are out of order"),
    "an entry that ends before it begins": ({"next_offset": 10}, "overlap or are out of order"),
}


@pytest.mark.parametrize("forgery", FORGED_PAGES)
def test_a_forged_page_with_a_valid_checksum_raises_corrupt(forgery):
    changes, told = FORGED_PAGES[forgery]
    entries = (ROWS[0], replace(ROWS[1], **changes), ROWS[2])
    page, body = encode_page(entries, 1, ulid_of("P"))
    with pytest.raises(Corrupt, match=told):
        list(decode_page(page, body))


@pytest.mark.parametrize(
    "changes",
    [
        {"sequence": 10**20},
        {"sequence": 0},
        {"expires_ms": 10**30},
        {"fork": "../../x/"},
        {"fork": f"orders-{'A' * 22}/0"},
        {"renews": "meta/head/1"},
        {"holder": 5},
    ],
)
def test_a_forged_pin_raises_corrupt(changes):
    store, key = MemoryStore(), pin_key(new_ulid(1))
    body = {"sequence": 1, "commit_id": "C", "expires_ms": 5, "holder": "h"}
    store.put(PREFIX + key, json.dumps(body).encode())
    assert [pin.sequence for pin in list_pins(store, PREFIX)] == [1]
    store.put(PREFIX + key, json.dumps({**body, **changes}).encode())
    with pytest.raises(Corrupt, match="pin"):
        list_pins(store, PREFIX)


@pytest.mark.parametrize("upto", [0, 2**63, 10**20 - 1])
def test_a_forged_boundary_raises_corrupt(upto):
    text = b"tiered-boundary 1 %020d " % upto
    with pytest.raises(Corrupt, match="a GC boundary is damaged"):
        decode_boundary(text + b"%08x\n" % crc32c(text))


def test_reading_a_partition_that_does_not_exist_raises_not_found():
    with pytest.raises(NotFound, match="the partition has no manifest"):
        MetadataLog(MemoryStore(), PREFIX).refresh()
