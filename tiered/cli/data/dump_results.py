"""Results of ``tiered dump``, as printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from tiered.cli.render import Result, Struct
from tiered.inspect.dump_files import (
    AbortedTransaction,
    CheckpointEntry,
    ChunkEntry,
    EpochEntry,
    OffsetEntry,
    Pair,
    ProducerEntry,
    TimeEntry,
)
from tiered.inspect.dump_output import FlatRecord
from tiered.inspect.dump_rows import BatchRow
from tiered.inspect.dump_sources import Kind


class DumpedField(Struct, rename="camel"):
    """A field of a batch, byte by byte; `at` is a position in the file or, if `isInflated`, in the inflated bytes."""

    base_offset: int
    position: int | None
    at: int
    is_inflated: bool
    depth: int
    field: str
    bytes: str
    value: str


class _OfLog(Result):
    """With topic and partition for a partition, without for a file."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET


class DumpedBatches(_OfLog, kw_only=True):
    """``tiered dump``, ``tiered dump --batches``."""

    batches: list[BatchRow]


class DumpedRecords(_OfLog, kw_only=True):
    """``tiered dump --deep-iteration``."""

    records: list[FlatRecord]


class DumpedBytes(_OfLog, kw_only=True):
    """``tiered dump --hex``."""

    fields: list[DumpedField]


class DumpedOffsets(Result):
    """``tiered dump`` of an ``.index``."""

    path: str
    entries: list[OffsetEntry]


class DumpedTimes(Result):
    """``tiered dump`` of a ``.timeindex``."""

    path: str
    entries: list[TimeEntry]


class DumpedEpochs(Result):
    """``tiered dump`` of a ``leader-epoch-checkpoint``."""

    path: str
    entries: list[EpochEntry]


class DumpedCheckpoint(Result):
    """``tiered dump`` of a checkpoint of a log directory."""

    path: str
    entries: list[CheckpointEntry]


class DumpedAborted(Result):
    """``tiered dump`` of a ``.txnindex``."""

    path: str
    transactions: list[AbortedTransaction]


class DumpedProducers(Result):
    """``tiered dump`` of a ``.snapshot``."""

    path: str
    producers: list[ProducerEntry]


class DumpedPairs(Result):
    """``tiered dump`` of ``partition.metadata``, ``meta.properties``, ``.kafka_cleanshutdown``."""

    path: str
    fields: list[Pair]


class DumpedBundle(Result):
    """``tiered dump`` of an ``.indexes`` object; with ``--section`` that one alone."""

    path: str
    time: list[TimeEntry] | UnsetType = UNSET
    txn: list[AbortedTransaction] | UnsetType = UNSET
    producers: list[ProducerEntry] | UnsetType = UNSET
    epochs: list[EpochEntry] | UnsetType = UNSET
    chunks: list[ChunkEntry] | UnsetType = UNSET
    offset: list[OffsetEntry] | UnsetType = UNSET


class ManifestSegmentSection(msgspec.Struct):
    """A segment's entry, with every other field that it has in the manifest."""

    base_offset: int
    next_offset: int
    size_bytes: int
    data_key: str


class ManifestPendingSection(msgspec.Struct):
    """A pending delete, with every other field that it has in the manifest."""

    key: str
    size_bytes: int
    unlinked_ms: int


class ManifestPageSection(msgspec.Struct):
    """A page of older entries, with every other field that it has in the manifest."""

    base_offset: int
    next_offset: int
    segment_count: int
    key: str


class DumpedManifest(Result, forbid_unknown_fields=False):
    """``tiered dump`` of a manifest, with every other field of docs/reference/formats.md."""

    path: str
    segments: list[ManifestSegmentSection]
    pending_deletes: list[ManifestPendingSection] | UnsetType = msgspec.field(name="unlinked", default=UNSET)
    pending_page_deletes: list[ManifestPageSection] | UnsetType = msgspec.field(name="unlinked_pages", default=UNSET)
    pages: list[ManifestPageSection] | UnsetType = msgspec.field(name="spills", default=UNSET)


class DumpedManifestSection(Result):
    """``tiered dump --section`` of a manifest, except its segments."""

    path: str
    pending_deletes: list[ManifestPendingSection] | UnsetType = msgspec.field(name="unlinked", default=UNSET)
    pending_page_deletes: list[ManifestPageSection] | UnsetType = msgspec.field(name="unlinked_pages", default=UNSET)
    pages: list[ManifestPageSection] | UnsetType = msgspec.field(name="spills", default=UNSET)


_OF_KIND: dict[Kind, type[Result]] = {
    Kind.OFFSET_INDEX: DumpedOffsets,
    Kind.TIME_INDEX: DumpedTimes,
    Kind.TXN_INDEX: DumpedAborted,
    Kind.PRODUCER_SNAPSHOT: DumpedProducers,
    Kind.LEADER_EPOCHS: DumpedEpochs,
    Kind.OFFSET_CHECKPOINT: DumpedCheckpoint,
}


def file_result(kind: Kind, path: str, rows_of: Mapping[str, Sequence[object]]) -> Result:
    """Return the result for a file that is no manifest; `rows_of` are the rows of each sheet."""
    result = DumpedBundle if kind is Kind.INDEXES else _OF_KIND.get(kind, DumpedPairs)
    return result(path=path, **rows_of)
