"""Buckets of other software, read-only: partitions and segments of a layout, and the copies that count.

docs/reference/formats.md lists the names. Keys of these segments are full keys of the store: the objects of one
partition may have several locations. No layout has checksums: only the CRCs of the batches verify the bytes. Ids may
begin with a dash, so names are cut by fixed widths. Sources: Aiven `ObjectKeyFactory`; kafka
`RemoteTopicPartitionDirectory`, `RemoteLogSegmentFileset`.

`ExternalManifests` gives the entries of a partition as a manifest, which is not in the bucket.

**Copies of the same offsets.** A bucket filled by brokers may hold the same offsets more than once: a retried copy, two
leaders' copies, or the records of a leader that lost an unclean election. The metadata that selected among them is not
available. Leader epochs decide, as in Kafka: each has one leader, and begins where that leader's log ended.

1. The **lineage** has all (epoch, start) pairs, including the checkpoint stored with the newest segment. Each epoch has
   its lowest known start. Pairs are applied in epoch order: a later epoch that begins at or below an earlier epoch's
   start replaces it.
2. Of a segment these records count: the ones in an epoch of the lineage, before the lineage's next epoch begins.
3. Of the remaining ranges, a segment wholly inside another is not needed. Where two overlap, the later one is read from
   its base on.

Offsets between two segments that no segment holds are gaps, and are reported. Source: kafka
`LeaderEpochFileCache.assign`, `RemoteLogManager.isRemoteSegmentWithinLeaderEpochs`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import chain, zip_longest
from typing import Protocol

from local.errors import Corrupt, InvalidRequest, LogError, NotFound
from local.log.leader_epochs import LeaderEpochs
from local.names import parse_partition_directory
from local.verify.findings import Finding
from remote.keys import parse_topic_directory
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_page import gaps_between
from remote.segment_entry import SegmentEntry
from remote.segments.stored_segment import CHUNK_BYTES, PLAIN, ZSTD, ChunkTable, inflated
from remote.store import Body, ObjectInfo, ObjectStore

MANIFEST, INDEXES, LOG = ".rsm-manifest", ".indexes", ".log"
KAFKA_ROOT = "kafka-tiered-storage"
PINTEREST_MARKS = ("offset.wm", "_metadata")
# LocalTieredStorage: section of `remote.segments.stored_segment` -> suffix. An empty transaction index has no file.
KAFKA_FILES = {
    "offset": ".index",
    "time": ".timeindex",
    "producers": ".snapshot",
    "epochs": ".leader_epoch_checkpoint",
    "txn": ".txnindex",
}
_AIVEN_FILE = re.compile(r"([0-9]{20})-([A-Za-z0-9_-]{22})(\.log|\.indexes|\.rsm-manifest)", re.ASCII)
_KAFKA_FILE = re.compile(r"([0-9]{1,20})-([A-Za-z0-9_-]{22})(\.[a-z_]+)", re.ASCII)
_OFFSET_MAX = 2**63 - 1
_log = logging.getLogger(__name__)
ParseFile = Callable[[str], tuple[int, str, str] | None]  # name -> base offset, stem, suffix
ListRows = Callable[[dict[str, Finding]], list[SegmentEntry]]


class Layout(Enum):
    """The layout of a bucket, with its writer, and the files that make a segment count."""

    TIERED = "tiered"  # this project's own
    AIVEN = "aiven"  # Aiven's tiered-storage plugin for Kafka; the ``.rsm-manifest``, which is written last
    LOCAL_TIERED_STORAGE = "local-tiered-storage"  # Kafka's class; the log, both indexes, snapshot and epochs
    PINTEREST = "pinterest"  # Pinterest's uploader; the log and both indexes
    LOGS = "logs"  # a Kafka broker's log directory, or a copy of one; the ``.log``


AUTO = "auto"
WORDS = (AUTO, *(each.value for each in Layout))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """The requested layout of a bucket. Picklable; files are read where they are used."""

    layout: str = Layout.TIERED.value  # one of WORDS
    prefixes: tuple[str, ...] = ("",)  # Aiven's ``key.prefix`` over the years, placed before each name unchanged
    private_keys: Mapping[str, str] = field(default_factory=dict)  # files of Aiven's RSA keys by key id

    def __post_init__(self) -> None:
        if self.layout not in WORDS:
            raise InvalidRequest("unknown bucket layout", layout=self.layout, there_are=",".join(WORDS))
        if self.layout not in (AUTO, Layout.AIVEN.value) and (self.prefixes != ("",) or self.private_keys):
            raise InvalidRequest("key prefixes and private keys apply to the Aiven layout only", layout=self.layout)

    @property
    def is_ours(self) -> bool:
        return self.layout == Layout.TIERED.value


OURS = LayoutOptions()


@dataclass(frozen=True, slots=True, order=True)
class ExternalName(RemotePartitionName):
    """A partition of an external bucket. `topic_id` is empty if the layout has none."""

    places: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        """An identifier of the partition only: keys of external segments are full keys."""
        return f"{self.topic}/{self.topic_id}/{self.partition}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSegment:
    """A segment as described by its layout; None where only its bytes have the fact. Offsets half open."""

    data_key: str
    base_offset: int
    next_offset: int | None = None
    size_bytes: int  # of the ``.log`` content
    stored_bytes: int  # of the object
    max_timestamp_ms: int | None = None
    epochs: tuple[tuple[int, int], ...] | None = None
    stamp_ms: int = 0  # orders copies of the same offsets
    codec: str = "none"
    key_id: str | None = None
    index_bytes: Mapping[str, int] = field(default_factory=dict)  # by section of `stored_segment`
    has_transactions: bool = False  # the layout stores transactions with every segment
    snapshot_offset: int | None = None  # of its producer snapshot, None: the segment's end
    may_be_torn: bool = False  # a broker may be writing this log
    index_keys: Mapping[str, str] = field(default_factory=dict)  # of Kafka's own index files
    finding: Finding | None = None  # a contradiction in the files that accompany the log
    is_blocked: bool = False  # because of `finding`, nothing of the segment can be read


class Cipher(Protocol):
    def open(self, sealed: Body) -> bytes:
        """The plaintext. Raises Corrupt for bytes not encrypted with this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalParts:
    """The chunks of one segment's object, without checksums; index files, None for an absent one."""

    chunks: ChunkTable
    cipher: Cipher | None = None
    offset: bytes | None = None
    time: bytes | None = None
    txn: bytes | None = None
    producers: bytes | None = None
    epochs: bytes | None = None


