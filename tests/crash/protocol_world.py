"""One writer of a partition that acts like a manager, and the invariants of the store at any moment."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

from checked_bucket import check_partition

from local.verify.findings import Severity, worst
from remote.fetch.range_reader import RemotePartition
from remote.keys import MANIFESTS
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, decode_manifest
from remote.manifest.manifest_changes import add_segments, expire_segments, remove_pending_deletes
from remote.manifest.writer_roles import WriterState
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment

TOPIC, TOPIC_ID = "orders", "AAAAAAAAAAAAAAAAAAAAAA"
PREFIX = f"{TOPIC}-{TOPIC_ID}/0/"
CHUNK = 64


def body_of(base: int) -> bytes:
    return random.Random(base).randbytes(5 * CHUNK + 7)


def segment_of(base: int) -> SegmentToCopy:
    body = body_of(base)
    return SegmentToCopy(
        base_offset=base,
        next_offset=base + 10,
        size_bytes=len(body),
        record_count=10,
        max_timestamp_ms=base,
        min_timestamp_ms=base,
        epochs=((0, base),),
        offset_index=b"",
        time_index=b"",
        read=lambda start, length: body[start : start + length],
    )


@dataclass
class Writer:
    """The actions of a manager on one partition, and the facts that it may take as promised."""

    store: ObjectStore
    name: str = "a"
    log: MetadataLog = field(init=False)
    acknowledged: list[int] = field(default_factory=list)  # bases with a commit that returned
    expired: list[int] = field(default_factory=list)  # bases with an expiry that was begun

    def __post_init__(self) -> None:
        self.log = MetadataLog(self.store, PREFIX)

    def use(self, store: ObjectStore) -> None:
        """Continue with another store."""
        self.store = self.log.store = self.log._chain._store = self.log._pages._store = store

    def open(self) -> None:
        if self.log.state is WriterState.READER:
            self.log.become_writer(self.name, 1, topic=TOPIC, topic_id=TOPIC_ID, partition=0, properties={"a": "b"})

    def copy(self, base: int) -> None:
        manifest = (
            self.log.cached
        )  # the cached manifest, as in a manager: it may lag behind a commit with a lost answer
        if base >= manifest.next_offset:
            entry = copy_segment(
                self.store, PREFIX, segment_of(base), epoch=self.log.epoch, now_ms=base, chunk_bytes=CHUNK
            )
            self.log.commit(add_segments([entry]), now_ms=2)
        self.acknowledged.append(base)

    def expire(self, base: int) -> None:
        ulids = {entry.ulid for entry in entries_of(self.log, self.log.refresh()) if entry.base_offset == base}
        self.expired.append(base)
        change = expire_segments(ulids, now_ms=3, log_start_offset=base + 10)
        self.log.commit(change, now_ms=3, touches=(base, base + 10))

    def delete_pending(self) -> None:
        manifest = self.log.check_still_writer()
        keys = [each.key for each in manifest.pending_deletes]
        self.store.delete([PREFIX + key for key in keys])
        self.log.commit(remove_pending_deletes(keys), now_ms=4)


def entries_of(log: MetadataLog, manifest: Manifest) -> list[SegmentEntry]:
    """All entries of a manifest, including the ones in its manifest pages."""
    return list(log.index(manifest).entries_with_dead(0, 1 << 60))


def chain(store: ObjectStore) -> list[Manifest]:
    """All manifests, after a check that they form one chain."""
    manifests = [decode_manifest(store.get(info.key)) for info in store.list(PREFIX + MANIFESTS)]
    assert [manifest.sequence for manifest in manifests] == list(range(1, len(manifests) + 1))
    for before, after in pairwise(manifests):
        assert after.parent_id == before.commit_id
        assert after.epoch == before.epoch if after.writer_id == before.writer_id else after.epoch >= before.epoch
        assert after.epoch - before.epoch in (0, 1)
        assert after.log_start_offset >= before.log_start_offset
    return manifests


def check(store: ObjectStore, *writers: Writer) -> Manifest | None:
    """Check the invariants that hold at any moment, as a fresh reader sees the store."""
    manifests = chain(store)
    log = MetadataLog(store, PREFIX)
    latest = log.load()
    assert latest == (manifests[-1] if manifests else None)
    found = check_partition(store, PREFIX).findings
    assert worst(found) is Severity.INFO, found
    if latest is None:
        assert not any(writer.acknowledged for writer in writers)
        return None
    reader, entries = RemotePartition(store, PREFIX), entries_of(log, latest)
    for entry in entries:
        assert bytes(reader.read(entry, 0, entry.size_bytes)) == body_of(entry.base_offset)
    bases = [entry.base_offset for entry in entries]
    assert len(bases) == len(set(bases))
    expired = {base for writer in writers for base in writer.expired}
    for writer in writers:
        assert set(writer.acknowledged) - expired <= set(bases)
    for each in latest.pending_deletes:
        assert all(each.key not in (entry.data_key, entry.indexes_key) for entry in entries)
    return latest
