"""Requests and dollars for each TiB, counted: ``python tests/bench/bench_requests.py [--mib 64 256 1024]``.

1. A segment of each size is copied and committed.
2. It is read from end to end by one stream, and then at random positions, all without a cache. Another stream reads it
   and a second segment: the difference is what each further segment of a long stream takes.
3. It expires and is deleted like in the maintenance of a manager.

The requests are counted as S3 bills them and multiplied by the price list of `policies.cost.prices` (S3 Standard). The
figures depend on the sizes only, not on the machine: the store is a directory.
"""

from __future__ import annotations

import argparse
import mmap
import random
import struct
from dataclasses import replace
from functools import partial

from bench_remote import PARTITION, PREFIX, SMALL_BYTES, TOPIC_ID, made_up_segment, workplace

from policies.cost.prices import S3_STANDARD
from policies.cost.storage_cost import GIB, request_cost
from policies.retention import MANIFESTS_AT_ONCE
from remote.fetch.range_reader import RangePredictor, RemotePartition
from remote.gc.fork_references import delete_unlinked
from remote.gc.object_deletion import DeleteReason
from remote.gc.pins import PinWatch, Unlinking
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest_changes import add_segments, expire_segments, remove_pending_deletes
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from remote.store.middleware.store_wrapper import MeteredStore, RequestCounts
from remote.store.open_store import open_store
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.partition.segment_inspection import SegmentInspector
from tiered.read.partition_source import PartitionSource
from tiered.read.reader import TieredReader

TIB = 1 << 40
READS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 256, 1024])
    asked = parser.parse_args()
    print(f"S3 Standard, {S3_STANDARD.region}, prices of {S3_STANDARD.as_of}\n")
    print(
        "| segments of | copied and committed, each | expired and deleted, each | a TiB written, in the end deleted ",
        end="",
    )
    print("| read by one stream, each | a TiB read |\n|---|---|---|---|---|---|")
    for mib in asked.mib:
        with workplace() as folder:
            (folder / "bucket").mkdir()
            store = MeteredStore(open_store(f"file://{folder}/bucket", {}))
            written, deleted, read, further, small = measured(store, folder / "00000000000000000000.log", mib)
        many = TIB / (mib << 20)
        whole = written + deleted
        streamed = f"{told(read)}, then {told(further)}"
        gets, paid = (of(read) + of(further) * (many - 1) for of in (lambda each: each.gets, dollars))
        tebibyte = f"{gets:,.0f} requests, ${paid:.3f}"
        columns = [f"{mib} MiB", told(written), told(deleted), whole_of(whole, many), streamed, tebibyte]
        print(f"| {' | '.join(columns)} |")
    each = RequestCounts(**{name: getattr(small, name) / READS for name in small.__slots__})
    print(f"\nA random read of 64 KiB in a segment never read before, the head known: {told(each)}, ", end="")
    print(f"{each.bytes_out / 1024:,.0f} KiB, ${dollars(each) * 1e6:.2f} a million. ", end="")
    print(f"To keep a TiB for a month: ${TIB / GIB * S3_STANDARD.storage_bands[0][1]:.2f}.")


def whole_of(counts: RequestCounts, many: float) -> str:
    return f"{sum(requests(counts)) * many:,.0f} requests, ${dollars(counts) * many:.3f}"


def measured(store: MeteredStore, path: object, mib: int) -> tuple[RequestCounts, ...]:
    """Requests to copy and commit, to expire and delete, to read all, and to read small pieces READS times."""
    segment = made_up_segment(path, mib)
    log = MetadataLog(store, PREFIX)
    log.become_writer("bench", 0, topic="orders", topic_id=TOPIC_ID, partition=0)
    begun = store.counts()
    log.commit(add_segments([copy_segment(store, PREFIX, segment, epoch=1, now_ms=0)]), now_ms=0)
    written, row = store.counts() - begun, log.refresh().segments[0]
    begun = store.counts()
    assert streamed_bytes(store, log) == row.size_bytes
    read = store.counts() - begun
    log.commit(add_segments([copy_segment(store, PREFIX, following(segment), epoch=1, now_ms=0)]), now_ms=0)
    begun = store.counts()
    assert streamed_bytes(store, log) == 2 * row.size_bytes
    further = store.counts() - begun - read
    begun, draw = store.counts(), random.Random(2)
    for _ in range(READS):
        partition = cold(store, log)
        at = partition.position_of_offset(row, draw.randrange(row.next_offset * 9 // 10))
        assert len(partition.read(row, at, SMALL_BYTES)) == SMALL_BYTES
    small = store.counts() - begun
    return written, expired_and_deleted(store, log, row), read, further, small


def streamed_bytes(store: MeteredStore, log: MetadataLog) -> int:
    partition = cold(store, log)
    return sum(map(len, TieredReader(lambda name: PartitionSource(name, None, partition, log)).batches(PARTITION, 0)))


def following(segment: SegmentToCopy) -> SegmentToCopy:
    """The next segment: the same batches with the next offsets, in the same file."""
    count, at = segment.next_offset, 0
    with open(str(segment.path), "r+b") as file, mmap.mmap(file.fileno(), 0) as body:
        while at < len(body):
            offset, length = struct.unpack_from(">qi", body, at)
            struct.pack_into(">q", body, at, offset + count)
            at += 12 + length
    inspect = partial(SegmentInspector, str(segment.path), count, 2 * count, ((0, count),))
    return replace(segment, base_offset=count, next_offset=2 * count, epochs=((0, count),), inspect=inspect)


def expired_and_deleted(store: MeteredStore, log: MetadataLog, row: SegmentEntry) -> RequestCounts:
    """One segment without a prior listing of pins, the most expensive way. Manifests are deleted in batches."""
    begun = store.counts()
    gone = expire_segments([row.ulid], now_ms=1, log_start_offset=row.next_offset)
    manifest = log.commit(gone, 1, touches=(row.base_offset, row.next_offset))
    due = {each.key: Unlinking(sequence=each.unlinked_sequence, at_ms=1) for each in manifest.pending_deletes}
    keys = PinWatch(store, PREFIX).free(due, sequence=manifest.sequence, now_ms=2)
    assert len(keys) == 2
    newest = log.check_still_writer()
    delete_unlinked(store, PREFIX, sorted(keys), DeleteReason.PENDING_DELETE, newest, has_forks=False)
    log.commit(remove_pending_deletes(keys), 2)
    taken = store.counts() - begun
    manifests = 3 / MANIFESTS_AT_ONCE  # one collection: a boundary, two listings, three reads
    return taken + RequestCounts(puts=manifests, gets=3 * manifests, lists=2 * manifests)  # type: ignore[arg-type]


def cold(store: ObjectStore, log: MetadataLog) -> RemotePartition:
    return RemotePartition(store, PREFIX, metadata=log, guesses=RangePredictor())


def requests(counts: RequestCounts) -> tuple[float, float, float]:
    return counts.puts, counts.gets, counts.lists


def told(counts: RequestCounts) -> str:
    named = zip(requests(counts), ("PUT", "GET", "LIST"), strict=True)
    return ", ".join(f"{count:.4g} {name}" for count, name in named if count)


def dollars(counts: RequestCounts) -> float:
    return request_cost(puts=counts.puts, gets=counts.gets, lists=counts.lists)


if __name__ == "__main__":
    main()