class ExternalFormat(Protocol):
    """One layout. All methods raise Unavailable, AccessDenied, and Corrupt for contradictory objects."""

    @property
    def layout(self) -> Layout: ...

    def partitions(self, store: ObjectStore) -> list[ExternalName]:
        """Return all partitions, in order. Raises NotFound if the store's root does not exist."""

    def segments(self, store: ObjectStore, name: ExternalName) -> list[ExternalSegment]:
        """Return the complete segments, by base offset; several may hold the same offsets."""

    def parts(self, store: ObjectStore, entry: SegmentEntry) -> ExternalParts:
        """Return the inputs to read an entry of this layout. Raises NotFound if its objects do not exist."""


def plain_chunk_table(size_bytes: int) -> ChunkTable:
    whole, rest = divmod(size_bytes, CHUNK_BYTES)
    lengths = (CHUNK_BYTES,) * whole + ((rest,) if rest else ())
    return ChunkTable(lengths=lengths, crcs=(0,) * len(lengths))


def _parsed(pattern: re.Pattern[str], name: str) -> tuple[int, str, str] | None:
    found = pattern.fullmatch(name)
    if found is None or int(found[1]) > _OFFSET_MAX:
        return None
    return int(found[1]), name[: -len(found[3])], found[3]


# From a file name to (base offset, stem, suffix); None for a name of another form.
parse_aiven_file: ParseFile = partial(_parsed, _AIVEN_FILE)
parse_kafka_file: ParseFile = partial(_parsed, _KAFKA_FILE)


def files_of(store: ObjectStore, place: str, parse: ParseFile) -> dict[tuple[int, str], dict[str, ObjectInfo]]:
    """Return the objects below `place` by (base offset, stem) and suffix, as `parse` returns them for a name."""
    found: dict[tuple[int, str], dict[str, ObjectInfo]] = {}
    for info in store.list(place):
        if (parsed := parse(info.key[len(place) :])) is not None:
            base, stem, suffix = parsed
            found.setdefault((base, stem), {})[suffix] = info
    return found


