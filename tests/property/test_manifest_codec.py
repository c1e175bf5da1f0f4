"""Codecs of the remote tier: manifests, index bundles, chunk tables and names are decoded again, and damage is
detected."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from remote_samples import table_of

from local.errors import Corrupt
from local.format.crc32c import crc32c
from policies.snapshot import Coverage
from remote import keys
from remote.manifest.manifest import Manifest, PendingDelete, decode_line, decode_manifest, encode_line, encode_manifest
from remote.manifest.manifest_lookup import MetadataIndex
from remote.manifest.manifest_page import decode_page, encode_page, summary_contradiction
from remote.manifest.view import CompactedView, ViewFailure, ViewStart
from remote.segment_entry import IndexRange, SegmentEntry
from remote.segments.stored_segment import (
    SECTIONS,
    ChunkTable,
    IndexBundle,
    combine,
    decode_bundle,
    decode_chunks,
    encode_bundle,
    encode_chunks,
)

OFFSETS = st.integers(0, 2**62)
TIMES = st.none() | st.integers(-(2**63), 2**63 - 1)
SIZES = st.integers(1, 2**40)
WORDS = st.text('aZ9-/é"\\\n\0☃𝄞', max_size=6)
CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # other work shares the machine


ULIDS = st.text("0123456789ABCDEFGHJKMNPQRSTVWXYZ", min_size=26, max_size=26)
EPOCHS = st.integers(1, 2**31 - 1)


@st.composite
def entries(draw, count_max=4):
    """Segment entries in ascending order, sometimes with gaps."""
    reached, made = draw(st.integers(0, 1000)), []
    for _ in range(draw(st.integers(0, count_max))):
        base = reached + draw(st.sampled_from([0, 0, 0, 1, 50]))
        reached = base + draw(st.integers(1, 2**30))
        size, indexes_bytes = draw(SIZES), draw(SIZES)
        codec, key_id = draw(st.sampled_from(["none", "zstd"])), draw(st.none() | WORDS)
        kept = {"is_zstd": codec == "zstd", "is_encrypted": key_id is not None}
        names = base, reached - 1, draw(EPOCHS), draw(ULIDS)
        starts = sorted(draw(st.lists(st.integers(base, reached - 1), max_size=3)))
        made.append(
            SegmentEntry(
                ulid=names[-1],
                base_offset=base,
                next_offset=reached,
                size_bytes=size,
                stored_bytes=draw(SIZES),
                record_count=draw(st.integers(0, 2**40)),
                max_timestamp_ms=draw(TIMES),
                min_timestamp_ms=draw(TIMES),
                epochs=tuple((draw(st.integers(-1, 2**31 - 1)), start) for start in starts),
                data_crc32c=draw(st.integers(0, 2**32 - 1)),
                data_key=keys.data_key(*names, **kept),
                indexes_key=keys.indexes_key(*names),
                indexes_bytes=indexes_bytes,
                indexes={
                    name: IndexRange(start=draw(st.integers(0, indexes_bytes)), length=0)
                    for name in draw(st.sets(WORDS, max_size=2))
                },
                codec=codec,
                key_id=key_id,
                wrapped_key=None if key_id is None else draw(WORDS),
                storage_class=draw(st.none() | WORDS),
                cleaned_through=draw(st.none() | st.integers(0, reached)),
                committed_ms=draw(OFFSETS),
            )
        )
    return tuple(made)


UNLINKED = st.builds(
    PendingDelete,
    key=st.builds(keys.data_key, OFFSETS, OFFSETS, EPOCHS, ULIDS),
    size_bytes=SIZES,
    unlinked_ms=OFFSETS,
    epoch=st.just(1),
)
VIEW_NAMES = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,9}", fullmatch=True)
VIEWS = st.lists(
    st.builds(
        CompactedView,
        name=VIEW_NAMES,
        lost=st.lists(st.tuples(st.integers(0, 99), st.integers(100, 2**62)), max_size=2).map(tuple),
        under_way=st.none() | st.builds(ViewStart, started_ms=OFFSETS, epoch=EPOCHS),
        failure=st.none() | st.builds(ViewFailure, failed_ms=OFFSETS, error=WORDS),
    ),
    max_size=2,
    unique_by=lambda view: view.name,
).map(tuple)


@st.composite
def manifests(draw):
    """A manifest; its oldest entries may be in pages."""
    segments = draw(entries())
    cut = draw(st.integers(0, len(segments)))
    pages = [segments[:cut]] if draw(st.booleans()) else [segments[at : at + 1] for at in range(cut)]
    return Manifest(
        sequence=draw(st.integers(1, 2**63 - 1)),
        epoch=2**31 - 1,
        commit_id=draw(st.text(min_size=1, max_size=30)),
        parent_id=draw(st.none() | WORDS),
        writer_id=draw(WORDS),
        topic=draw(st.sampled_from(["t", "or-ders.2_x", "a" * 249])),
        topic_id=draw(st.sampled_from(["A" * 22, "-" * 22])),
        partition=draw(st.integers(0, 2**31 - 1)),
        log_start_offset=draw(OFFSETS),
        committed_ms=draw(OFFSETS),
        segments=segments[cut:],
        pending_deletes=tuple(draw(st.lists(UNLINKED, max_size=3))),
        pages=tuple(encode_page(page, 1, "A" * 26)[0] for page in pages if page),
        views=draw(VIEWS),
        properties=draw(st.dictionaries(WORDS, WORDS, max_size=3)),
    )


MANIFESTS = manifests()


@CALM
@given(entries(count_max=9).filter(bool))
def test_an_encoded_manifest_page_is_decoded_again(segments):
    page, body = encode_page(segments, 1, "A" * 26)
    assert tuple(decode_page(page, body)) == segments
    held = [(entry.base_offset, entry.next_offset) for entry in segments]
    assert Coverage.of(page.ranges()) == Coverage.of(held)
    assert page.size_bytes == sum(entry.size_bytes for entry in segments)
    assert page.indexes_bytes == sum(entry.indexes_bytes for entry in segments)
    classes = {name: (count, size) for name, count, size in page.other_classes or ()}
    for name in {entry.storage_class for entry in segments} - {None}:
        sizes = [entry.stored_bytes for entry in segments if entry.storage_class == name]
        assert classes.pop(name) == (len(sizes), sum(sizes))
    assert classes == {}
    older = replace(page, indexes_bytes=None, other_classes=None)
    assert summary_contradiction(page, segments) is summary_contradiction(older, segments) is None
    for wrong in (replace(page, indexes_bytes=0), replace(page, other_classes=(("", 1, 0),))):
        assert summary_contradiction(wrong, segments) is not None


@CALM
@given(MANIFESTS)
def test_an_encoded_manifest_is_decoded_again(manifest):
    assert decode_manifest(encode_manifest(manifest)) == manifest


@CALM
@given(MANIFESTS)
def test_a_manifest_has_one_encoding_and_its_body_is_json(manifest):
    whole = encode_manifest(manifest)
    assert encode_manifest(decode_manifest(whole)) == whole
    assert json.loads(decode_line(whole))["sequence"] == manifest.sequence


@CALM
@given(MANIFESTS, st.data())
def test_a_damaged_manifest_is_corrupt(manifest, data):
    whole = bytearray(encode_manifest(manifest))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        decode_manifest(whole)


@CALM
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_corrupt_manifests(body):
    for data in (body, b"tiered-head 1 %08x %d 300\n" % (crc32c(body), len(body)) + body, encode_line(body)):
        with pytest.raises(Corrupt):
            decode_manifest(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["segments", "sequence", "x"]), inner),
    max_leaves=8,
)


@CALM
@given(MANIFESTS, st.sampled_from(sorted(Manifest.__slots__)), JSON)
def test_a_manifest_field_of_another_type_is_corrupt_or_decoded_consistently(manifest, field, value):
    body = json.loads(decode_line(encode_manifest(manifest)))
    body[field] = value
    text = json.dumps(body).encode()
    try:
        decoded = decode_manifest(encode_line(text))
    except Corrupt:
        return
    assert decode_manifest(encode_manifest(decoded)) == decoded


@CALM
@given(entries(), OFFSETS, st.integers(0, 1200))
def test_a_lookup_by_offset_equals_a_linear_search(segments, offset, start):
    index = MetadataIndex(_manifest(segments, log_start_offset=start), lambda page: ())
    for asked in (offset, *(entry.base_offset for entry in segments), *(entry.next_offset for entry in segments)):
        wanted = max(asked, start)
        expected = next((entry for entry in segments if entry.next_offset > wanted), None)
        assert index.find_by_offset(asked) == expected
        assert tuple(index.entries(asked)) == tuple(entry for entry in segments if entry.next_offset > wanted)
        assert tuple(index.entries(0, asked)) == tuple(
            entry for entry in segments if entry.next_offset > start and entry.base_offset < asked
        )


@CALM
@given(entries(), st.integers(-(2**63), 2**63 - 1))
def test_a_lookup_by_time_equals_a_linear_search(segments, timestamp):
    reaching = [
        entry for entry in segments if entry.max_timestamp_ms is not None and entry.max_timestamp_ms >= timestamp
    ]
    index = MetadataIndex(_manifest(segments), lambda page: ())
    assert index.find_by_timestamp(timestamp) == (reaching[0] if reaching else None)


@CALM
@given(st.binary(max_size=5000), st.integers(1, 700))
def test_a_chunk_table_has_the_range_and_checksum_of_each_chunk_and_of_the_whole(body, chunk_bytes):
    table = table_of(body, chunk_bytes)
    assert decode_chunks(encode_chunks(table)) == table
    assert table.whole_crc == combine(table.crcs, table.lengths) == crc32c(body)
    covered = [table.chunk_range(number) for number in range(len(table.crcs))]
    assert b"".join(body[start : start + length] for start, length in covered) == body


@CALM
@given(st.integers(1, 5000), st.integers(1, 700), st.integers(0, 6000), st.integers(0, 6000))
def test_the_chunks_of_a_range_are_exactly_the_chunks_it_touches(size, chunk_bytes, position, length):
    lengths = [min(chunk_bytes, size - at) for at in range(0, size, chunk_bytes)]
    table = ChunkTable(lengths=tuple(lengths), crcs=(0,) * len(lengths))
    touched = {at // chunk_bytes for at in range(position, min(position + length, size))}
    assert set(table.chunks_of(position, length)) == touched


@CALM
@given(st.lists(st.binary(max_size=50), min_size=5, max_size=5), st.binary(min_size=1, max_size=99), st.data())
def test_an_encoded_index_bundle_is_decoded_again_and_its_damage_is_detected(sections, body, data):
    bundle = IndexBundle(**dict(zip(SECTIONS, sections, strict=False)), chunks=table_of(body, 16))
    whole, ranges = encode_bundle(bundle)
    found = decode_bundle(whole)
    for name, section in zip(SECTIONS, sections, strict=False):
        assert bytes(getattr(found, name)) == section
        assert whole[ranges[name].start : ranges[name].start + ranges[name].length] == section
    assert found.chunks == bundle.chunks
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        decode_bundle(damaged)


@CALM
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_corrupt_index_bundles(body):
    from struct import pack

    for table in (0, len(body), len(body) + 1, 2**32 - 1):
        before = body + pack(">IH", table, 1)
        with pytest.raises(Corrupt):
            decode_bundle(before + pack(">I8s", crc32c(before), b"TIERIDX\n"))


@CALM
@given(st.integers(0, 10**20 - 1), st.integers(0, 10**20 - 1), st.integers(0, 10**10 - 1), st.integers(0, 2**48 - 1))
def test_object_names_are_parsed_back_and_sort_by_offset(base, last, epoch, now_ms):
    ulid = keys.new_ulid(now_ms)
    found = keys.parse_data_key(keys.data_key(base, last, epoch, ulid))
    assert found == keys.DataKey(base_offset=base, last_offset=last, epoch=epoch, ulid=ulid, suffix=".log")
    assert (keys.manifest_key(base) < keys.manifest_key(last)) == (base < last)


@CALM
@given(st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True), st.from_regex(r"[A-Za-z0-9_-]{22}", fullmatch=True))
def test_a_topic_directory_name_is_parsed_back(topic, topic_id):
    if topic not in (".", ".."):
        assert keys.parse_topic_directory(keys.topic_directory(topic, topic_id)) == (topic, topic_id)


def _manifest(segments, log_start_offset=0):
    return Manifest(
        sequence=1,
        epoch=1,
        commit_id="c",
        parent_id=None,
        writer_id="w",
        topic="t",
        topic_id="A" * 22,
        partition=0,
        log_start_offset=log_start_offset,
        committed_ms=0,
        segments=segments,
        properties={},
    )
