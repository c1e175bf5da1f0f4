"""A simulation of one partition: append → roll → copy → compact → read → expire → delete.

Pure, no clock.

It steps from one maintenance pass of `tiered run` with work to the next. It counts the requests and bytes of each step
by verb, as the meter of a manager does (`remote.store.middleware.metered_store`). Tests compare it with weeks of a real
manager. Segments are numbers: with a steady stream every fact of a segment follows from its number, so a partition with
a million segments needs no set-up.

| step | requests of one partition |
|---|---|
| copy a segment | its data in 1 PUT or parts + 2, its indexes 1 PUT, a HEAD of each; a commit for many |
| compact | none; the output of a pass is copied segment by segment, with one commit |
| expire | commits: the log start, whole pages, single entries; a page that loses some of its entries is rewritten |
| delete | 1 LIST of pins, 2 GETs to prove the writer epoch, 1 DELETE for 1000 objects, a commit |
| delete pages | as before; for each page a DELETE for 1000 objects of its entries, and its own; two pages a pass |
| collect manifests | 2 LISTs, 3 GETs, 1 PUT, 1 DELETE |
| commit | 1 PUT of a manifest, 1 GET of the boundary; a manifest page when the manifest is full |
| read | to begin 2 LISTs, 2 GETs and a GET for each page; per segment 1 GET of its indexes, its data in ranges |
| read by the manager | nothing to begin with; a segment dropped from the disk is read once, then cached |

A maintenance pass rolls a segment without appends for longer than `local.retention.ms`, so a quiet topic has a segment
for each batch.

The module is longer than most: the steps share one state and stay together. `policies.cost.workload` names the
omissions: `OUTSIDE`, and `NOT_SIMULATED` by field of the rules.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import takewhile
from math import ceil
from typing import NamedTuple

from policies.compaction import is_dirty_enough
from policies.copy_lag import NEVER, copy_due_ms
from policies.cost.storage_cost import DAY_MS, upload_requests
from policies.cost.workload import RANGE_BYTES, Counts, Reads, Simulated, Workload, idle_roll
from policies.manifest_collection import MANIFESTS_AT_ONCE, MANIFESTS_RETAINED
from policies.remote_retention import PAGES_DELETED_MAX
from policies.rules import PartitionRules, deletion_due_ms
from policies.tiering import completes_commit
from remote.manifest.page_out import PageRule
from remote.store.middleware.metered_store import LIST_PAGE

__all__ = ["RANGE_BYTES", "Counts", "Reads", "Simulated", "Workload", "simulate"]

BOUNDARY_BYTES = 47
PINS_LAG_MS = 10 * 60_000  # a listing of pins covers objects unlinked before this lag (`remote.gc.pin_watch`)
CACHED_ENTRIES_MAX = 32 * 4096  # entries of pages that a writer remembers (`remote.manifest.manifest_lookup`)


class _Waiting(NamedTuple):
    """Objects unlinked in one commit.

    A page unlinked whole has `page_entries`, and its objects include those of its entries.
    """

    since: int
    objects: int
    size_bytes: float
    page_entries: int = 0


def simulate(
    workload: Workload,
    rules: PartitionRules,
    *,
    window_ms: int,
    is_from_empty: bool = False,
    min_days: Iterable[float] = (),
    rule: PageRule | None = None,
) -> Simulated:
    """Simulate `window_ms` of a partition.

    It begins with the first batch (`is_from_empty`), or after the partition has run for longer than its retention.
    """
    world = _Partition(workload, rules, tuple(min_days), rule or PageRule())
    if not is_from_empty:
        world.fill()
    return world.run(window_ms)


class _Partition:
    """The simulated state: segments are numbers from 0, and each tier and queue is a position."""

    def __init__(self, workload: Workload, rules: PartitionRules, min_days: tuple[float, ...], rule: PageRule) -> None:
        self.of, self.rules, self.rule = workload, rules, rule
        self.counts = Counts()
        self.now = self.begun = self.last = 0
        self.settled = -1
        self.closed = self.cleaned = self.copied = self.dropped = self.expired = 0
        self.waiting: deque[_Waiting] = deque()
        self.waiting_objects, self.waiting_pages, self.waiting_bytes = 0, 0, 0.0
        self.pins_listed: int | None = None  # time of the last listing
        self.manifest_entries, self.pages, self.sequence, self.void = 0, deque[int](), 1, 0
        self.next_read = workload.reads.every_ms if workload.reads is not None else None
        self.read_upto = 0  # the end of the manager's cache
        self.short = dict.fromkeys(min_days, 0.0)
        self.sums = [0.0] * 6
        idle_ms, batches = idle_roll(workload, rules), workload.batches_per_segment
        if idle_ms is not None:
            batches = min(batches, idle_ms[1])
        # Time from a segment's newest batch to its roll: by the next batch, or by an earlier maintenance pass.
        self.lead_ms = workload.batch_ms if idle_ms is None or batches < idle_ms[1] else idle_ms[0]
        self.segment_ms = batches * workload.batch_ms
        self.rolled_bytes = batches * workload.batch_bytes
        compacted = workload.compacted_share if rules.cleanup_compact else 1.0
        self.object_bytes = self.rolled_bytes * compacted
        self.stored = self.object_bytes * workload.stored_share
        self.indexes = workload.index_base_bytes + workload.index_share * self.object_bytes
        self.upload_puts = upload_requests(max(1, round(self.stored)), workload.part_bytes)

    # -- times: each is the first moment at which a maintenance pass would do it --------------------------------------

    def closes(self, number: int) -> int:
        return self.newest(number) + self.lead_ms

    def newest(self, number: int) -> int:
        return (number + 1) * self.segment_ms - self.of.batch_ms

    def closed_by(self, now: int) -> int:
        """Return the number of closed segments at a moment."""
        return max(0, (now - self.lead_ms + self.of.batch_ms) // self.segment_ms)

    def after_bytes(self, number: int, size_bytes: int, share: float = 1.0) -> int:
        """Return the time at which this many bytes have arrived after a segment's end."""
        return self.newest(number) + ceil(size_bytes / share / self.of.batch_bytes) * self.of.batch_ms

    def copies(self, number: int) -> float:
        if self.rules.copy_disabled:
            return NEVER
        return copy_due_ms(
            self.rules,
            closed_ms=self.closes(number),
            newest_ms=self.newest(number),
            reached_ms=lambda lag_bytes: self.after_bytes(number, lag_bytes),
        )

    def drops(self, number: int) -> float:
        limits = self.rules.local_limits
        by_age = float("inf") if limits.ms is None else self.newest(number) + limits.ms + 1
        by_size = float("inf") if limits.bytes is None else self.after_bytes(number, limits.bytes)
        return max(self.closes(number), min(by_age, by_size))

    def expires(self, number: int) -> float:
        """Return the expiry time, given the cleaning so far; it changes with every pass."""
        limits = self.rules.log_limits
        if limits.bytes is None or not self.rules.cleanup_compact:
            return self.expires_on_average(number)
        by_age = float("inf") if limits.ms is None else self.newest(number) + limits.ms
        clean = (self.cleaned - number - 1) * self.object_bytes
        batches = ceil((limits.bytes - clean + self.cleaned * self.rolled_bytes) / self.of.batch_bytes)
        return min(by_age, max(self.newest(number), (batches - 1) * self.of.batch_ms))

    def expires_on_average(self, number: int) -> float:
        """Return the expiry time as if compaction removed its share of every byte on arrival."""
        limits = self.rules.log_limits
        by_age = float("inf") if limits.ms is None else self.newest(number) + limits.ms
        share = self.of.compacted_share if self.rules.cleanup_compact else 1.0
        by_size = float("inf") if limits.bytes is None else self.after_bytes(number, limits.bytes, share)
        return min(by_age, by_size)

    def ticks(self, moment: float) -> float:
        """Return the first maintenance pass at or after a moment."""
        return moment if moment == float("inf") else ceil(moment / self.of.tick_ms) * self.of.tick_ms

    # -- a partition that has run for long ---------------------------------------------------------------------------

    def fill(self) -> None:
        """Begin where the oldest segments expire, or after a year if none ever does."""
        number = 1000
        end = self.expires_on_average(number)
        # The monthly bill of an unlimited log is the bill after its first year.
        start = end + self.rules.delete_grace_ms if end != float("inf") else 365 * DAY_MS
        self.now = self.begun = self.last = int(self.ticks(start))
        self.closed = self.closed_by(self.now)
        self.cleaned = self.copied = self._passed(self.copies, self.closed)
        self.dropped = min(self.copied, self._passed(self.drops, self.closed))
        self.expired = min(self.copied, self._passed(self.expires_on_average, self.copied))
        self.read_upto = self.dropped
        self._fill_waiting()
        live = self.copied - self.expired
        room = self._manifest_room()
        self.manifest_entries = (
            live if live <= room else self.rule.kept_entries_min + (room - self.rule.kept_entries_min) // 2
        )
        page = max(1, min(room - self.rule.kept_entries_min, self.rule.page_rows_max))
        rest = live - self.manifest_entries
        self.pages = deque([page] * (rest // page))
        self.manifest_entries += rest % page
        self.sequence, self.void = MANIFESTS_RETAINED + MANIFESTS_AT_ONCE // 2, 0
        if self.next_read is not None:
            self.next_read = self.now

    def _fill_waiting(self) -> None:
        """Fill the pending deletes: segments that expired within the grace period, pass by pass."""
        grace = self.rules.delete_grace_ms
        first = self._passed(lambda each: self.expires_on_average(each) + grace, self.expired)
        while first < self.expired:
            moment = int(self.ticks(self.expires_on_average(first)))
            upto = min(
                self.expired,
                max(first + 1, first + (moment - int(self.expires_on_average(first))) // self.segment_ms + 1),
            )
            self._unlink(moment, 2 * (upto - first), (upto - first) * (self.stored + self.indexes))
            first = upto

    def _passed(self, when: Callable[[int], float], upper: int) -> int:
        """Return how many of the first `upper` segments have passed their moment.

        The moment rises with the number.
        """
        low, high = 0, upper
        while low < high:
            middle = (low + high) // 2
            if self.ticks(when(middle)) <= self.now:
                low = middle + 1
            else:
                high = middle
        return low

    def _manifest_room(self) -> int:
        """Return the number of entries that fit a manifest without pages and pending deletes."""
        room = self.rule.manifest_bytes_max - self.of.manifest_base_bytes
        return max(1, bisect_right(range(self.rule.manifest_bytes_max), room, key=self.of.rows_bytes) - 1)

    # -- maintenance passes ------------------------------------------------------------------------------------------

    def run(self, window_ms: int) -> Simulated:
        end = self.begun + window_ms
        before = self.counts.copy()
        while (moment := self._next()) < end:
            self._pass_time(int(moment))
            while self._round():
                pass
            self._read()
            self.settled = self.now
        self._pass_time(end)
        spans = [each / window_ms for each in self.sums]
        return Simulated(
            window_ms=window_ms,
            counts=self.counts.minus(before),
            stored_bytes=spans[0] * self.stored,
            objects=spans[0],
            small_bytes=spans[0] * self.indexes,
            index_bytes=spans[1],
            waiting_bytes=spans[2],
            local_bytes=spans[3],
            both_bytes=spans[4],
            object_bytes=self.stored,
            short_byte_days=dict(self.short),
        )

    def _next(self) -> float:
        """Return the next maintenance pass with work."""
        moments: list[float] = [self.closes(self.closed)]
        if self.copied < (self.cleaned if self.rules.cleanup_compact else self.closed):
            moments.append(self.copies(self.copied))
        if self.dropped < self.copied:
            moments.append(self.drops(self.dropped))
        if self.expired < self.copied:
            moments.append(self.expires(self.expired))
        if self.waiting:
            moments.append(deletion_due_ms(self.waiting[0].since, self.rules))
        if self.next_read is not None:
            moments.append(self.next_read)
        return self.ticks(max(min(moments), self.settled + 1))

    def _pass_time(self, now: int) -> None:
        span = now - self.last
        if span > 0:
            heads = self.sequence - self.void
            self.sums[0] += span * (self.copied - self.expired)
            self.sums[1] += span * (self._manifest_bytes() * heads + sum(self.pages) * self.of.page_row_bytes)
            self.sums[2] += span * self.waiting_bytes
            middle = (self.last + now) / 2
            self.sums[3] += span * self._local_bytes(middle)
            self.sums[4] += span * (self.copied - self.dropped) * self.object_bytes
        self.last = self.now = now

    def _local_bytes(self, moment: float) -> float:
        kept = (self.copied - self.dropped) * self.object_bytes
        came = moment / self.of.batch_ms * self.of.batch_bytes  # a straight line through the steps
        return kept + max(0.0, came - self.copied * self.rolled_bytes)

    def _round(self) -> bool:
        """Run one plan, decided on the state at its begin; return whether it did anything."""
        self.closed = max(self.closed, self.closed_by(self.now))
        copied, expired_upto, dropped_upto = self.copied, self.expired, self.dropped
        while expired_upto < copied and self.expires(expired_upto) <= self.now:
            expired_upto += 1
        while dropped_upto < copied and self.drops(dropped_upto) <= self.now:
            dropped_upto += 1
        due = self._due_for_deletion()
        upto = self.sequence - MANIFESTS_RETAINED
        did = self._clean() or self._copy()
        did |= dropped_upto > self.dropped
        self.dropped = dropped_upto
        if expired_upto > self.expired:
            self._expire(expired_upto - self.expired)
            did = True
        if due:
            self._delete(due)
            did = True
        if upto - self.void >= MANIFESTS_AT_ONCE:
            self._collect(upto)
            did = True
        return did

    def _clean(self) -> bool:
        """Run a cleaner pass if enough is dirty; it leaves its share of every segment."""
        if not self.rules.cleanup_compact or self.cleaned >= self.closed:
            return False
        dirty = (self.closed - self.cleaned) * self.rolled_bytes
        clean = (self.cleaned - self.dropped) * self.object_bytes
        if not is_dirty_enough(dirty, clean, self.rules.min_cleanable_dirty_ratio):
            return False
        self.cleaned = self.closed
        return True

    def _copy(self) -> bool:
        if self.rules.cleanup_compact:
            number = self.cleaned - self.copied if self.copies(self.copied) <= self.now else 0
            for _ in range(number):
                self._upload()
            if number:
                self.copied += number
                self._commit(number)
            return number > 0
        before, held = self.copied, 0
        while self.copied < self.closed and self.copies(self.copied) <= self.now:
            self._upload()
            self.copied += 1
            held += 1
            if completes_commit(held, held * self.rolled_bytes):
                self._commit(held)
                held = 0
        if held:
            self._commit(held)
        return self.copied > before

    def _upload(self) -> None:
        counts = self.counts
        counts.puts += self.upload_puts + 1
        counts.data_puts += self.upload_puts
        counts.posts += 2 if self.upload_puts > 1 else 0
        counts.gets += 2
        counts.data_gets += 1
        counts.heads += 2
        counts.bytes_in += self.stored + self.indexes
        counts.data_bytes_in += self.stored

    def _commit(self, new_rows: int = 0) -> None:
        self.manifest_entries += new_rows
        while self._manifest_bytes() > self.rule.manifest_bytes_max:
            spare = self.manifest_entries - self.rule.kept_entries_min
            if spare < self.rule.page_rows_min:
                break
            page = min(spare, self.rule.page_rows_max)
            self.manifest_entries -= page
            self._write_page(page)
            self.pages.append(page)
        self.sequence += 1
        self.counts.puts += 1
        self.counts.gets += 1
        self.counts.bytes_in += self._manifest_bytes()

    def _manifest_bytes(self) -> float:
        of = self.of
        lists = self.waiting_objects * of.unlinked_bytes + (len(self.pages) + self.waiting_pages) * of.page_bytes_due
        return of.manifest_base_bytes + of.rows_bytes(self.manifest_entries) + lists

    def _write_page(self, entries: int) -> None:
        self.counts.puts += 1
        self.counts.bytes_in += entries * self.of.page_row_bytes

    def _unlink(self, since: int, objects: int, size_bytes: float, page_entries: int = 0) -> None:
        self.waiting.append(_Waiting(since, objects, size_bytes, page_entries))
        if page_entries:
            self.waiting_pages += 1
        else:
            self.waiting_objects += objects
        self.waiting_bytes += size_bytes

    def _expire(self, number: int) -> None:
        """Advance the log start, then unlink whole pages, then single entries: a commit each."""
        self._commit()
        self.expired += number
        left = number
        of_segment = self.stored + self.indexes
        is_known = sum(self.pages) <= CACHED_ENTRIES_MAX
        whole = 0
        while self.pages and left >= self.pages[0]:
            entries = self.pages.popleft()
            left -= entries
            whole += 1
            self._unlink(self.now, 2 * entries + 1, entries * (of_segment + self.of.page_row_bytes), entries)
        if whole:
            self._commit()
        if not left:
            return
        if self.pages:
            self.counts.gets += 0 if is_known else 1 / self.pages[0]
            self._unlink(self.now, 1, self.pages[0] * self.of.page_row_bytes)
            self.pages[0] -= left
            self._write_page(self.pages[0])
        else:
            self.manifest_entries -= left
        self._unlink(self.now, 2 * left, left * of_segment)
        self._commit()

    def _due_for_deletion(self) -> list[_Waiting]:
        return list(takewhile(lambda each: deletion_due_ms(each.since, self.rules) <= self.now, self.waiting))

    def _delete(self, due: list[_Waiting]) -> None:
        """Delete all single objects at once, then a few pages."""
        pages = [each for each in due if each.page_entries][:PAGES_DELETED_MAX]
        for going in ([each for each in due if not each.page_entries], pages):
            if going:
                self._free(going)

    def _free(self, going: list[_Waiting]) -> None:
        single = 0
        for each in going:
            self.waiting.remove(each)
            self.waiting_bytes -= each.size_bytes
            if each.page_entries:
                self.waiting_pages -= 1
                self.counts.deletes += ceil(2 * each.page_entries / LIST_PAGE) + 1
            else:
                self.waiting_objects -= each.objects
                single += each.objects
            if each.objects > 1:
                self._note_age(each.since, each.objects // 2)
        if self.pins_listed is None or going[-1].since + PINS_LAG_MS > self.pins_listed:
            self.counts.lists += 1
            self.pins_listed = self.now
        self.counts.gets += 2
        self.counts.deletes += ceil(single / LIST_PAGE)
        self._commit()

    def _note_age(self, since: int, segments: int) -> None:
        """Record how far the data of deleted segments falls short of each minimum duration."""
        lived = self.now - since + min(since, int(self._lived_in_index()))
        for days in self.short:
            self.short[days] += max(0.0, days - lived / DAY_MS) * segments * self.stored

    def _lived_in_index(self) -> float:
        """Return the time from a segment's upload to its expiry, in ms."""
        return max(0.0, self.expires_on_average(1000) - self.copies(1000))

    def _collect(self, upto: int) -> None:
        gone = upto - self.void
        self.void = upto
        self.counts.gets += 3
        self.counts.puts += 1
        self.counts.lists += 2
        self.counts.deletes += ceil(gone / LIST_PAGE)
        self.counts.bytes_in += BOUNDARY_BYTES

    # -- readers -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        reads = self.of.reads
        while reads is not None and self.next_read is not None and self.next_read <= self.now:
            self.next_read += reads.every_ms
            if self.copied == self.expired:
                continue
            oldest = self.expired
            if reads.oldest_ms is not None:
                since = self.now - reads.oldest_ms
                oldest = max(oldest, min(self.copied, max(0, since // self.segment_ms)))
            if reads.is_managers:
                self._read_cold(oldest, reads)
            else:
                self._scan((self.copied - oldest) * reads.share, min(1.0, reads.share), reads)

    def _read_cold(self, oldest: int, reads: Reads) -> None:
        """Read segments that are no longer on the disk and not yet in the manager's cache.

        A stream that begins in the cache is already running when it reaches uncached segments.
        """
        first = max(oldest, self.read_upto)
        self.read_upto = max(self.dropped, self.read_upto)
        if first < self.dropped:
            is_under_way = first > oldest
            self._scan(self.dropped - first, 0.0, replace(reads, begins=0.0) if is_under_way else reads)

    def _scan(self, segments: float, opened: float, reads: Reads) -> None:
        counts = self.counts
        # For other readers an average: the ends of ranges depend on the batches.
        cells = max(1, ceil(self.stored / RANGE_BYTES))
        ranges = cells + reads.begins / segments if reads.is_stream else max(1.0, self.stored / reads.range_bytes)
        counts.lists += 2 * opened
        counts.gets += (2 + len(self.pages)) * opened + segments * (1 + ranges)
        counts.data_gets += segments * ranges
        counts.data_bytes_out += segments * self.stored
        meta = self._manifest_bytes() + sum(self.pages) * self.of.page_row_bytes
        counts.bytes_out += meta * opened + segments * (self.stored + self.indexes)
