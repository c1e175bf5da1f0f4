"""Memory and time of the cleaner's offset map at many keys: ``python tests/bench/bench_key_map.py [millions ...]``.

Distinct keys of 20 bytes are added like in the first pass of the cleaner: whole uncompressed batches of 16 KB, in one
loop with their checksums, first as new keys, then as known keys. At the end nine tenths of the slots are used. Each
size runs in its own process.

Bytes for each key are those of the map, and then the growth of the process including two bits for each record (VmRSS
before, peak after). Nanoseconds for each key are processor time: of the whole loop, and without checksums and the walk
over records, which a run with skipped batches measures. Default: 10 and 50 million keys, which need three gigabytes
and one or two minutes.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from local import kernels
from local.kernels.pure_key_map import PASS_BY, TAKE
from local.log.encoding import encode_column_batches
from local.names import TopicPartition
from local.records.record_columns import RecordColumns
from local.settings import LogSettings

CHUNK = 1 << 20
KEY_BYTES = 20
SLICE_BYTES = 16 << 20
LOAD_FACTOR = 0.9
NAME = TopicPartition("t", 0)


def keys_of(first: int, count: int) -> np.ndarray:
    """``key-`` and sixteen digits each."""
    keys = np.empty((count, KEY_BYTES), np.uint8)
    keys[:, :4] = np.frombuffer(b"key-", np.uint8)
    rest = np.arange(first, first + count)
    for digit in range(KEY_BYTES - 1, 3, -1):
        rest, keys[:, digit] = rest // 10, 48 + rest % 10
    return keys


def batches_of(count: int) -> np.ndarray:
    """Batches with the keys in order. Offsets ascend within each chunk, which is sufficient here."""
    settings, parts = LogSettings(batch_bytes=16 << 10), []
    for first in range(0, count, CHUNK):
        rows = min(CHUNK, count - first)
        starts, times = np.arange(rows, dtype=np.int64) * KEY_BYTES, np.zeros(rows, np.int64)
        columns = RecordColumns(
            key_data=keys_of(first, rows).reshape(-1).data,
            key_starts=starts,
            key_lengths=np.full(rows, KEY_BYTES, np.int32),
            value_data=memoryview(b""),
            value_starts=np.zeros(rows, np.int64),
            value_lengths=np.zeros(rows, np.int32),
            timestamps=times,
        )
        runs = encode_column_batches([columns], settings, partition=NAME, now_ms=0)
        parts += [np.frombuffer(run, np.uint8).copy() for run in runs]
    return np.concatenate(parts)


def slices_of(data: memoryview) -> list[tuple[int, memoryview, object]]:
    """(position, whole batches, their table)."""
    found, at = [], 0
    while at < len(data):
        table = kernels.scan_batches(data[at : at + SLICE_BYTES], verify=False)
        while table.is_corrupt:  # a chunk begins at offset 0 again
            table = kernels.scan_batches(data[at : at + table.valid_bytes], verify=False)
        found.append((at, data[at : at + table.valid_bytes], table))
        at += table.valid_bytes
    return found


def memory_bytes(name: str) -> int:
    """``VmRSS``, the current memory of the process, or ``VmHWM``, its peak."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def child(count: int) -> None:
    data = memoryview(batches_of(count))
    slices = slices_of(data)
    forget_peak()
    before = memory_bytes("VmRSS")
    made = kernels.KeyMap(int(count / LOAD_FACTOR) + 2, count, seed=3)
    held = made.hold(data)
    keep, tombstones = np.full(2 * count // 8 + 8, 0xFF, np.uint8), np.zeros(2 * count // 8 + 8, np.uint8)

    def run(role: int, ordinal: int) -> float:
        began = time.process_time()
        for start, part, table in slices:
            roles = np.full(len(table), role, np.uint8)
            told = made.add_batches(part, table, roles, ordinal, keep, tombstones, buffer=held, position=start)
            assert told == 0
            ordinal += int(table.record_counts.sum())
        return (time.process_time() - began) / count * 1e9

    walk = run(PASS_BY, 0)
    fresh = run(TAKE, 0)
    assert len(made) == count
    known = run(TAKE, count)
    assert len(made) == count
    assert not keep[: count // 8].any()
    grown = memory_bytes("VmHWM") - before
    print(
        f"| {count // 10**6} million | {made.memory_bytes / count:.1f} | {grown / count:.1f} "
        f"| {fresh:.0f} ({fresh - walk:.0f}) | {known:.0f} ({known - walk:.0f}) |"
    )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]))
        return
    print("| keys | map, bytes a key | process, bytes a key | new key, ns (map alone) | known key, ns (map alone) |")
    print("|---|---|---|---|---|", flush=True)
    for millions in [int(word) for word in sys.argv[1:]] or [10, 50]:
        subprocess.run([sys.executable, __file__, "--child", str(millions * 10**6)], check=True)


if __name__ == "__main__":
    main()
