"""Buckets that others filled: what a layout tells of partitions and segments before a batch is looked at.

| layout | who writes it | a segment counts when |
|---|---|---|
| ``aiven`` | Aiven's tiered-storage plugin for Kafka | its ``.rsm-manifest`` is there, which is written last |
| ``local-tiered-storage`` | Kafka's `LocalTieredStorage` | its log, both indexes, snapshot and epochs are there |
| ``pinterest`` | Pinterest's uploader | its log and both indexes are there |
| ``logs`` | a Kafka broker's log directory, or whoever copied one | its ``.log`` is there |

Everything here is read only. Keys of these segments are whole keys of the store, for the objects of one partition may
lie in several places (another prefix since, another broker's copy). Nothing of it is checked by a checksum: that the
bytes are right is told by the CRCs of the batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from local.errors import InvalidRequest
from local.verify.findings import Finding
from remote.manifest.catalog import RemotePartitionName
from remote.segment_entry import RemoteSegment
from remote.segments.chunk_table import CHUNK_BYTES, ChunkTable
from remote.store import Body, ObjectStore


class Layout(Enum):
    """How a bucket is laid out; TIERED is our own."""

    TIERED = "tiered"
    AIVEN = "aiven"
    LOCAL_TIERED_STORAGE = "local-tiered-storage"
    PINTEREST = "pinterest"
    LOGS = "logs"


AUTO = "auto"
WORDS = (AUTO, *(each.value for each in Layout))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOptions:
    """Which layout a bucket has, as asked for: one of WORDS.

    `prefixes` are what Aiven's ``key.prefix`` was over the years, pasted before each name as they are; `private_keys`
    the files of its RSA keys by their ids. Picklable; files are read where they are used.
    """

    layout: str = Layout.TIERED.value
    prefixes: tuple[str, ...] = ("",)
    private_keys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.layout not in WORDS:
            raise InvalidRequest("opening a bucket, no such layout", layout=self.layout, there_are=",".join(WORDS))
        if self.layout not in (AUTO, Layout.AIVEN.value) and (self.prefixes != ("",) or self.private_keys):
            raise InvalidRequest("opening a bucket, key prefixes and private keys are Aiven's", layout=self.layout)

    @property
    def is_ours(self) -> bool:
        return self.layout == Layout.TIERED.value


OURS = LayoutOptions()


@dataclass(frozen=True, slots=True, order=True)
class ForeignName(RemotePartitionName):
    """A partition of a foreign bucket. `topic_id` is empty where the layout has none; `places` end in a slash."""

    places: tuple[str, ...] = ()

    @property
    def prefix(self) -> str:
        """Tells partitions apart, and no more: keys of foreign segments are whole."""
        return f"{self.topic}/{self.topic_id}/{self.partition}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSegment:
    """A segment as its layout tells of it; None for what only its bytes say.

    Offsets half open. `size_bytes` is of the ``.log`` inside, `stored_bytes` of the object. `stamp_ms` orders copies of
    the same offsets. `index_bytes` are the sizes of the indexes that lie beside it, by the sections of
    `remote.segments.index_bundle`, and `index_keys` where they lie as Kafka's own files. A layout that keeps
    transactions in every segment `tells_transactions`. `snapshot_offset` is where the producer snapshot beside it was
    taken, None: at its end. A log that a broker may be writing `may_be_torn`. A `finding` tells what makes no sense in
    what lies beside the log; it `is_blocked` where nothing of the segment can be read for it.
    """

    data_key: str
    base_offset: int
    next_offset: int | None = None
    size_bytes: int
    stored_bytes: int
    max_timestamp_ms: int | None = None
    epochs: tuple[tuple[int, int], ...] | None = None
    stamp_ms: int = 0
    codec: str = "none"
    key_id: str | None = None
    index_bytes: Mapping[str, int] = field(default_factory=dict)
    tells_transactions: bool = False
    snapshot_offset: int | None = None
    may_be_torn: bool = False
    index_keys: Mapping[str, str] = field(default_factory=dict)
    finding: Finding | None = None
    is_blocked: bool = False


class Cipher(Protocol):
    """Opens what a layout has sealed."""

    def open(self, sealed: Body) -> bytes:
        """Raises Corrupt for what was not sealed so."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignParts:
    """What it takes to read one segment: how its object is cut, and Kafka's index files, None for one that is not there
    (an empty one is bytes). `chunks` has no checksums."""

    chunks: ChunkTable
    cipher: Cipher | None = None
    offset: bytes | None = None
    time: bytes | None = None
    txn: bytes | None = None
    producers: bytes | None = None
    epochs: bytes | None = None


class ForeignFormat(Protocol):
    """One layout. All verbs raise Unavailable, AccessDenied, and Corrupt for what contradicts the layout."""

    @property
    def layout(self) -> Layout: ...

    def partitions(self, store: ObjectStore) -> list[ForeignName]:
        """All of them, in order. Raises NotFound when the store's root does not exist."""
        ...

    def segments(self, store: ObjectStore, name: ForeignName) -> list[ForeignSegment]:
        """Those that are whole, by base offset; several may hold the same offsets."""
        ...

    def parts(self, store: ObjectStore, row: RemoteSegment) -> ForeignParts:
        """Of a row made of one of the segments. Raises NotFound when its objects are gone."""
        ...


def uncut(size_bytes: int) -> ChunkTable:
    """The table of an object that is the segment itself."""
    whole, rest = divmod(size_bytes, CHUNK_BYTES)
    lengths = (CHUNK_BYTES,) * whole + ((rest,) if rest else ())
    return ChunkTable(lengths=lengths, crcs=(0,) * len(lengths))
