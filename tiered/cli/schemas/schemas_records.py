"""JSON of commands that append, read and dump records and the files beside them. See `tiered.cli.schemas.schemas`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tiered.cli.schemas.schemas_base import Strict, Versioned, Where


class DumpedBatch(Strict, rename="camel"):
    """A batch by Kafka's names; `position` null where the bytes come from more than one file."""

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    partition_leader_epoch: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    position: int | None
    timestamp_type: str
    max_timestamp: int
    size: int
    magic: int
    compresscodec: str
    crc: int
    isvalid: bool


class _OfLog(Versioned):
    """With topic and partition where a partition was asked for, and not a file."""

    topic: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET


class DumpedBatches(_OfLog, kw_only=True):
    """``tiered dump``, ``tiered dump --batches``."""

    batches: list[DumpedBatch]


class DumpedHeader(Strict):
    """A header as the value decoder gives it."""

    key: str
    value: Any


class DumpedRecord(Strict, rename="camel"):
    """A record and the facts of its batch side by side."""

    offset: int
    timestamp: int
    timestamp_type: int
    key_size: int
    value_size: int
    sequence: int
    header_keys: str
    key: str | int | float | bool | None
    value: str | int | float | bool | None
    headers: list[DumpedHeader]
    end_txn_marker: str | None
    coordinator_epoch: int | None
    base_offset: int
    position: int | None
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    is_control: bool
    compresscodec: str


class DumpedRecords(_OfLog, kw_only=True):
    """``tiered dump --deep-iteration``."""

    records: list[DumpedRecord]


class DumpedControl(Strict, rename="camel"):
    """What a control record says."""

    type: str
    coordinator_epoch: int | None


class DumpedLine(Strict, rename="camel"):
    """``tiered dump --records|-o jsonl``: a line for each record; key and value as they are decoded."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    headers: list[DumpedHeader]
    key_size: int
    value_size: int
    sequence: int
    batch: DumpedBatch
    control: DumpedControl | None


class DumpedField(Strict, rename="camel"):
    """A field of a batch, byte by byte; `at` counts in the file or, where `isInflated`, in what was compressed."""

    base_offset: int
    position: int | None
    at: int
    is_inflated: bool
    depth: int
    field: str
    bytes: str
    value: str


class DumpedBytes(_OfLog, kw_only=True):
    """``tiered dump --hex``."""

    fields: list[DumpedField]


class _OfFile(Versioned):
    path: str


class _Section(Strict):
    """A line of ``-o jsonl`` says of which section it is where there are several."""

    section: str | UnsetType = UNSET


class OffsetEntry(_Section, kw_only=True):
    """Of an ``.index``."""

    offset: int
    position: int


class DumpedOffsets(_OfFile):
    """``tiered dump`` of an ``.index``."""

    entries: list[OffsetEntry]


class TimeEntry(_Section, kw_only=True):
    """Of a ``.timeindex``."""

    timestamp: int
    offset: int


class DumpedTimes(_OfFile):
    """``tiered dump`` of a ``.timeindex``."""

    entries: list[TimeEntry]


class EpochEntry(_Section, kw_only=True, rename="camel"):
    """Of a ``leader-epoch-checkpoint``."""

    epoch: int
    start_offset: int


class DumpedEpochs(_OfFile):
    """``tiered dump`` of a ``leader-epoch-checkpoint``."""

    entries: list[EpochEntry]


class CheckpointEntry(Where):
    """Of a checkpoint of a log directory."""

    offset: int


class DumpedCheckpoint(_OfFile):
    """``tiered dump`` of a checkpoint of a log directory."""

    entries: list[CheckpointEntry]


class AbortedTransaction(_Section, kw_only=True, rename="camel"):
    """Of a ``.txnindex``."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class DumpedAborted(_OfFile):
    """``tiered dump`` of a ``.txnindex``."""

    transactions: list[AbortedTransaction]


class DumpedProducer(_Section, kw_only=True, rename="camel"):
    """Of a ``.snapshot``; null where no batch of the producer is remembered."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    current_txn_first_offset: int | None
    last_timestamp: int
    first_sequence: int | None
    last_sequence: int | None
    last_offset: int | None
    offset_delta: int | None
    timestamp: int | None


class DumpedProducers(_OfFile):
    """``tiered dump`` of a ``.snapshot``."""

    producers: list[DumpedProducer]


class DumpedPair(Strict):
    """A name and a value of a small file."""

    name: str
    value: Any


class DumpedPairs(_OfFile):
    """``tiered dump`` of ``partition.metadata``, ``meta.properties``, ``.kafka_cleanshutdown``."""

    fields: list[DumpedPair]


class DumpedChunk(_Section, kw_only=True, rename="camel"):
    """A run of bytes that is checked, compressed and encrypted by itself."""

    chunk: int
    position: int
    length: int
    crc32c: int
    stored_position: int
    stored_length: int
    stored_crc32c: int = msgspec.field(name="storedCrc32c")  # the rule would write Crc32C


class DumpedBundle(_OfFile, kw_only=True):
    """``tiered dump`` of an ``.indexes`` object; with ``--section`` that one alone."""

    offset: list[OffsetEntry] | UnsetType = UNSET
    time: list[TimeEntry] | UnsetType = UNSET
    txn: list[AbortedTransaction] | UnsetType = UNSET
    producers: list[DumpedProducer] | UnsetType = UNSET
    epochs: list[EpochEntry] | UnsetType = UNSET
    chunks: list[DumpedChunk] | UnsetType = UNSET


class ManifestSegmentSection(msgspec.Struct):
    """A segment's row, with every other field that it has in the head."""

    base_offset: int
    next_offset: int
    size_bytes: int
    data_key: str


class ManifestPendingSection(msgspec.Struct):
    """An object that is to go, with every other field that it has in the head."""

    key: str
    size_bytes: int
    unlinked_ms: int


class ManifestPageSection(msgspec.Struct):
    """A page of older rows, with every other field that it has in the head."""

    base_offset: int
    next_offset: int
    segment_count: int
    key: str


class DumpedHead(msgspec.Struct):
    """``tiered dump`` of a head: beside these all that it says of itself, as docs/reference/formats.md has it."""

    schema_version: int
    path: str
    segments: list[ManifestSegmentSection]
    pending_deletes: list[ManifestPendingSection] | UnsetType = UNSET
    pending_page_deletes: list[ManifestPageSection] | UnsetType = UNSET
    pages: list[ManifestPageSection] | UnsetType = UNSET


class DumpedHeadSection(_OfFile, kw_only=True):
    """``tiered dump --section`` of a head, but for its segments."""

    pending_deletes: list[ManifestPendingSection] | UnsetType = UNSET
    pending_page_deletes: list[ManifestPageSection] | UnsetType = UNSET
    pages: list[ManifestPageSection] | UnsetType = UNSET
