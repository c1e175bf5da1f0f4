"""The places of one partition's records: its log, its objects, its manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from local.errors import InvalidRequest, LogError, NotFound, OffsetOutOfRange
from local.log import Log
from local.names import TopicPartition
from remote.fetch.range_reader import RemotePartition
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_lookup import MetadataIndex
from remote.segment_entry import SegmentEntry

if TYPE_CHECKING:
    from tiered.read.local_views import LocalViews

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """The tiers of one partition; either may be missing.

    `is_disk_alone`: read the local log alone from its first segment on, although the log starts in the bucket.
    `local_views`: the compacted views on the disk.
    """

    partition: TopicPartition
    log: Log | None
    remote: RemotePartition | None = None
    metadata: MetadataLog | None = None
    is_disk_alone: bool = False
    local_views: LocalViews | None = None

    def known_manifest(self) -> Manifest | None:
        """The newest manifest seen so far; sends no request."""
        return self.metadata.cached if self.metadata is not None else None

    def manifest(self) -> Manifest | None:
        """As `known_manifest`, but requests it if none was ever seen. None: nothing is tiered. Raises Unavailable."""
        return self.known_manifest() or (self.metadata.load() if self.metadata is not None else None)

    def manifest_below(self, local_start: int | None) -> Manifest | None:
        """As `manifest`, but one that contains every segment dropped from the disk below `local_start`.

        A segment is committed before the disk drops it (I2). Another process may have done both. Then the manifest seen
        so far ends too early, and it is read once more.
        """
        manifest = self.manifest()
        if (
            manifest is not None
            and local_start is not None
            and manifest.next_offset < local_start
            and self.metadata is not None
        ):
            return self.metadata.load(exact=True)  # readers skip a hole, so "nothing new" has to be true
        return manifest

    def ask(self, question: Callable[[MetadataIndex], T]) -> T | None:
        """The answer of `question` from the manifest; None without a manifest. Raises Unavailable."""
        manifest = self.manifest()
        return self.ask_of(manifest, question) if manifest is not None else None

    def ask_of(self, manifest: Manifest, question: Callable[[MetadataIndex], T]) -> T:
        """The answer of `question` from `manifest`, or from the newest manifest if `manifest` is too old for it."""
        assert self.metadata is not None, "a head comes with its chain"
        return self.metadata.ask(manifest, question)

    def start_offset(self) -> int:
        """The first retained offset over both tiers: the manifest's if there is one. Raises Unavailable.

        Before any manifest was seen, a disk that holds the whole log answers alone: no request is sent.
        """
        manifest = self.known_manifest() if self.has_whole_log() else self.manifest()
        if manifest is not None:
            return manifest.log_start_offset
        if self.log is None:
            return 0
        return self.log.local_log_start_offset if self.is_disk_alone else self.log.log_start_offset

    def next_offset(self) -> int:
        """The log end offset. Raises Unavailable if the disk alone does not know it."""
        manifest = self.known_manifest() if self.has_local_records() else self.manifest()
        ends = [manifest.next_offset] if manifest else []
        if self.log is not None:
            ends.append(self.log.next_offset)
        return max(ends, default=0)

    def has_local_records(self) -> bool:
        return self.log is not None and self.log.next_offset > self.log.local_log_start_offset

    def has_whole_log(self) -> bool:
        """Whether the disk holds every record from its log start on, as far as the disk knows."""
        log = self.log
        return log is not None and self.has_local_records() and log.log_start_offset >= log.local_log_start_offset

    def is_local(self, offset: int) -> bool:
        """Whether the disk alone answers for `offset`, the log end included."""
        log = self.log
        return log is not None and self.has_local_records() and log.local_log_start_offset <= offset <= log.next_offset

    def row_at(self, offset: int) -> tuple[SegmentEntry | None, int]:
        """The segment entry to read for `offset` and the offset in it; (None, next offset) across a gap.

        Raises OffsetOutOfRange, Unavailable, and the error of `unknown` if no manifest knows of records dropped from
        the disk.
        """
        # The disk first, then the manifest: a dropped segment was committed before.
        local_start = self.log.local_log_start_offset if self.log is not None else None
        manifest = self.manifest_below(local_start)
        if manifest is None:
            raise self.unseen(offset)
        return self.ask_of(manifest, lambda index: self.row_in(index, offset, local_start))

    def row_in(self, index: MetadataIndex, offset: int, local_start: int | None) -> tuple[SegmentEntry | None, int]:
        """As `row_at`, with the manifest of this index and this local log start offset."""
        if (
            offset < index.manifest.log_start_offset
        ):  # the log start of a manifest newer than the one the read began with
            raise out_of_range(self.partition, offset, index.manifest.log_start_offset, self.next_offset())
        entry = index.find_by_offset(offset)
        if entry is None or (local_start is not None and offset < local_start <= entry.base_offset):
            if local_start is None:
                raise out_of_range(self.partition, offset, self.start_offset(), self.next_offset())
            return None, max(offset, local_start)
        return entry, max(offset, entry.base_offset)

    def unseen(self, offset: int) -> LogError:
        """The error for an `offset` not on the disk before any manifest was seen."""
        if self.log is None or self.is_disk_alone or offset < self.log.log_start_offset:
            return out_of_range(self.partition, offset, self.start_offset(), self.next_offset())
        return self.unknown(offset)

    def unknown(self, offset: int) -> LogError:
        """The error for records dropped from the disk without a manifest that locates them."""
        facts = {"partition": self.partition, "offset": offset}
        if self.metadata is None:
            attempt = "cannot read the tiered partition, no store is configured: set url in [remote] of tiered.toml"
            return InvalidRequest(attempt, **facts)
        return NotFound("cannot read the tiered partition, the bucket has no manifest of it", **facts)


def out_of_range(partition: TopicPartition, offset: int, first: int, next_offset: int) -> OffsetOutOfRange:
    """The error of a read outside the log."""
    return OffsetOutOfRange(
        "cannot read, the offset is out of range",
        partition=partition,
        offset=offset,
        first_offset=first,
        next_offset=next_offset,
    )
