"""What the index costs at 1,000, 100,000 and a million segments: a commit, an open, lookups; requests and times.

    python tests/bench/metadata.py --segments 1000 100000 1000000 --store memory file

Rows are made up and committed in runs of 1,000, as nothing else is measured here; the sizes of names, numbers and index
ranges are those of segments of 1 GiB. Each figure is the best of three, but for opens with an empty cache, which are
done once each.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from remote.fsspec_store import open_store
from remote.head import encode_head
from remote.head_changes import add_segments, expire_segments, set_properties
from remote.index_copies import index_copies
from remote.keys import SPILLS, data_key, indexes_key, new_ulid
from remote.memory_store import MemoryStore
from remote.metadata_log import MetadataLog
from remote.metered_store import MeteredStore
from remote.segment import IndexRange, RemoteSegment
from remote.store import ObjectStore

TOPIC_ID = "A" * 22
PREFIX = f"orders-{TOPIC_ID}/0/"
RUN = 1000
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--segments", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--store", nargs="+", choices=("memory", "file"), default=["memory", "file"])
    asked = parser.parse_args()
    for kind in asked.store:
        for count in asked.segments:
            with tempfile.TemporaryDirectory() as folder:
                os.mkdir(f"{folder}/bucket")
                store = MemoryStore() if kind == "memory" else open_store(f"file://{folder}/bucket", {})
                measure(kind, count, store, f"{folder}/copies")


def measure(kind: str, count: int, store: ObjectStore, copies: str) -> None:
    metered = MeteredStore(store)
    log = MetadataLog(metered, PREFIX)
    log.become_writer("bench", 1, topic="orders", topic_id=TOPIC_ID, partition=0, properties={})
    rows, kept_rows = made_up(count), []
    while run := list(islice(rows, RUN)):
        log.commit(add_segments(run), now_ms=2)
        kept_rows.append(run[0])
    head = log.cached
    assert head is not None
    assert head.segment_count == count
    newest = head.segments[-1]
    middle = kept_rows[len(kept_rows) // 2]
    pages = [info.size_bytes for info in store.list(PREFIX + SPILLS)]
    print(f"{kind}, {count:,} segments")
    print(f"  head {len(encode_head(head)):,} bytes, {len(head.spills)} pages of {sum(pages) // max(1, len(pages)):,}")

    def tell(what: str, work: Callable[[], object], times: int = 3) -> None:
        best, before = float("inf"), metered.counts()
        for _ in range(times):
            began = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - began)
        spent = metered.counts() - before
        each = " ".join(f"{name}={getattr(spent, name) / times:g}" for name in ("puts", "gets", "lists", "deletes"))
        print(f"  {what:34} {best * 1000:9.2f} ms   {each} bytes={(spent.bytes_in + spent.bytes_out) // times:,}")

    steps = iter(range(1000))
    tell("commit", lambda: log.commit(set_properties({"step": str(next(steps))}), now_ms=3))
    tell("open", lambda: MetadataLog(metered, PREFIX).refresh())
    tell("open, offset in the middle", lambda: looked_up(MetadataLog(metered, PREFIX), middle.base_offset))
    kept = MetadataLog(metered, PREFIX, copies=index_copies(copies))
    looked_up(kept, middle.base_offset)
    again = lambda: looked_up(MetadataLog(metered, PREFIX, copies=index_copies(copies)), middle.base_offset)  # noqa: E731
    tell("the same with a local copy", again)
    tell("news? there are none", lambda: kept.load(), 30)
    index = kept.index(kept.refresh())
    tell("offset, page in memory", lambda: index.find_by_offset(middle.base_offset), 30)
    tell("offset among the newest", lambda: index.find_by_offset(newest.base_offset), 30)
    tell("timestamp, page in memory", lambda: index.find_by_timestamp(middle.min_timestamp_ms or 0), 30)

    def expire_one() -> None:
        row = log.index(log.refresh()).find_by_offset(0)
        assert row is not None
        touches = row.base_offset, row.next_offset
        log.commit(expire_segments([row.ulid], now_ms=4, log_start_offset=row.next_offset), now_ms=4, touches=touches)

    tell("expire the oldest segment", expire_one)


def looked_up(log: MetadataLog, offset: int) -> RemoteSegment:
    found = log.ask(log.refresh(), lambda index: index.find_by_offset(offset))
    assert found is not None
    return found


def made_up(count: int) -> Iterator[RemoteSegment]:
    """Segments of about 1 GiB, one every 100 s."""
    draw, base, began_ms = random.Random(1), 0, 1_700_000_000_000
    for _ in range(count):
        following, ulid = base + draw.randint(100_000, 900_000), new_ulid(began_ms)
        offset = draw.randint(300_000, 400_000)
        lengths = {"offset": offset, "time": offset // 2, "txn": 0, "producers": 40, "epochs": 20, "chunks": 4120}
        ranges, at = {}, 0
        for name, length in lengths.items():
            ranges[name] = IndexRange(start=at, length=length)
            at += length
        size = (1 << 30) - draw.randint(0, 4000)
        yield (
            RemoteSegment(
                ulid=ulid,
                base_offset=base,
                next_offset=following,
                size_bytes=size,
                stored_bytes=size,
                record_count=following - base,
                max_timestamp_ms=began_ms + draw.randint(90_000, 100_000),
                min_timestamp_ms=began_ms,
                epochs=((3, base),),
                data_crc32c=draw.getrandbits(32),
                data_key=data_key(base, following - 1, 3, ulid),
                indexes_key=indexes_key(base, following - 1, 3, ulid),
                indexes_bytes=at,
                indexes=ranges,
            )
        )
        base, began_ms = following, began_ms + 100_000


if __name__ == "__main__":
    main()
