"""The manifest: an immutable object with the whole remote tier of a partition at one commit.

| bytes | field |
|---|---|
| line | ``tiered-head 1 <CRC32C of the body, 8 lower-case hex digits> <its length> <its length inflated>\\n`` |
| body | one zstd frame: JSON, the fields of `Manifest` in their order, under the names of `STORED_MANIFEST` |

Created only if absent, never changed. Any defect is Corrupt: a reader never uses a part of a damaged manifest. A reader
ignores unknown fields. For an encrypted topic these bytes are sealed as a whole (`remote.manifest.sealing`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from local.errors import Corrupt, InvalidRequest
from local.format.crc32c import crc32c
from local.log.leader_epochs import EpochRange, joined_ranges
from remote.keys import manifest_key
from remote.manifest.manifest_validation import contradictions
from remote.manifest.sealing import Opened, Sealer, sealed_size
from remote.manifest.view import STORED_VIEW, CompactedView, StoredForm, view_contradiction
from remote.segment_entry import (
    INT32_MAX,
    INT64_MAX,
    ByteCount,
    ClockMs,
    Count,
    Crc32c,
    LeaderEpoch,
    ObjectBytes,
    Offset,
    PartitionNumber,
    SegmentEntry,
    Sequence,
    SequenceOrNone,
    StoredSize,
    TimestampMs,
    Turn,
    WriterEpoch,
)
from remote.store import Body

FORMAT_VERSION = 1
KEY_ID = "remote.encryption.key.id"  # the topic's property with the id of the encryption key
MANIFEST_BYTES_MAX = 64 << 20  # inflated; some 80 000 entries
LINE_BYTES_MAX = 64
ZSTD_LEVEL = 1  # level 6 saves nothing and takes seven times as long (docs/reference/benchmarks.md)
CACHED_SIZES_MAX = 10_000
_SIZES: dict[str, int] = {}  # stored sizes by the manifests' commit ids; concurrent writes do no harm
_LINE = re.compile(rb"tiered-head ([0-9]{1,9}) ([0-9a-f]{8}) ([1-9][0-9]{0,9}) ([1-9][0-9]{0,9})\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelete:
    """A pending delete. Relative `key`; `unlinked_sequence` is of the first manifest that lists it."""

    key: str
    size_bytes: ObjectBytes
    unlinked_ms: ClockMs
    epoch: WriterEpoch
    unlinked_sequence: SequenceOrNone = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEntry:
    """The entry of a manifest page (`remote.manifest.manifest_page`): facts for use without the page. Half open."""

    key: str
    base_offset: Offset  # of the first entry
    next_offset: Offset  # of the last entry
    min_timestamp_ms: TimestampMs | None  # over the entries with any timestamp
    max_timestamp_ms: TimestampMs | None  # over the entries with a largest timestamp
    first_stamp_ms: TimestampMs  # for retention by time: the first entry's largest timestamp, or else its commit time
    segment_count: Count  # this and the other counts and sizes are sums over the entries
    record_count: Count
    size_bytes: ByteCount
    stored_bytes: ByteCount
    cleaned_through: Offset | None = None  # the least of all entries; None if one was never cleaned
    aborted_bytes: ByteCount = 0  # of transaction indexes
    gaps: tuple[tuple[Offset, Offset], ...] = ()  # offset ranges between the entries that no entry holds
    epochs: tuple[tuple[LeaderEpoch, Offset], ...] = ()  # leader epochs of the entries, each with its first start
    page_bytes: StoredSize  # of the page object, as `page_crc32c`
    page_crc32c: Crc32c
    indexes_bytes: ByteCount | None = None  # of ``.indexes`` objects; None if not recorded
    # (storage class, entries, `stored_bytes`), without the bucket's
    other_classes: tuple[tuple[str, Count, ByteCount], ...] | None = None
    seal_key_id: str | None = None  # the key that seals the page (`remote.manifest.sealing`); None if not sealed

    def ranges(self) -> Iterator[tuple[int, int]]:
        reached = self.base_offset
        for gap_start, gap_end in self.gaps:
            yield reached, gap_start
            reached = gap_end
        yield reached, self.next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedJob:
    """Record of a job's commits here, so that a repeated run of the job finds its work done."""

    job_id: str
    turn: Turn = 0  # a stream's batch id; below 0: an unfinished compaction (`tiered.jobs.bucket_compaction`); else 0
    committed_ms: ClockMs = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPageDelete:
    """A page that was unlinked as a whole, with the objects of all its entries. Fields as in `PendingDelete`."""

    page: PageEntry
    unlinked_ms: ClockMs
    epoch: WriterEpoch
    unlinked_sequence: SequenceOrNone = 0

    @property
    def key(self) -> str:
        return self.page.key

    @property
    def size_bytes(self) -> int:
        """Of the page and its objects; without ``.indexes`` objects if their size was not recorded."""
        return self.page.stored_bytes + (self.page.indexes_bytes or 0) + self.page.page_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest: the newest entries (`segments`), and `pages` for all older ones.

    Both ascend and never overlap; each page is below the first segment; an offset in a gap has no record. The sums
    below include both. Use `remote.manifest.manifest_lookup` for all entries.

    - While `tier_disabled` is set, the disk alone holds the retained log. Entries expire as usual and none is added.
      When the last one is unlinked, the flag becomes false.
    - `deleted_ms` is permanent. Nothing is readable, only a removal may take over, and missing objects are no damage.
    - Successors are sealed by the same key until they name another. No successor of a sealed manifest is unsealed.
    """

    format_version: int = FORMAT_VERSION
    sequence: Sequence
    epoch: WriterEpoch  # raised by one with every takeover
    commit_id: str  # new for every attempt at a commit; distinguishes our manifest from others
    parent_id: str | None  # the commit id of the previous manifest
    writer_id: str
    topic: str
    topic_id: str
    partition: PartitionNumber
    log_start_offset: Offset
    committed_ms: ClockMs
    segments: tuple[SegmentEntry, ...] = ()
    pending_deletes: tuple[PendingDelete, ...] = ()
    pending_page_deletes: tuple[PendingPageDelete, ...] = ()
    pages: tuple[PageEntry, ...] = ()
    views: tuple[CompactedView, ...] = ()  # by name
    boundary_number: SequenceOrNone = 0  # of the newest GC boundary known to the writer (`manifest_chain`); 0 for none
    gc_boundary: SequenceOrNone = 0  # the sequence in that boundary
    deleted_ms: ClockMs | None = None  # when the topic was deleted; None for a living topic
    expired_end_offset: Offset = 0  # one above the highest offset in the bucket when entries last left; never falls
    tier_disabled: bool = False  # the tier was switched off (`tiered.partition.partition`): no entry counts
    expired_epochs: tuple[EpochRange, ...] = ()  # of offsets that were in the bucket and left it, ascending
    # the last writer with a log of its own (jobs have none), which may hold records without an entry; None: unknown
    appender_id: str | None = None
    # the last jobs that committed, the newest last (`remote.manifest.manifest_changes`)
    jobs: tuple[AppliedJob, ...] = ()
    # the ring's key that seals this manifest (`remote.manifest.sealing`); None: not sealed
    seal_key_id: str | None = None
    properties: dict[str, str]  # the topic's settings when the writer last recorded them

    @property
    def next_offset(self) -> int:
        """Where the next segment may start: after the last valid entry, never below the log start offset."""
        return self.log_start_offset if self.tier_disabled else max(self.entries_end_offset, self.log_start_offset)

    @property
    def min_readable_offset(self) -> int:
        """Entries wholly below it are not readable: below the log start offset, or of a disabled tier."""
        return max(self.entries_end_offset, self.log_start_offset) if self.tier_disabled else self.log_start_offset

    @property
    def allocated_end_offset(self) -> int:
        """One above the highest offset known here to be assigned; no log may assign an offset below it again."""
        return max(self.next_offset, self.max_end_offset)

    @property
    def entries_end_offset(self) -> int:
        last = self.segments[-1:] or self.pages[-1:]
        return last[0].next_offset if last else 0

    @property
    def max_end_offset(self) -> int:
        """One above the highest offset that was ever in the bucket, 0 if none was; expiry does not lower it."""
        return max(self.expired_end_offset, self.entries_end_offset)

    @property
    def parts(self) -> tuple[PageEntry | SegmentEntry, ...]:
        return (*self.pages, *self.segments)

    @property
    def has_entries(self) -> bool:
        return bool(self.segments or self.pages)

    @property
    def segment_count(self) -> int:
        return len(self.segments) + sum(page.segment_count for page in self.pages)

    @property
    def record_count(self) -> int:
        return sum(each.record_count for each in self.parts)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.parts)

    @property
    def pending(self) -> tuple[PendingDelete | PendingPageDelete, ...]:
        return (*self.pending_deletes, *self.pending_page_deletes)

    @property
    def waiting_bytes(self) -> int:
        return sum(each.size_bytes for each in self.pending)

    @property
    def view_entries(self) -> Iterator[SegmentEntry]:
        return (entry for view in self.views for entry in view.entries)

    @property
    def epoch_ranges(self) -> list[EpochRange]:
        """The offsets of all entries by leader epoch, ascending; adjacent ranges of one epoch are joined."""
        return joined_ranges(_epoch_ranges(self.parts))

    @property
    def lineage(self) -> Iterator[tuple[int, int]]:
        """(leader epoch, start offset) of all entries, ascending by offset; an epoch may occur repeatedly."""
        return (entry for each in self.parts for entry in each.epochs)


_NO_SEALER = Sealer("")
STORED_PAGE_DELETE = StoredForm(PendingPageDelete, {"page": "spill"})
STORED_MANIFEST = StoredForm(
    Manifest,
    {
        "pages": "spills",
        "pending_deletes": "unlinked",
        "pending_page_deletes": "unlinked_pages",
        "tier_disabled": "given_up",
        "gc_boundary": "void_upto",
        "expired_end_offset": "tiered_upto",
    },
    pending_page_deletes=STORED_PAGE_DELETE,
    views=STORED_VIEW,
)


def encode_manifest(manifest: Manifest, sealer: Sealer | None = None) -> bytes:
    """The object's bytes, deterministic. Raises InvalidRequest if readers would refuse it, AccessDenied."""
    facts = {"topic": manifest.topic, "partition": manifest.partition}
    if wrong := contradiction(manifest):
        raise InvalidRequest(f"invalid manifest, {wrong}", **facts)
    try:
        _check(STORED_MANIFEST.decode(STORED_MANIFEST.encode(manifest)), None)  # the decoder checks the bounds
    except (msgspec.DecodeError, Corrupt) as error:
        raise InvalidRequest("readers would refuse the new manifest", **facts, cause=str(error)) from error
    return encode_again(manifest, sealer)


