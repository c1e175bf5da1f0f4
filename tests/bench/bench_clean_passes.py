"""A log larger than the dedupe buffer: number of passes and remaining records: ``python
tests/bench/bench_clean_passes.py``.

All segments have the same number of records, and the buffer has space for the keys of some of them. It is asserted:

1. A pass covers as many whole segments as the buffer holds keys of, so that the number of passes is known before.
2. No pass uses more than its buffer.
3. After the last pass exactly the newest record of every key remains.
"""

from __future__ import annotations

import os
import random
import tempfile

from clean_samples import NAME, NOW, took

from local.cleaner import cleaner
from local.cleaner.cleaner_history import CleaningFigures
from local.cleaner.offset_map import Buffer
from local.format.record import Record
from local.kernels.pure_key_map import SLOT_BYTES
from local.log import Log
from local.settings import LogSettings
from local.storage import DiskStorage

SEGMENTS = 24
RECORDS = 25_000  # for each segment, with distinct keys
KEYS = 400_000
SEGMENTS_A_PASS = 4
VALUE_BYTES = 100


def filled(root: str) -> tuple[Log, dict[bytes, int]]:
    """(the log, the newest offset of each key)."""
    settings = LogSettings(segment_bytes=1 << 30, batch_bytes=16 << 10, is_compacted=True)
    log = Log.open(DiskStorage(), os.path.join(root, "t-0"), NAME, settings, now_ms=0)
    draw, newest = random.Random(5), dict[bytes, int]()
    for segment in range(SEGMENTS):
        # Segments of one pass share no key, so that the number of segments that fit can be computed.
        share = [key for key in range(KEYS) if key % SEGMENTS_A_PASS == segment % SEGMENTS_A_PASS]
        keys = [b"key-%016d" % key for key in draw.sample(share, RECORDS)]
        newest |= {key: log.next_offset + at for at, key in enumerate(keys)}
        log.append([Record(key, draw.randbytes(VALUE_BYTES), NOW) for key in keys], now_ms=NOW)
        log.roll(now_ms=NOW)
    log.cleaner_offset = 0
    return log, newest


def main() -> None:
    # a tenth more than they need, too little for a fifth segment
    room = int(SEGMENTS_A_PASS * RECORDS * SLOT_BYTES / 0.9 * 1.1)
    with tempfile.TemporaryDirectory() as root:
        log, newest = filled(root)
        before, passes, read = log.size_bytes, 0, 0
        print("| pass | cleaned up to | records left | buffer in use | s |\n|---|---|---|---|---|")
        while True:
            found: list[CleaningFigures | None] = []
            options = {"clean_from": 0, "now_ms": NOW, "tombstones_below": None, "buffer": Buffer(size_bytes=room)}
            spent = took(lambda: found.append(cleaner.clean(log, **options)))  # noqa: B023
            if (done := found[0]) is None:
                break
            passes += 1
            read += done.bytes_read
            assert done.cleaner_offset == min(passes * SEGMENTS_A_PASS, SEGMENTS) * RECORDS
            # including some keys of the segment that did not fit
            assert done.distinct_keys >= SEGMENTS_A_PASS * RECORDS
            assert done.buffer_utilization <= 1
            use = f"{done.buffer_utilization:.0%}"
            print(f"| {passes} | {done.cleaner_offset} | {log_records(log)} | {use} | {spent[1]:.2f} |")
        assert passes == SEGMENTS // SEGMENTS_A_PASS
        left = [(record.key, record.offset) for record in log.records(0)]
        assert left == sorted(newest.items(), key=lambda each: each[1])
        print(
            f"buffer {room >> 10} KiB, {SEGMENTS * RECORDS} records of {len(newest)} keys, {before >> 20} MiB: "
            f"{passes} passes, which read {read / before:.1f} times the log; left {log.size_bytes >> 20} MiB, "
            f"{len(left)} records, the newest of every key"
        )
        log.close()


def log_records(log: Log) -> int:
    return sum(1 for _ in log.records(0))


if __name__ == "__main__":
    main()
