"""JSON of ``tiered dump`` for files of rows, as structs: for the pages of ``docs/reference/schemas`` and tests.

The command prints the sections of `tiered.inspect.dump_files` without them.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from tiered.cli.render import Result
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


class _OfFile(Result):
    path: str


class DumpedOffsets(_OfFile):
    """``tiered dump`` of an ``.index``."""

    entries: list[OffsetEntry]


class DumpedTimes(_OfFile):
    """``tiered dump`` of a ``.timeindex``."""

    entries: list[TimeEntry]


class DumpedEpochs(_OfFile):
    """``tiered dump`` of a ``leader-epoch-checkpoint``."""

    entries: list[EpochEntry]


class DumpedCheckpoint(_OfFile):
    """``tiered dump`` of a checkpoint of a log directory."""

    entries: list[CheckpointEntry]


class DumpedAborted(_OfFile):
    """``tiered dump`` of a ``.txnindex``."""

    transactions: list[AbortedTransaction]


class DumpedProducers(_OfFile):
    """``tiered dump`` of a ``.snapshot``."""

    producers: list[ProducerEntry]


class DumpedPairs(_OfFile):
    """``tiered dump`` of ``partition.metadata``, ``meta.properties``, ``.kafka_cleanshutdown``."""

    fields: list[Pair]


class DumpedBundle(_OfFile):
    """``tiered dump`` of an ``.indexes`` object; with ``--section`` that one alone."""

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


class DumpedManifest(_OfFile, forbid_unknown_fields=False):
    """``tiered dump`` of a manifest, with every other field of docs/reference/formats.md."""

    segments: list[ManifestSegmentSection]
    pending_deletes: list[ManifestPendingSection] | UnsetType = msgspec.field(name="unlinked", default=UNSET)
    pending_page_deletes: list[ManifestPageSection] | UnsetType = msgspec.field(name="unlinked_pages", default=UNSET)
    pages: list[ManifestPageSection] | UnsetType = msgspec.field(name="spills", default=UNSET)


class DumpedManifestSection(_OfFile):
    """``tiered dump --section`` of a manifest, except its segments."""

    pending_deletes: list[ManifestPendingSection] | UnsetType = msgspec.field(name="unlinked", default=UNSET)
    pending_page_deletes: list[ManifestPageSection] | UnsetType = msgspec.field(name="unlinked_pages", default=UNSET)
    pages: list[ManifestPageSection] | UnsetType = msgspec.field(name="spills", default=UNSET)