def encode_again(manifest: Manifest, sealer: Sealer | None = None) -> bytes:
    """The object's bytes of a validated manifest. Raises as `Sealer.seal`."""
    return (sealer or _NO_SEALER).seal(manifest_key(manifest.sequence), _unsealed(manifest), manifest.seal_key_id)


def _unsealed(manifest: Manifest) -> bytes:
    text = STORED_MANIFEST.encode(manifest)
    if len(text) > MANIFEST_BYTES_MAX:
        raise InvalidRequest("the manifest is too large", size_bytes=len(text), size_bytes_max=MANIFEST_BYTES_MAX)
    return encode_line(text)


def encode_line(text: bytes) -> bytes:
    from local.format.compression import Codec, compress  # heavy, and a process that only decides does not need it

    body = compress(Codec.ZSTD, text, ZSTD_LEVEL)
    return b"tiered-head %d %08x %d %d\n" % (FORMAT_VERSION, crc32c(body), len(body), len(text)) + body


def decode_line(data: Body) -> bytes:
    """Return the JSON in a manifest's object; the inverse of `encode_line`. Raises Corrupt for any defect."""
    from local.format.compression import Codec, decompress

    line = _LINE.match(bytes(data[:LINE_BYTES_MAX]))
    if not line:
        raise Corrupt("cannot read a manifest, it does not start with the format line", size_bytes=len(data))
    version, expected, length, inflated = int(line[1]), int(line[2], 16), int(line[3]), int(line[4])
    if version != FORMAT_VERSION or inflated > MANIFEST_BYTES_MAX:
        facts = {"version": version, "known": FORMAT_VERSION, "size_bytes": inflated}
        raise Corrupt("cannot read a manifest, it is damaged or of a newer format", **facts)
    body = memoryview(data)[line.end() :]
    if len(body) != length:
        raise Corrupt("a manifest is damaged, its length differs", expected_bytes=length, found_bytes=len(body))
    if (found := crc32c(body)) != expected:
        raise Corrupt("a manifest is damaged, its checksum differs", expected=f"{expected:08x}", found=f"{found:08x}")
    text = bytes(decompress(Codec.ZSTD, body, inflated))
    if len(text) != inflated:
        wrong = "a manifest is damaged, its decompressed length differs"
        raise Corrupt(wrong, expected_bytes=inflated, found_bytes=len(text))
    return text


