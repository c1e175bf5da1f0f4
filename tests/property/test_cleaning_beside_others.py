"""One compacted log cleaned while others append, read, truncate, drop, roll and flush, at a hostile switch interval.

The oracle knows every record that was ever given an offset; serials only grow, so in any consistent view those of a key
grow with its offsets, whatever was cut and given again in between. A key whose newest record is cut may have lost older
ones to it (a broker cleans below the high watermark and truncates above it): of such a key nothing is asked until it is
sent again.
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

from local.cleaner.log_cleaning import clean_log
from local.errors import CleaningAborted, OffsetOutOfRange
from local.format.compression import Codec
from local.format.record import Record
from local.log import Log, truncation
from local.names import TopicPartition
from local.settings import LogSettings
from local.storage import DiskStorage

NAME = TopicPartition("t", 0)
APPENDS = 400
KEYS = 12
PAUSE_S = 0.05  # between two cuts
LIMIT_S = 120.0  # nothing takes so long


@dataclass
class Shop:
    """The log and what is known of it. `lock` holds whoever gives or takes offsets, as a partition's leader does."""

    root: str
    settings: LogSettings
    rng: random.Random
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)
    sent: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)  # by offset: each (key, serial) it had
    failures: list[str] = field(default_factory=list)
    forgiven: set[bytes] = field(default_factory=set)  # keys whose newest record was cut
    skipped: set[int] = field(default_factory=set)  # between the last batch that a cut left and the end it asked for
    serial: int = 0
    decided: int = 0  # no pass looks, or looked, at or above
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
        """Under the lock: the newest offset of each key that the log has, at or above its start."""
        there = (at for at in range(self.log.log_start_offset, self.log.next_offset) if at not in self.skipped)
        found = {self.sent[at][-1][0]: at for at in there}
        return {key: at for key, at in found.items() if key not in self.forgiven}

    # -- what goes on, each in its own thread

    def has_seen_all(self) -> bool:
        """Whether everything took place that this is about."""
        return min(self.passes, self.cuts, self.drops, self.reads) > 0

    def append(self) -> None:
        """So many at least, and then until the others had their turns, however slow they are."""
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
                result = clean_log(
                    self.log,
                    self.storage,
                    clean_from=0,
                    upto_offset=decided,
                    now_ms=1000,
                    # A cut between the decision and the pass takes `decided` back.
                    should_stop=lambda cuts=cuts: cuts != self.cuts,  # type: ignore[misc]
                )
                self.passes += result is not None
            except CleaningAborted:
                self.aborted += 1

    def truncate(self) -> None:
        """A cut sends a pass away: where none came through since the last one they have more time."""
        rng, pause_s, passes = random.Random(1), PAUSE_S, -1
        while not self.done.wait(pause_s):
            pause_s, passes = pause_s * 2 if passes == self.passes else PAUSE_S, self.passes
            with self.lock:
                newest, end = self.newest(), self.log.next_offset
                low = max(self.log.log_start_offset, end - rng.choice((9, 60)))
                upto = rng.randint(low, end)
                with self.log.cleaning.paused(), self.log._lock:  # no pass puts other batches in place meanwhile
                    kept = self.kept_below(upto)
                    assert self.log.truncate_to(upto, now_ms=1000) == upto
                self.skipped |= set(range(kept, upto))
                self.forgiven |= {key for key, offset in newest.items() if offset >= kept}
                self.decided = min(self.decided, kept)  # a pass was sent away, and there is none now
                self.cuts += 1

    def kept_below(self, offset: int) -> int:
        """Where the last batch ends that a truncation to `offset` leaves: the one that holds it is truncated whole."""
        if offset >= self.log.next_offset:
            return offset
        cut = truncation.find(self.storage, self.log._view.segments, offset)
        start = self.log.log_start_offset
        return start if cut is None else max(cut.next_offset, start)

    def drop(self) -> None:
        while not self.done.wait(0.1):
            segments = self.log.segments()
            if len(segments) > 4:
                boundary = segments[1].base_offset
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
                    # It read up to what was the end when it began: what superseded a key since lies behind that.
                    try:
                        found += self.found(found[-1][0] + 1 if found else start)
                    except OffsetOutOfRange:
                        continue  # dropped meanwhile
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
        """Of what was there before the reading began, nothing having been cut since."""
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
            assert len({key for _, key, _ in found}) == len(found), "a key is there twice"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_goes_on_beside_a_cleaning_the_newest_stays_and_nobody_sees_a_hole(
    tmp_path: Path, seed: int, codec: Codec
) -> None:
    settings = LogSettings(segment_bytes=1500, index_interval_bytes=200, compression=codec, is_compacted=True)
    shop = Shop(str(tmp_path / "t-0"), settings, random.Random(seed))
    shop.run()
    assert shop.has_seen_all(), "not everything took place"
    shop.check(is_clean=False)
    end, start = shop.log.next_offset, shop.log.log_start_offset
    shop.log.close()
    shop.log = shop.open()
    shop.log.raise_log_start(start)
    assert shop.log.next_offset == end
    shop.check(is_clean=False)
    shop.log.cleaner_offset = 0
    shop.log.roll(now_ms=1000)
    clean_log(shop.log, shop.storage, clean_from=0, now_ms=1000)
    shop.decided = end
    shop.check(is_clean=True)