def complete_segments(
    store: ObjectStore, place: str, parse: ParseFile, needed: Collection[str]
) -> Iterator[tuple[int, dict[str, ObjectInfo]]]:
    """Yield the base offset and the objects by suffix of the segments that have all `needed` suffixes."""
    for (base, stem), files in files_of(store, place, parse).items():
        if all(suffix in files for suffix in needed):
            yield base, files
        else:
            _log.info("a segment is incomplete and is ignored: place=%s segment=%s", place, stem)


def parse_kafka_directory(name: str) -> tuple[str, int, str] | None:
    """Return (topic, partition, topic id) of ``orders-3-<topic id>``; None for anything else."""
    directory, topic_id = parse_topic_directory(name) or ("", "")
    partition = parse_partition_directory(directory)
    return (partition.topic, partition.partition, topic_id) if partition is not None else None


def sibling(data_key: str, suffix: str) -> str:
    return data_key.removesuffix(LOG) + suffix


class ExternalObject:
    """Sequential reads of one segment. Thread safe. No frame inflates beyond its chunk's size."""

    def __init__(self, store: ObjectStore, data_key: str, parts: ExternalParts) -> None:
        self._store = store
        self.key = data_key
        self._parts = parts
        self.size_bytes = parts.chunks.size_bytes

    def read(self, position: int, length: int) -> bytes:
        """Return ``[position, position + length)``, fewer at the end. Raises Corrupt, NotFound."""
        table = self._parts.chunks
        length = min(length, self.size_bytes - position)
        if length <= 0:
            return b""
        if table.is_as_it_is:
            return self._store.get_range(self.key, position, length)
        numbers = table.chunks_of(position, length)
        start = table.stored_range(numbers.start)[0]
        last, last_bytes = table.stored_range(numbers.stop - 1)
        body = memoryview(self._store.get_range(self.key, start, last + last_bytes - start))
        opened = []
        for number in numbers:
            at, stored_bytes = table.stored_range(number)
            chunk = body[at - start : at - start + stored_bytes]
            try:
                opened.append(open_chunk(table, number, chunk, self._parts.cipher))
            except Corrupt as error:
                facts = {"object": self.key, "start": at, "length": stored_bytes}
                raise Corrupt(f"cannot read a segment: {error.attempt}", **facts, **error.facts) from error
        skipped = position - table.chunk_range(numbers.start)[0]
        return b"".join(opened)[skipped : skipped + length]


def open_chunk(table: ChunkTable, number: int, stored: Body, cipher: Cipher | None) -> bytes:
    """Return the segment's bytes of a chunk, decoded. Raises Corrupt if they contradict the table."""
    body: Body = stored
    if table.cipher != PLAIN:
        assert cipher is not None, "a sealed segment comes with its cipher"
        body = cipher.open(stored)
    length = table.lengths[number]
    if table.codec == ZSTD:
        body = inflated(memoryview(body), length)
    if len(body) != length:
        facts = {"chunk": number, "expected_bytes": length, "found_bytes": len(body)}
        raise Corrupt("cannot decode a chunk, its length differs from its manifest", **facts)
    return bytes(body)