def decode_manifest(data: Body, prefix: str | None = None, *, sealer: Sealer | None = None) -> Manifest:
    """The inverse of `encode_manifest`, fully validated. `prefix` is the partition's, None if unknown.

    Raises Corrupt for any defect and for a missing seal; AccessDenied if the key of the seal is missing.
    """
    seal = (sealer or _NO_SEALER).open(data)
    text = decode_line(seal.body)
    try:
        manifest = STORED_MANIFEST.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt("the body of a manifest is not a manifest", cause=str(error)) from error
    if wrong := contradiction(manifest) or _seal_contradiction(manifest, seal, sealer):
        raise Corrupt(f"invalid manifest, {wrong}", **_facts(manifest))
    _check(manifest, prefix)
    _note_size(manifest, len(data))
    return manifest


def size_of(manifest: Manifest) -> int:
    """Size of the stored object in bytes, known from a read or from encoding it once. No request."""
    known = _SIZES.get(manifest.commit_id)
    if known is None:
        known = sealed_size(manifest_key(manifest.sequence), len(_unsealed(manifest)), manifest.seal_key_id)
        _note_size(manifest, known)
    return known


def _note_size(manifest: Manifest, size_bytes: int) -> None:
    if len(_SIZES) >= CACHED_SIZES_MAX:
        _SIZES.clear()
    _SIZES[manifest.commit_id] = size_bytes


