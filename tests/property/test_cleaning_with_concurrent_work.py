"""A compacted log cleaned while threads append, read, truncate, drop, roll and flush, with a tiny switch interval.

The oracle knows every record that ever had an offset. Serial numbers only grow. So in any consistent view the serials
of a key grow with its offsets, even after truncations whose offsets were assigned again. A truncation of a key's
newest record may lose older records of the key: the pass has removed them already. (A broker cleans below the high
watermark and truncates above it.) Such a key is not checked until it is appended again.
"""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from run_profile import deep_only

from local.cleaner.cleaner import clean
from local.errors import CleaningAborted, OffsetOutOfRange
from local.format.compression import Codec
from local.format.record import Record
from local.log import Log
from local.log.log_removal import find_cut
from local.names import TopicPartition
from local.settings import LogSettings
from local.storage import DiskStorage

NAME = TopicPartition("t", 0)
APPENDS = 400
KEYS = 12
PAUSE_S = 0.05  # between two truncations
LIMIT_S = 120.0  # upper limit for the whole run


@dataclass
class Shop:
    """The log and its oracle. Threads that assign or truncate offsets hold `lock`, like a partition leader."""

    root: str
    settings: LogSettings
    rng: random.Random
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)
    # by offset: every (key, serial) that was appended there
    sent: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    forgiven: set[bytes] = field(default_factory=set)  # keys whose newest record was truncated
    # offsets between the last remaining batch and the end of a truncation
    skipped: set[int] = field(default_factory=set)
    serial: int = 0
    decided: int = 0  # no pass cleaned at or above
    cuts: int = 0
    drops: int = 0
    passes: int = 0
    aborted: int = 0
    reads: int = 0

    def __post_init__(self) -> None:
        self.storage = DiskStorage()
        self.log = self.open()
        self.log.cleaner_offset = 0

    def open(self) -> Log:
        return Log.open(self.storage, self.root, NAME, self.settings, now_ms=0)

    def newest(self) -> dict[bytes, int]:
        """The newest offset of each key at or above the log start. The caller holds the lock."""
        there = (at for at in range(self.log.log_start_offset, self.log.next_offset) if at not in self.skipped)
        found = {self.sent[at][-1][0]: at for at in there}
        return {key: at for key, at in found.items() if key not in self.forgiven}

    # -- the work of each thread

    def has_seen_all(self) -> bool:
        """Whether every kind of change has happened."""
        return min(self.passes, self.cuts, self.drops, self.reads) > 0

    def append(self) -> None:
        """Append a minimum of batches, and continue until every other thread has done its work."""
        begun = time.monotonic()
        for count in itertools.count():
            if self.done.is_set() or (count >= APPENDS and self.has_seen_all()):
                break
            if time.monotonic() - begun > LIMIT_S:
                break
            with self.lock:
                at, records = self.log.next_offset, []
                for offset in range(at, at + self.rng.randint(1, 4)):
                    self.serial += 1
                    key = b"k%d" % self.rng.randrange(KEYS)
                    self.forgiven.discard(key)
                    self.skipped.discard(offset)
                    self.sent.setdefault(offset, []).append((key, self.serial))
                    records.append(Record(key, b"%d" % self.serial, 1000 + self.serial))
                assert self.log.append(records, now_ms=1000).base_offset == at
            self.done.wait(0.001)
        self.done.set()

    def clean(self) -> None:
        while not self.done.is_set():
            with self.lock:
                self.decided = decided = max(self.decided, self.log.segments()[-1].base_offset)
                cuts = self.cuts
            try:
                result = clean(
                    self.log,
                    clean_from=0,
                    upto_offset=decided,
                    now_ms=1000,
                    # A truncation between the decision and the pass lowers `decided`.
                    should_stop=lambda cuts=cuts: cuts != self.cuts,  # type: ignore[misc]
                )
                self.passes += result is not None
            except CleaningAborted:
                self.aborted += 1

    def truncate(self) -> None:
        """Truncate repeatedly. A truncation aborts a pass, so the next waits until a pass has completed."""
        rng, passes = random.Random(1), -1
        while not self.done.wait(PAUSE_S):
            if self.passes == passes:
                continue
            with self.lock:
                passes = self.passes
                newest, end = self.newest(), self.log.next_offset
                low = max(self.log.log_start_offset, end - rng.choice((9, 60)))
                upto = rng.randint(low, end)
                with self.log.cleaning.paused(), self.log.lock:  # no pass may run during it
                    kept = self.kept_below(upto)
                    assert self.log.truncate_to(upto, now_ms=1000) == upto
                self.skipped |= set(range(kept, upto))
                self.forgiven |= {key for key, offset in newest.items() if offset >= kept}
                self.decided = min(self.decided, kept)  # the pass was aborted and none is running
                self.cuts += 1

    def kept_below(self, offset: int) -> int:
        """The end of the last batch that a truncation to `offset` leaves. The batch that contains `offset` is removed
        whole."""
        if offset >= self.log.next_offset:
            return offset
        cut = find_cut(self.log.view.segments, offset)
        start = self.log.log_start_offset
        return start if cut is None else max(cut.next_offset, start)

    def drop(self) -> None:
        """Drop the first segment repeatedly. A drop aborts a pass, so the next waits until a pass has completed."""
        passes = -1
        while not self.done.wait(0.1):
            segments = self.log.segments()
            if len(segments) > 4 and self.passes != passes:
                passes, boundary = self.passes, segments[1].base_offset
                dropped = self.log.drop_before(boundary, now_ms=1000, delay_ms=0, raises_log_start=True)
                self.drops += dropped
            self.log.remove_deleted(1000)

    def roll(self) -> None:
        while not self.done.wait(0.005):
            self.log.roll(now_ms=1000)

    def flush(self) -> None:
        while not self.done.wait(0.002):
            self.log.flush()

    def read(self) -> None:
        while not self.done.is_set():
            with self.lock:
                cuts, newest, start = self.cuts, self.newest(), self.log.log_start_offset
            try:
                found = self.found(start)
            except OffsetOutOfRange:
                continue
            with self.lock:
                decided, is_cut = self.decided, cuts != self.cuts
                if not is_cut:
                    # The stream ended at the old log end. Records that supersede a key since then are behind it.
                    try:
                        found += self.found(found[-1][0] + 1 if found else start)
                    except OffsetOutOfRange:
                        continue  # dropped during the read
                self.failures += list(self.wrong(found))
                if not is_cut:
                    self.failures += list(self.missing(found, newest, self.log.log_start_offset, decided))
            self.reads += 1

    def found(self, start: int) -> list[tuple[int, bytes | None, int]]:
        return [(record.offset, record.key, int(record.value or b"0")) for record in self.log.records(start)]

    # -- what must hold

    def wrong(self, found: list[tuple[int, bytes | None, int]]) -> Iterator[str]:
        offsets = [offset for offset, _, _ in found]
        if offsets != sorted(set(offsets)):
            yield f"offsets do not ascend: {offsets}"
        last: dict[bytes | None, int] = {}
        for offset, key, serial in found:
            if (key, serial) not in self.sent.get(offset, ()):
                yield f"at {offset} there is {key!r} {serial}, which was never sent there"
            if serial <= last.get(key, 0):
                yield f"at {offset} an older value of {key!r} after a newer one"
            last[key] = serial

    def missing(
        self, found: list[tuple[int, bytes | None, int]], newest: dict[bytes, int], start: int, decided: int
    ) -> Iterator[str]:
        """Errors in a read without a concurrent truncation: records that existed before it and were not returned."""
        seen = {key: offset for offset, key, _ in found}
        for key, offset in newest.items():
            if offset >= start and seen.get(key, -1) < offset:
                yield f"the newest {key!r}, at {offset}, was not read; last {seen.get(key)}"
        offsets = {offset for offset, _, _ in found}
        end = max(offsets, default=0)
        holes = [at for at in range(max(decided, start), end) if at not in offsets and at not in self.skipped]
        if holes:
            yield f"holes where nothing was cleaned yet: {holes}"

    def run(self) -> None:
        works = (self.append, self.clean, self.truncate, self.drop, self.roll, self.flush, self.read, self.read)
        threads = [threading.Thread(target=self._guarded(work)) for work in works]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(250)
        finally:
            sys.setswitchinterval(interval)
            self.done.set()
        assert not any(thread.is_alive() for thread in threads)
        assert self.failures == []

    def _guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - a failure in a thread is a failure of the test
                self.failures.append(f"{work.__name__}: {error!r}")
                self.done.set()

        return run

    def check(self, *, is_clean: bool) -> None:
        newest = self.newest()
        found = self.found(self.log.log_start_offset)
        assert list(self.wrong(found)) == []
        assert list(self.missing(found, newest, self.log.log_start_offset, self.decided)) == []
        if is_clean:
            assert {key: offset for offset, key, _ in found if key not in self.forgiven} == newest
            assert len({key for _, key, _ in found}) == len(found), "each key must have one record"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("seed", [0, *deep_only(1)])
def test_a_log_cleaned_during_other_changes_keeps_newest_records_and_shows_no_gap(
    tmp_path: Path, seed: int, codec: Codec
) -> None:
    settings = LogSettings(segment_bytes=1500, index_interval_bytes=200, compression=codec, is_compacted=True)
    shop = Shop(str(tmp_path / "t-0"), settings, random.Random(seed))
    shop.run()
    assert shop.has_seen_all(), "every kind of change must happen"
    shop.check(is_clean=False)
    end, start = shop.log.next_offset, shop.log.log_start_offset
    shop.log.close()
    shop.log = shop.open()
    shop.log.raise_log_start(start)
    assert shop.log.next_offset == end
    shop.check(is_clean=False)
    shop.log.cleaner_offset = 0
    shop.log.roll(now_ms=1000)
    clean(shop.log, clean_from=0, now_ms=1000)
    shop.decided = end
    shop.check(is_clean=True)