class ExternalManifests:
    """The manifests of one external partition, for `MetadataLog(source=...)`. Not thread safe: the log holds its lock.

    `list_rows` returns the current entries, ascending, without overlaps, and adds findings to its argument, by object.
    """

    def __init__(self, name: ExternalName, layout: Layout, list_rows: ListRows) -> None:
        self._name = name
        self.layout = layout
        self._list_rows = list_rows
        self._manifest: Manifest | None = None
        self._findings: dict[str, Finding] = {}

    @property
    def gaps(self) -> list[tuple[int, int]]:
        return list(gaps_between(self._manifest.segments)) if self._manifest is not None else []

    @property
    def findings(self) -> list[Finding]:
        return sorted(self._findings.values(), key=lambda each: (each.offsets or (0, 0), each.where))

    def newest(self, known: Manifest | None) -> Manifest | None:
        """The bucket now as a manifest; None while no listing has found a segment. Raises the listing's errors."""
        findings: dict[str, Finding] = {}
        entries = tuple(self._list_rows(findings))
        where = self._name.topic_partition
        for path in sorted(findings.keys() - self._findings.keys()):
            what = findings[path].what
            _log.warning("an object of the bucket is invalid: partition=%s object=%s what=%s", where, path, what)
        self._findings = findings
        if known is not None and known.segments == entries:
            return known
        if entries:
            self._manifest = self._made(entries, 1 if known is None else known.sequence + 1)
            for start, end in self.gaps:
                _log.warning("the bucket lacks offsets: partition=%s first=%d next=%d", where, start, end)
        elif known is not None:  # all of it expired
            end = known.next_offset
            self._manifest = replace(known, segments=(), sequence=known.sequence + 1, log_start_offset=end)
        return self._manifest

    def missing(self) -> LogError:
        return NotFound("the external partition holds no segment", partition=self._name.prefix)

    def _made(self, entries: tuple[SegmentEntry, ...], sequence: int) -> Manifest:
        name = self._name
        return Manifest(
            sequence=sequence,
            epoch=1 + max((epoch for entry in entries for epoch, _ in entry.epochs), default=0),
            commit_id=f"{self.layout.value}-{sequence}",
            parent_id=None,
            writer_id=self.layout.value,
            topic=name.topic,
            topic_id=name.topic_id,
            partition=name.partition,
            log_start_offset=entries[0].base_offset,
            committed_ms=0,
            segments=entries,
            properties={},
        )


def external_manifests(log: MetadataLog | None) -> ExternalManifests | None:
    """The external source of a log; None for a partition of this project's own layout."""
    source = log.source if log is not None else None
    return source if isinstance(source, ExternalManifests) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSegment:
    """A segment with all facts known."""

    segment: ExternalSegment
    next_offset: int
    size_bytes: int  # below the object's size if its end was torn
    max_timestamp_ms: int | None
    epochs: tuple[tuple[int, int], ...]  # pairs (epoch, start), ascending; empty if unknown
    has_all_epochs: bool = True  # False: `epochs` are those of the first batch
    is_first_epoch_read: bool = False
    is_verified: bool = False  # `epochs` are those of all batches

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset

    @property
    def range(self) -> tuple[int, int]:
        return self.segment.base_offset, self.next_offset


def lineage_of(copies: Iterable[KnownSegment], known: Iterable[tuple[int, int]] = ()) -> LeaderEpochs:
    """Return the epochs of the last leader's log. `known` is a checkpoint of that leader."""
    starts: dict[int, int] = {}
    for epoch, start in chain(known, *(copy.epochs for copy in copies)):
        starts[epoch] = min(start, starts.get(epoch, start))
    lineage = LeaderEpochs()
    for epoch, start in sorted(starts.items()):
        lineage = lineage.assign(epoch, start)
    return lineage


def choose(copies: Sequence[KnownSegment], known: Iterable[tuple[int, int]] = ()) -> list[tuple[KnownSegment, int]]:
    """Return the copies to read, ascending, each up to an offset, without overlaps. `known` is as in `lineage_of`."""
    lineage = lineage_of(copies, known).entries
    following = zip_longest(lineage, lineage[1:])
    ends = {epoch: None if after is None else after[1] for (epoch, _), after in following}
    found: list[tuple[KnownSegment, int]] = []
    valid = ((copy, _valid_end(copy, ends)) for copy in copies)
    for copy, end in sorted(valid, key=lambda each: (each[0].segment.base_offset, each[1], each[0].segment.stamp_ms)):
        base_offset = copy.segment.base_offset
        if end <= base_offset:
            continue
        while found and found[-1][0].segment.base_offset == base_offset:
            found.pop()  # this copy ends earlier than `copy`, or is older
        if found and end <= found[-1][1]:
            continue
        if found:
            before, reached = found[-1]
            found[-1] = before, min(reached, base_offset)
        found.append((copy, end))
    return found


def _valid_end(copy: KnownSegment, ends: dict[int, int | None]) -> int:
    """Where the copy's leading records of the lineage end; `ends` has each epoch's end, None for the last epoch."""
    reached = copy.segment.base_offset
    for at, (epoch, _) in enumerate(copy.epochs):
        its_end = copy.epochs[at + 1][1] if at + 1 < len(copy.epochs) else copy.next_offset
        if epoch not in ends:
            if its_end == reached:
                continue
            return reached
        end = ends[epoch]
        if end is not None and end < its_end:
            return max(reached, end)
        reached = its_end
    return reached if copy.epochs else copy.next_offset