def lacks_seal(manifest: Manifest) -> bool:
    """Whether an encrypted topic's manifest is not sealed: of an older version, or from before encryption."""
    if manifest.seal_key_id is not None:
        return False
    entries = (*manifest.segments, *manifest.view_entries)
    return bool(manifest.properties.get(KEY_ID)) or any(entry.key_id for entry in entries)


def check_says_something(manifest: Manifest) -> None:
    """Raise Corrupt for a manifest that lacks its seal and names no segment: a forgery of it would not be detected.

    An unsealed manifest with segments is served with a warning, because the segments' bytes are authenticated.
    """
    if lacks_seal(manifest) and not manifest.has_entries:
        wrong = "the manifest of an encrypted topic is not sealed and names no segment"
        raise Corrupt(f"cannot trust a manifest, {wrong}: forged, or `tiered rotate-keys` is due", **_facts(manifest))


def _check(manifest: Manifest, prefix: str | None) -> None:
    if (found := next(contradictions(manifest, prefix), None)) is not None:
        raise Corrupt(f"invalid manifest, {found.what}", **_facts(manifest), **found.facts())


def _facts(manifest: Manifest) -> dict[str, object]:
    return {"topic": manifest.topic, "partition": manifest.partition, "sequence": manifest.sequence}


def _seal_contradiction(manifest: Manifest, seal: Opened, sealer: Sealer | None) -> str | None:
    if seal.key_id is None and manifest.seal_key_id is not None:
        return "it names a seal key and is not sealed: it may be forged"
    if seal.key_id is None:
        if sealer is None or not sealer.is_required:
            return None
        return "it is not sealed, and the key ring requires a seal: forged, or `tiered rotate-keys` is due"
    if (seal.key_id, seal.key) != (manifest.seal_key_id, manifest_key(manifest.sequence)):
        return f"it names another seal key, key_id={manifest.seal_key_id}"
    return None


def contradiction(manifest: Manifest) -> str | None:
    """The first contradiction in the identity, ranges or views of this manifest; None if there is none."""
    if manifest.format_version != FORMAT_VERSION:
        return f"format_version is {manifest.format_version}"
    if not manifest.commit_id:
        return "commit_id is missing"
    reached = 0
    for page in manifest.pages:
        if not reached <= page.base_offset < page.next_offset:
            return f"manifest pages overlap or are out of order at base_offset={page.base_offset}"
        reached = page.next_offset
    for entry in manifest.segments:
        if not reached <= entry.base_offset < entry.next_offset:
            where = f"base_offset={entry.base_offset} next_offset={entry.next_offset}"
            return f"segments overlap or are out of order at {where}"
        reached = entry.next_offset
    if (wrong := _expired_contradiction(manifest.expired_epochs)) is not None:
        return wrong
    cleaned = max((each.cleaned_through or 0 for each in manifest.parts), default=0)
    if cleaned > manifest.next_offset and not manifest.tier_disabled:
        return f"a segment was cleaned because of records that no segment entry covers, cleaned_through={cleaned}"
    return view_contradiction(manifest.views, upto_offset=manifest.next_offset)


def _expired_contradiction(ranges: tuple[EpochRange, ...]) -> str | None:
    reached = 0
    for epoch, base_offset, next_offset in ranges:
        is_epoch = epoch is None or -1 <= epoch <= INT32_MAX
        if not reached <= base_offset < next_offset <= INT64_MAX or not is_epoch:
            return f"expired_epochs overlap, are out of order or leave their bounds at base_offset={base_offset}"
        reached = next_offset
    return None


def _epoch_ranges(parts: Iterable[PageEntry | SegmentEntry]) -> Iterator[EpochRange]:
    epoch: int | None = None  # an entry that names no epoch continues the epoch before it
    for part in parts:
        starts = list(part.epochs)
        held = part.ranges() if isinstance(part, PageEntry) else [(part.base_offset, part.next_offset)]
        for at, next_offset in held:
            while starts and starts[0][1] < next_offset:
                following, start = starts.pop(0)
                if start > at:
                    yield EpochRange(epoch, at, start)
                    at = start
                epoch = following
            yield EpochRange(epoch, at, next_offset)
