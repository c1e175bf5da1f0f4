"""Buckets of other software, read-only: partitions and segments of a layout, without any batch.

| layout | writer | a segment counts when |
|---|---|---|
| ``aiven`` | Aiven's tiered-storage plugin for Kafka | its ``.rsm-manifest`` exists, which is written last |
| ``local-tiered-storage`` | Kafka's `LocalTieredStorage` | its log, both indexes, snapshot and epochs exist |
| ``pinterest`` | Pinterest's uploader | its log and both indexes exist |
| ``logs`` | a Kafka broker's log directory, or a copy of one | its ``.log`` exists |

| layout | key |
|---|---|
| ``aiven`` | ``<prefix><topic>-<topic id>/<partition>/<base 20>-<segment id>.log .indexes .rsm-manifest`` |
| ``local-tiered-storage`` | ``<topic>-<partition>-<topic id>/<base>-<segment id>.log`` and its index files |
| ``pinterest`` | ``…/<cluster>/<topic>-<partition>/<base 20>.log .index .timeindex``, ``offset.wm``, ``_metadata`` |
| ``logs`` | ``…/<topic>-<partition>/<base 20>.log`` and Kafka's index files |

Keys of these segments are full keys of the store: the objects of one partition may have several locations. No layout
has checksums: only the CRCs of the batches verify the bytes. Ids are 22 characters of URL-safe base64 that may begin
with a dash, so names are cut by fixed widths. Sources: Aiven `ObjectKeyFactory`; kafka `RemoteTopicPartitionDirectory`,
`RemoteLogSegmentFileset`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Protocol

from local.errors import Corrupt, InvalidRequest
from local.names import parse_partition_directory
from local.verify.findings import Finding
from remote.keys import parse_topic_directory
from remote.manifest.catalog import RemotePartitionName
from remote.segment_entry import SegmentEntry
from remote.segments.index_bundle import CHUNK_BYTES, PLAIN, ZSTD, ChunkTable
from remote.segments.object_encoding import inflated
from remote.store import Body, ObjectInfo, ObjectStore

MANIFEST, INDEXES, LOG = ".rsm-manifest", ".indexes", ".log"
KAFKA_ROOT = "kafka-tiered-storage"
PINTEREST_MARKS = ("offset.wm", "_metadata")
# LocalTieredStorage: section of `remote.segments.index_bundle` -> suffix. An empty transaction index has no file.
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


class Layout(Enum):
    """The layout of a bucket; TIERED is this project's own."""

    TIERED = "tiered"
    AIVEN = "aiven"
    LOCAL_TIERED_STORAGE = "local-tiered-storage"
    PINTEREST = "pinterest"
    LOGS = "logs"


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
    index_bytes: Mapping[str, int] = field(default_factory=dict)  # by section of `index_bundle`
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
