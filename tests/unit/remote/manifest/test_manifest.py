"""The bytes of a manifest, and the pure changes that a writer commits."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from local.errors import Corrupt, InvalidRequest
from local.format.compression import Codec, decompress
from local.format.crc32c import crc32c
from remote.manifest.manifest import (
    STORED_MANIFEST,
    PendingDelete,
    decode_line,
    decode_manifest,
    encode_line,
    encode_manifest,
)
from remote.manifest.manifest_changes import (
    add_segments,
    advance_cleaned_offset,
    disable_tier,
    expire_pages,
    expire_segments,
    loses_objects,
    remove_pending_deletes,
    replace_segments,
    set_properties,
    unlink_uploads,
)
from remote.manifest.manifest_page import encode_page
from remote.manifest.page_out import lost_object
from remote.segment_entry import SegmentState

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from remote_samples import manifest, ulid_of
from remote_samples import stored_row as entry

GOLDEN = (
    b'{"format_version":1,"sequence":7,"epoch":3,"commit_id":"C7","parent_id":"C6",'
    b'"writer_id":"host-1","topic":"orders","topic_id":"AAAAAAAAAAAAAAAAAAAAAA","partition":2,"log_start_offset":5,'
    b'"committed_ms":1700000000000,"segments":[{"ulid":"00000000000000000000000091","base_offset":0,"next_offset":10,"size_bytes":100,'
    b'"stored_bytes":100,"record_count":9,"max_timestamp_ms":1600000000000,"min_timestamp_ms":null,'
    b'"epochs":[[0,0],[2,4]],"data_crc32c":4294967295,"data_key":"data/00000000000000000000-00000000000000000009-0000000001-00000000000000000000000091.log",'
    b'"indexes_key":"data/00000000000000000000-00000000000000000009-0000000001-00000000000000000000000091.indexes",'
    b'"indexes_bytes":50,"indexes":{"offset":{"start":0,"length":8}},"codec":"none","storage_class":null,'
    b'"cleaned_through":10,"committed_ms":1699999999999,"segment_crc32c":null,"key_id":null,"wrapped_key":null,"made_by":null,"state":1}],"unlinked":[{"key":"data/00000000000000000000-00000000000000000009-0000000001-00000000000000000000000090.log","size_bytes":99,'
    b'"unlinked_ms":1699999999998,"epoch":2,"unlinked_sequence":6}],"unlinked_pages":[],"spills":[],"views":[],"boundary_number":0,"void_upto":0,"deleted_ms":null,"tiered_upto":0,"given_up":false,"expired_epochs":[],"appender_id":null,"jobs":[],"seal_key_id":null,"properties":{"retention.ms":"1"}}'
)


SAMPLE = manifest(
    entry(cleaned_through=10, committed_ms=1_699_999_999_999),
    log_start_offset=5,
    pending_deletes=(
        PendingDelete(
            key=entry("U0").data_key, size_bytes=99, unlinked_ms=1_699_999_999_998, epoch=2, unlinked_sequence=6
        ),
    ),
    properties={"retention.ms": "1"},
)


def test_the_bytes_of_a_manifest_never_change():
    whole = encode_manifest(SAMPLE)
    line, _, body = whole.partition(b"\n")
    assert decode_line(whole) == GOLDEN
    assert line == b"tiered-head 1 %08x %d %d" % (crc32c(body), len(body), len(GOLDEN))
    assert bytes(decompress(Codec.ZSTD, body, len(GOLDEN))) == GOLDEN
    assert decode_manifest(encode_line(GOLDEN)) == SAMPLE


def test_unknown_fields_of_a_manifest_are_ignored():
    text = GOLDEN.replace(b'{"format_version"', b'{"later":[1,{}],"format_version"')
    assert decode_manifest(encode_line(text)) == SAMPLE


def test_any_flipped_bit_of_a_manifest_raises_corrupt():
    whole = encode_manifest(SAMPLE)
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            with pytest.raises(Corrupt):
                decode_manifest(damaged)


def test_any_missing_tail_or_extra_byte_of_a_manifest_raises_corrupt():
    whole = encode_manifest(SAMPLE)
    for length in range(len(whole)):
        with pytest.raises(Corrupt):
            decode_manifest(whole[:length])
    with pytest.raises(Corrupt):
        decode_manifest(whole + b"\n")


def test_a_newer_format_of_a_manifest_is_named_in_the_error():
    with pytest.raises(Corrupt, match=r"newer format: version=2 known=1"):
        decode_manifest(encode_manifest(SAMPLE).replace(b"tiered-head 1 ", b"tiered-head 2 "))


@pytest.mark.parametrize(
    "wrong",
    [
        manifest(entry("U1", 0, 10), entry("U2", 9, 20)),
        manifest(entry("U2", 10, 20), entry("U1", 0, 10)),
        manifest(entry("U1", 5, 5)),
        manifest(entry(state=SegmentState.COPY_STARTED)),
        manifest(entry(size_bytes=0)),
        manifest(sequence=0),
        manifest(epoch=0),
        manifest(commit_id=""),
        manifest(log_start_offset=-1),
        manifest(format_version=2),
    ],
)
def test_a_contradictory_manifest_is_neither_written_nor_read(wrong):

    with pytest.raises(InvalidRequest, match=r"invalid manifest|refuse the new manifest"):
        encode_manifest(wrong)
    with pytest.raises(Corrupt, match=r"invalid manifest|not a manifest"):
        decode_manifest(encode_line(STORED_MANIFEST.encode(wrong)))


def test_missing_offsets_between_entries_are_allowed():
    assert decode_manifest(encode_manifest(manifest(entry("U1", 0, 10), entry("U2", 30, 40)))).next_offset == 40


def test_next_offset_of_a_manifest_is_its_last_entrys_end_or_the_log_start():
    assert manifest().next_offset == 0
    assert manifest(log_start_offset=9).next_offset == 9
    assert manifest(entry("U1", 0, 10), log_start_offset=4).next_offset == 10
    assert manifest(entry("U1", 0, 10), log_start_offset=12).next_offset == 12


def test_adding_entries_twice_adds_them_once():
    change = add_segments([entry("U1", 0, 10), entry("U2", 10, 20)])
    once = change(manifest(committed_ms=42))
    assert [(each.ulid, each.committed_ms) for each in once.segments] == [(ulid_of("U1"), 42), (ulid_of("U2"), 42)]
    assert change(once) is once


def test_a_second_upload_of_the_same_segment_is_unlinked():
    change = add_segments([entry("U9", 0, 10), entry("U3", 20, 30)])
    after = change(manifest(entry("U1", 0, 10), entry("U2", 10, 20), committed_ms=42))
    assert [each.ulid for each in after.segments] == [ulid_of(name) for name in ("U1", "U2", "U3")]
    assert [(each.key, each.unlinked_ms, each.epoch) for each in after.pending_deletes] == [
        (entry("U9").data_key, 42, 3),
        (entry("U9").indexes_key, 42, 3),
    ]
    assert change(after) is after
    with pytest.raises(InvalidRequest, match="its offsets are already covered"):
        add_segments([entry("U8", 0, 10, data_crc32c=1)])(after)


def test_adding_entries_over_others_is_refused():
    with pytest.raises(InvalidRequest, match=r"its offsets are already covered: base_offset=9"):
        add_segments([entry("U2", 9, 20)])(manifest(entry("U1", 0, 10)))
    with pytest.raises(InvalidRequest, match="its offsets are already covered"):
        add_segments([entry("U2", 0, 10), entry("U3", 5, 15)])(manifest())


def test_expiry_unlinks_both_objects_and_only_raises_the_log_start_offset():
    before = manifest(entry("U1", 0, 10), entry("U2", 10, 20), log_start_offset=3)
    change = expire_segments({ulid_of("U1")}, now_ms=99, log_start_offset=10)
    after = change(before)
    assert [each.ulid for each in after.segments] == [ulid_of("U2")]
    assert [(each.key, each.size_bytes, each.unlinked_ms, each.epoch) for each in after.pending_deletes] == [
        (entry("U1").data_key, 100, 99, 3),
        (entry("U1").indexes_key, 50, 99, 3),
    ]
    assert after.log_start_offset == 10
    assert change(after) is after
    assert expire_segments(set(), now_ms=1, log_start_offset=1)(after) is after


def test_deleted_objects_leave_the_pending_deletes_once():
    after = remove_pending_deletes({entry("U0").data_key})(SAMPLE)
    assert after.pending_deletes == ()
    assert remove_pending_deletes({entry("U0").data_key})(after) is after


def test_settings_are_recorded_once():
    after = set_properties({"a": "b"})(manifest())
    assert after.properties == {"a": "b"}
    assert set_properties({"a": "b"})(after) is after


def no_pages(page):
    raise AssertionError("no page is named")


def test_a_change_that_drops_an_entry_without_unlinking_its_objects_is_found():
    before = manifest(entry("U1", 0, 10), entry("U2", 10, 20))
    assert loses_objects(before, expire_segments({ulid_of("U1")}, now_ms=1)(before), no_pages) is None
    lost = loses_objects(before, replace(before, segments=before.segments[1:]), no_pages)
    assert f"key={entry('U1').data_key}" in (lost or "")
    assert "would decrease" in (loses_objects(manifest(log_start_offset=5), manifest(), no_pages) or "")


def test_an_entry_cleaned_beyond_the_end_of_the_bucket_is_refused():
    """Cleaning removed its records for newer ones that have no entry.

    A lost disk loses the newer records, and gives their offsets again.
    """
    encode_manifest(manifest(entry(cleaned_through=10)))
    with pytest.raises(InvalidRequest, match="because of records that no segment entry covers, cleaned_through=11"):
        encode_manifest(manifest(entry(cleaned_through=11)))


THREE = manifest(entry("A", 0, 4), entry("B", 4, 6), entry("C", 6, 9))


def test_replacing_entries_by_one_that_tiles_them_unlinks_their_objects():
    changed = replace_segments(entry("N", 0, 6, committed_ms=1, cleaned_through=9), [ulid_of("A"), ulid_of("B")])(THREE)
    assert [(each.ulid, each.base_offset, each.next_offset) for each in changed.segments] == [
        (ulid_of("N"), 0, 6),
        (ulid_of("C"), 6, 9),
    ]
    assert {each.key for each in changed.pending_deletes} == {
        key for each in THREE.segments[:2] for key in (each.data_key, each.indexes_key)
    }
    assert loses_objects(THREE, changed, no_pages) is None
    again = replace_segments(entry("N", 0, 6), [ulid_of("A"), ulid_of("B")])(changed)
    assert again is changed, "a second application changed the manifest"


@pytest.mark.parametrize(
    ("new", "ulids"), [((0, 5), "AB"), ((0, 9), "AC"), ((1, 6), "AB"), ((0, 6), "A"), ((6, 10), "C")]
)
def test_replacing_entries_by_one_that_does_not_tile_them_is_refused(new, ulids):
    with pytest.raises(InvalidRequest, match="the new segment does not cover their offsets"):
        replace_segments(entry("N", *new), [ulid_of(name) for name in ulids])(THREE)


def test_replacing_missing_entries_changes_no_entry_and_unlinks_its_own_objects():
    changed = replace_segments(entry("N", 0, 6), [ulid_of("A"), ulid_of("X")])(THREE)
    assert changed.segments == THREE.segments
    assert [each.key for each in changed.pending_deletes] == [entry("N", 0, 6).data_key, entry("N", 0, 6).indexes_key]


def test_cleaned_offsets_of_entries_only_rise():
    sample = manifest(entry("A", 0, 4, cleaned_through=4), entry("B", 4, 6))
    raised = advance_cleaned_offset([ulid_of(name) for name in "ABX"], 6)(sample)
    assert [each.cleaned_through for each in raised.segments] == [6, 6]
    assert advance_cleaned_offset([ulid_of("A")], 3)(sample) is sample


def test_uploads_are_unlinked_unless_they_were_committed():
    changed = unlink_uploads([entry("A", 0, 4), entry("N", 9, 10)])(THREE)
    assert [each.key for each in changed.pending_deletes] == [entry("N", 9, 10).data_key, entry("N", 9, 10).indexes_key]
    assert unlink_uploads([entry("N", 9, 10)])(changed) is changed


def test_a_page_is_unlinked_whole_only_below_the_log_start_offset():
    entries = (entry("A", 0, 10), entry("B", 10, 20))
    page, _ = encode_page(entries, 3, "P" * 26)
    tier = manifest(entry("C", 20, 30), pages=(page,), log_start_offset=15)
    with pytest.raises(InvalidRequest, match="its segments are retained"):
        expire_pages([page.key], now_ms=5)(tier)
    tier = replace(tier, log_start_offset=20)
    after = expire_pages([page.key], now_ms=5)(tier)
    assert (after.pages, [each.page for each in after.pending_page_deletes]) == ((), [page])
    assert lost_object(tier, after, lambda page: entries) is None
    assert lost_object(tier, replace(after, pending_page_deletes=()), lambda page: entries) in {
        entries[0].data_key,
        page.key,
    }
    assert expire_pages([page.key], now_ms=5)(after) is after
    assert remove_pending_deletes([page.key])(after).pending_page_deletes == ()


def test_an_abandoned_remote_tier_accepts_no_entry_until_its_last_one_is_unlinked():
    tier = manifest(entry("A", 0, 10), entry("B", 10, 20), log_start_offset=2)
    tier = disable_tier(log_start_offset=5, now_ms=9)(tier)
    assert (tier.tier_disabled, tier.log_start_offset, tier.next_offset, tier.allocated_end_offset) == (True, 5, 5, 20)
    assert disable_tier(log_start_offset=5, now_ms=10)(tier) is tier
    with pytest.raises(InvalidRequest, match="being disabled"):
        add_segments([entry("C", 20, 30)])(tier)
    tier = expire_segments([ulid_of("A")], now_ms=9)(tier)
    assert tier.tier_disabled
    tier = expire_segments([ulid_of("B")], now_ms=9)(tier)
    assert not tier.tier_disabled
    assert add_segments([entry("C", 5, 30)])(tier).segments[0].ulid == ulid_of("C")
    assert disable_tier(log_start_offset=5, now_ms=9)(manifest(log_start_offset=5)).tier_disabled is False
