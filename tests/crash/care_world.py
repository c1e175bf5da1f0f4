"""Buckets to scrub, repair and rewrite: a partition for each encoding and form of a manifest.

The segments are built as the manager builds them: indexes, leader epochs and facts come from the bytes. No manager
runs, so a thousand buckets take a moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

from local import kernels
from local.index.index_files import build_indexes
from local.records.batch import encode_batch
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import Change, add_segments, expire_segments
from remote.manifest.page_out import PageRule
from remote.manifest.view import CompactedView, ViewRun
from remote.manifest.view_changes import switch_view
from remote.segment_entry import SegmentEntry
from remote.segments.encryption import KeyRing
from remote.segments.stored_segment import PLAIN_ENCODING, ZSTD, ObjectEncoding
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.partition.segment_inspection import SegmentInspector

NOW = 1_800_000_000_000
TOPIC_ID = "B" * 22
KEYS = KeyRing({"a": bytes(range(32)), "b": bytes(range(32, 64))})
MODES = {
    "raw": PLAIN_ENCODING,
    "zstd": ObjectEncoding(codec=ZSTD),
    "encrypted": ObjectEncoding(key_id="a", keys=KEYS),
    "both": ObjectEncoding(codec=ZSTD, key_id="a", keys=KEYS),
}
SMALL_PAGES = PageRule(manifest_bytes_max=900, page_rows_max=4, page_rows_min=1, kept_entries_min=2)


def named(topic: str, topic_id: str = TOPIC_ID) -> RemotePartitionName:
    return RemotePartitionName(topic, topic_id, 0)


def batches(base: int, counts: Sequence[int], *, epoch: int = 0, seed: int = 0) -> list[bytes]:
    """Batches with these counts of records from offset `base`; each value contains its offset."""
    made, at = [], base
    for count in counts:
        records = [
            (b"key-%d" % (each % 7), (b"value %d of %d " % (each, seed)) * 3, NOW - 1_000_000 + each, ())
            for each in range(at, at + count)
        ]
        made.append(encode_batch(records, base_offset=at, leader_epoch=epoch))
        at += count
    return made


def to_copy(
    data: bytes, next_offset: int, epochs: tuple[tuple[int, int], ...] = (), *, base: int | None = None, **more: object
) -> SegmentToCopy:
    """The description that the manager would give of a segment with these bytes."""
    table = kernels.scan_batches(data)
    base = int(table.base_offsets[0]) if base is None else base
    indexes = build_indexes(table, base, 200)
    lineage = epochs or ((int(table.leader_epochs[0]), base),)
    told = bytes(indexes.offset), bytes(indexes.time)
    return SegmentToCopy(
        base_offset=base,
        next_offset=next_offset,
        size_bytes=len(data),
        epochs=lineage,
        offset_index=told[0],
        time_index=told[1],
        leader_epochs=b"0\n%d\n" % len(lineage) + b"".join(b"%d %d\n" % each for each in lineage),
        read=lambda start, length: data[start : start + length],
        inspect=lambda: SegmentInspector("memory", base, next_offset, lineage, told),
        **more,  # type: ignore[arg-type]
    )


@contextmanager
def small_chunks(chunk_bytes: int = 512) -> Iterator[None]:
    """Uploads of this process within the block have small chunks, so that small segments have several."""
    with mock.patch.multiple("remote.upload.segment_upload", CHUNK_BYTES=chunk_bytes, SEALED_CHUNK_BYTES=chunk_bytes):
        yield


@dataclass
class CareWorld:
    """A store with any number of topics of one partition; `logs` are their writers."""

    store: ObjectStore
    logs: dict[str, MetadataLog]

    @classmethod
    def empty(cls) -> CareWorld:
        return cls(MemoryStore("memory://b", now_ms=lambda: NOW), {})

    def copied(self) -> CareWorld:
        """The same objects in another store, in which no process is the writer."""
        assert isinstance(self.store, MemoryStore)
        other = MemoryStore("memory://b", now_ms=lambda: NOW)
        other._objects = dict(self.store._objects)
        return CareWorld(other, {})

    def writer(self, topic: str, rule: PageRule | None = None) -> MetadataLog:
        if topic not in self.logs:
            log = MetadataLog(self.store, named(topic).prefix, rule=rule)
            log.become_writer("w", NOW, topic=topic, topic_id=TOPIC_ID, partition=0)
            self.logs[topic] = log
        return self.logs[topic]

    def add(
        self,
        topic: str,
        data: bytes,
        next_offset: int,
        *,
        object_encoding: ObjectEncoding = PLAIN_ENCODING,
        commit: bool = True,
        **more: object,
    ) -> SegmentEntry:
        """Copy one more segment of a topic."""
        log = self.writer(topic)
        view = more.pop("view", None)
        source = to_copy(data, next_offset, **more)  # type: ignore[arg-type]
        entry = copy_segment(
            self.store,
            named(topic).prefix,
            source,
            epoch=log.epoch,
            now_ms=NOW,
            object_encoding=object_encoding,
            chunk_bytes=512,
            view=view,  # type: ignore[arg-type]
        )
        if commit:
            self.commit(topic, add_segments([entry]))
        return entry

    def commit(self, topic: str, change: Change, **more: tuple[int, int]) -> None:
        self.writer(topic).commit(change, NOW, **more)


def fill(
    world: CareWorld, topic: str, object_encoding: ObjectEncoding, segments: int = 5, rule: PageRule | None = None
) -> None:
    """Copy segments of three batches with gaps, two leader epochs and one unlinked segment.

    Offsets are missing after each segment.
    """
    world.writer(topic, rule)
    for number in range(segments):
        base = 100 * number
        data = b"".join(batches(base, (5, 9, 7), epoch=number // 3, seed=number))
        cleaned = base if number % 2 else None
        world.add(topic, data, base + 100, object_encoding=object_encoding, cleaned_through=cleaned)
    first = next(iter(world.logs[topic].index(world.logs[topic].refresh()).entries()))
    world.commit(topic, expire_segments([first.ulid], now_ms=NOW, log_start_offset=100), touches=(0, 100))


def with_view(world: CareWorld, topic: str) -> None:
    fill(world, topic, PLAIN_ENCODING)
    entries = tuple(
        replace(world.add(topic, batches(base, (3, 2))[0], base + 50, commit=False, view="compacted"), committed_ms=NOW)
        for base in (100, 200)
    )
    figures = {"from_offset": 0, "upto_offset": 300, "records_in": 42, "records_out": 6, "bytes_in": 1, "bytes_out": 1}
    run = ViewRun(started_ms=NOW, took_ms=1, **figures)
    built = CompactedView(
        name="compacted", horizon_offset=300, entries=entries, record_count=6, key_count=6, last_run=run
    )
    world.commit(topic, switch_view(built, replaces=None, now_ms=NOW))


def all_kinds() -> CareWorld:
    """One topic for each object encoding, one with manifest pages, and one with a compacted view."""
    world = CareWorld.empty()
    for topic, object_encoding in MODES.items():
        fill(world, topic, object_encoding)
    fill(world, "paged", MODES["both"], 12, SMALL_PAGES)
    with_view(world, "viewed")
    return world
