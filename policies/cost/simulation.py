"""A simulation of one partition: append → roll → copy → compact → read → expire → delete. Pure.

It steps from one maintenance pass that has work to the next one, and counts the requests and bytes of each step
by verb, as the meter of a manager does (`remote.store.middleware.store_wrapper`). Segments are numbers: with a steady
stream every fact of a segment follows from its number, so a million segments need no set-up.

docs/explanation/cost-model.md lists the requests of each step. A compaction sends none: its output is copied. A pass
rolls an active segment without appends for `local.retention.ms`, so a quiet topic has a segment for each batch.
`policies.cost.workload.OUTSIDE` and docs/explanation/cost-model.md name the omissions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from math import ceil, inf
from typing import NamedTuple

from policies.compaction import is_dirty_enough
from policies.copy_lag import NEVER, copy_due_ms
from policies.cost.storage_cost import DAY_MS, upload_requests
from policies.cost.workload import CELL_BYTES, RANGE_BYTES, Counts, Reads, Simulated, Workload, idle_roll
from policies.retention import MANIFESTS_AT_ONCE, MANIFESTS_RETAINED, PAGES_DELETED_MAX, collectable_upto
from policies.rules import PartitionRules, deletion_due_ms, local_expiry_ms, remote_expiry_ms
from policies.tiering import completes_commit
from remote.manifest.page_out import PageRule
from remote.store import LIST_PAGE

__all__ = ["CELL_BYTES", "RANGE_BYTES", "Counts", "Reads", "Schedule", "Simulated", "Workload", "simulate"]

BOUNDARY_BYTES = 47
PINS_LAG_MS = 10 * 60_000  # a listing of pins covers objects unlinked before this lag (`remote.gc.pins`)
CACHED_ENTRIES_MAX = 32 * 4096  # entries of pages that a writer remembers (`remote.manifest.manifest_lookup`)
_STEADY = 1000  # number of a segment whose retention period is full of earlier segments


def simulate(workload: Workload, rules: PartitionRules, *, window_ms: int, min_days: Iterable[float] = ()) -> Simulated:
    """Simulate `window_ms` of a partition that has run for longer than its retention."""
    schedule = Schedule(workload, rules)
    partition = _Partition(schedule, _Bucket(schedule, PageRule(), min_days))
    partition.fill()
    return partition.run(window_ms)


class Schedule:
    """The segments of a steady stream, by number from 0: their sizes, and the time each step is due."""

    def __init__(self, workload: Workload, rules: PartitionRules) -> None:
        self.workload, self.rules = workload, rules
        batches, idle = workload.batches_per_segment, idle_roll(workload, rules)
        self.lead_ms = workload.batch_ms  # from a segment's newest batch to its roll
        if idle is not None and idle[1] <= batches:
            self.lead_ms, batches = idle
        self.segment_ms = batches * workload.batch_ms
        self.rolled_bytes = batches * workload.batch_bytes
        self.compacted_share = workload.compacted_share if rules.cleanup_compact else 1.0
        self.object_bytes = self.rolled_bytes * self.compacted_share
        self.stored_bytes = self.object_bytes * workload.stored_share
        self.indexes_bytes = workload.index_base_bytes + workload.index_share * self.object_bytes

    @property
    def copied_bytes(self) -> float:
        return self.stored_bytes + self.indexes_bytes

    def closes(self, number: int) -> int:
        return self.newest(number) + self.lead_ms

    def newest(self, number: int) -> int:
        return (number + 1) * self.segment_ms - self.workload.batch_ms

    def closed_by(self, now_ms: int) -> int:
        return max(0, (now_ms - self.lead_ms + self.workload.batch_ms) // self.segment_ms)

    def copies(self, number: int) -> float:
        if self.rules.copy_disabled:
            return NEVER
        return copy_due_ms(
            self.rules,
            closed_ms=self.closes(number),
            newest_ms=self.newest(number),
            reached_ms=lambda lag_bytes: self._after_bytes(number, lag_bytes),
        )

    def drops(self, number: int) -> float:
        limits = self.rules.local_limits
        by_age = inf if limits.ms is None else local_expiry_ms(self.newest(number), limits.ms)
        by_size = inf if limits.bytes is None else self._after_bytes(number, limits.bytes)
        return max(self.closes(number), min(by_age, by_size))

    def expires(self, number: int, cleaned: int) -> float:
        """Return the expiry time while the first `cleaned` segments are cleaned; it changes with every pass."""
        limit = self.rules.log_limits.bytes
        if limit is None or not self.rules.cleanup_compact:
            return self.expires_on_average(number)
        clean = (cleaned - number - 1) * self.object_bytes
        batches = ceil((limit - clean + cleaned * self.rolled_bytes) / self.workload.batch_bytes)
        by_size = max(self.newest(number), (batches - 1) * self.workload.batch_ms)
        return min(self._expires_by_age(number), by_size)

    def expires_on_average(self, number: int) -> float:
        """Return the expiry time as if compaction removed its share of every byte on arrival."""
        limit = self.rules.log_limits.bytes
        by_size = inf if limit is None else self._after_bytes(number, limit, self.compacted_share)
        return min(self._expires_by_age(number), by_size)

    def pass_at(self, moment: float) -> float:
        tick_ms = self.workload.tick_ms
        return moment if moment == inf else ceil(moment / tick_ms) * tick_ms

    def passed(self, when: Callable[[int], float], upper: int, now_ms: int) -> int:
        """Return how many of the first `upper` segments have passed their moment, which rises with the number."""
        return bisect_left(range(upper), True, key=lambda number: self.pass_at(when(number)) > now_ms)

    def _expires_by_age(self, number: int) -> float:
        limit = self.rules.log_limits.ms
        return inf if limit is None else remote_expiry_ms(self.newest(number), limit)

    def _after_bytes(self, number: int, size_bytes: int, share: float = 1.0) -> int:
        batches = ceil(size_bytes / share / self.workload.batch_bytes)
        return self.newest(number) + batches * self.workload.batch_ms


class _Unlinked(NamedTuple):
    """Objects unlinked in one commit; for a whole page, the page and the objects of its `page_entries`."""

    since_ms: int
    objects: int
    size_bytes: float
    page_entries: int = 0


class _PendingDeletes:
    def __init__(self) -> None:
        self._queue: deque[_Unlinked] = deque()
        self.objects, self.pages, self.size_bytes = 0, 0, 0.0

    @property
    def oldest_ms(self) -> int | None:
        return self._queue[0].since_ms if self._queue else None

    def add(self, unlinked: _Unlinked) -> None:
        self._queue.append(unlinked)
        self._count(unlinked, 1)

    def remove(self, unlinked: _Unlinked) -> None:
        self._queue.remove(unlinked)
        self._count(unlinked, -1)

    def due(self, rules: PartitionRules, now_ms: int) -> list[_Unlinked]:
        return list(takewhile(lambda each: deletion_due_ms(each.since_ms, rules) <= now_ms, self._queue))

    def _count(self, unlinked: _Unlinked, sign: int) -> None:
        self.size_bytes += sign * unlinked.size_bytes
        if unlinked.page_entries:
            self.pages += sign
        else:
            self.objects += sign * unlinked.objects


class _Bucket:
    """The manifest with its pages and pending deletes. Every method counts the requests of the writer."""

    def __init__(self, schedule: Schedule, rule: PageRule, min_days: Iterable[float]) -> None:
        self._schedule, self._of, self._rule = schedule, schedule.workload, rule
        self._upload_puts = upload_requests(max(1, round(schedule.stored_bytes)), self._of.part_bytes)
        self._pins_listed_ms: int | None = None
        self.counts = Counts()
        self.entries, self.pages = 0, deque[int]()  # entries in the manifest, and in each page
        self.sequence, self.boundary = 1, 0
        self.pending = _PendingDeletes()
        self.short_byte_days = dict.fromkeys(min_days, 0.0)

    @property
    def manifest_bytes(self) -> float:
        of, pending = self._of, self.pending
        lists = pending.objects * of.unlinked_bytes + (len(self.pages) + pending.pages) * of.page_bytes_due
        return of.manifest_base_bytes + of.rows_bytes(self.entries) + lists

    @property
    def page_bytes(self) -> float:
        return sum(self.pages) * self._of.page_row_bytes

    def fill(self, entries: int) -> None:
        rule = self._rule
        room_bytes = rule.manifest_bytes_max - self._of.manifest_base_bytes
        room = max(1, bisect_right(range(rule.manifest_bytes_max), room_bytes, key=self._of.rows_bytes) - 1)
        spare = room - rule.kept_entries_min
        in_manifest = entries if entries <= room else rule.kept_entries_min + spare // 2
        page = max(1, min(spare, rule.page_rows_max))
        full_pages, rest = divmod(entries - in_manifest, page)
        self.pages = deque([page] * full_pages)
        self.entries = in_manifest + rest
        self.sequence = MANIFESTS_RETAINED + MANIFESTS_AT_ONCE // 2

    def unlink(self, now_ms: int, segments: int) -> None:
        self.pending.add(_Unlinked(now_ms, 2 * segments, segments * self._schedule.copied_bytes))

    def upload(self) -> None:
        counts, stored = self.counts, self._schedule.stored_bytes
        counts.puts += self._upload_puts + 1
        counts.data_puts += self._upload_puts
        counts.posts += 2 if self._upload_puts > 1 else 0
        counts.gets += 2
        counts.data_gets += 1
        counts.heads += 2
        counts.bytes_in += self._schedule.copied_bytes
        counts.data_bytes_in += stored

    def commit(self, new_entries: int = 0) -> None:
        rule = self._rule
        self.entries += new_entries
        while self.manifest_bytes > rule.manifest_bytes_max:
            spare = self.entries - rule.kept_entries_min
            if spare < rule.page_rows_min:
                break
            page = min(spare, rule.page_rows_max)
            self.entries -= page
            self._write_page(page)
            self.pages.append(page)
        self.sequence += 1
        self.counts.puts += 1
        self.counts.gets += 1
        self.counts.bytes_in += self.manifest_bytes

    def expire(self, now_ms: int, entries: int) -> None:
        self.commit()
        is_known = sum(self.pages) <= CACHED_ENTRIES_MAX
        row_bytes = self._of.page_row_bytes
        whole_pages = False
        while self.pages and entries >= self.pages[0]:
            page = self.pages.popleft()
            entries -= page
            whole_pages = True
            size_bytes = page * (self._schedule.copied_bytes + row_bytes)
            self.pending.add(_Unlinked(now_ms, 2 * page + 1, size_bytes, page))
        if whole_pages:
            self.commit()
        if not entries:
            return
        if self.pages:
            self.counts.gets += 0 if is_known else 1 / self.pages[0]
            self.pending.add(_Unlinked(now_ms, 1, self.pages[0] * row_bytes))
            self.pages[0] -= entries
            self._write_page(self.pages[0])
        else:
            self.entries -= entries
        self.unlink(now_ms, entries)
        self.commit()

    def delete(self, now_ms: int, due: Sequence[_Unlinked]) -> None:
        pages = [each for each in due if each.page_entries][:PAGES_DELETED_MAX]
        for deleted in ([each for each in due if not each.page_entries], pages):
            if deleted:
                self._delete(now_ms, deleted)

    def collect(self, upto: int) -> None:
        self.counts.gets += 3
        self.counts.puts += 1
        self.counts.lists += 2
        self.counts.deletes += ceil((upto - self.boundary) / LIST_PAGE)
        self.counts.bytes_in += BOUNDARY_BYTES
        self.boundary = upto

    def _write_page(self, entries: int) -> None:
        self.counts.puts += 1
        self.counts.bytes_in += entries * self._of.page_row_bytes

    def _delete(self, now_ms: int, deleted: Sequence[_Unlinked]) -> None:
        single = 0
        for each in deleted:
            self.pending.remove(each)
            if each.page_entries:
                self.counts.deletes += ceil(2 * each.page_entries / LIST_PAGE) + 1
            else:
                single += each.objects
            if each.objects > 1:
                self._note_age(now_ms, each.since_ms, each.objects // 2)
        if self._pins_listed_ms is None or deleted[-1].since_ms + PINS_LAG_MS > self._pins_listed_ms:
            self.counts.lists += 1
            self._pins_listed_ms = now_ms
        self.counts.gets += 2
        self.counts.deletes += ceil(single / LIST_PAGE)
        self.commit()

    def _note_age(self, now_ms: int, since_ms: int, segments: int) -> None:
        schedule = self._schedule
        in_manifest_ms = max(0.0, schedule.expires_on_average(_STEADY) - schedule.copies(_STEADY))
        lived_ms = now_ms - since_ms + min(since_ms, int(in_manifest_ms))
        for days in self.short_byte_days:
            self.short_byte_days[days] += max(0.0, days - lived_ms / DAY_MS) * segments * schedule.stored_bytes


class _Readers:
    def __init__(self, reads: Reads, bucket: _Bucket, schedule: Schedule) -> None:
        self._reads, self._bucket, self._schedule = reads, bucket, schedule
        self.next_ms = reads.every_ms
        self.cached_upto = 0  # segments below it are in the manager's cache, or were on the disk

    def read(self, now_ms: int, expired: int, dropped: int, copied: int) -> None:
        reads = self._reads
        while self.next_ms <= now_ms:
            self.next_ms += reads.every_ms
            if copied == expired:
                continue
            oldest = expired
            if reads.oldest_ms is not None:
                oldest = max(oldest, min(copied, max(0, (now_ms - reads.oldest_ms) // self._schedule.segment_ms)))
            if reads.is_managers:
                self._read_uncached(oldest, dropped)
            else:
                self._scan((copied - oldest) * reads.share, min(1.0, reads.share), reads)

    def _read_uncached(self, oldest: int, dropped: int) -> None:
        first = max(oldest, self.cached_upto)
        self.cached_upto = max(dropped, self.cached_upto)
        if first < dropped:
            is_under_way = first > oldest
            self._scan(dropped - first, 0.0, replace(self._reads, begins=0.0) if is_under_way else self._reads)

    def _scan(self, segments: float, opened: float, reads: Reads) -> None:
        counts, bucket, stored = self._bucket.counts, self._bucket, self._schedule.stored_bytes
        # An average for readers that are no stream: the ends of their ranges depend on the batches.
        ranges = max(1.0, stored / reads.range_bytes)
        if reads.is_stream:
            ranges = max(1, ceil(stored / CELL_BYTES)) + (reads.begins / segments if segments else 0)
        counts.lists += 2 * opened
        counts.gets += (3 + len(bucket.pages)) * opened + segments * (1 + ranges)
        counts.data_gets += segments * ranges
        counts.data_bytes_out += segments * stored
        opened_bytes = (bucket.manifest_bytes + bucket.page_bytes) * opened
        counts.bytes_out += opened_bytes + segments * self._schedule.copied_bytes


class _Partition:
    """The loop of maintenance passes. Each step's position is the number of segments that it has done."""

    def __init__(self, schedule: Schedule, bucket: _Bucket) -> None:
        self._schedule, self._bucket, self._rules = schedule, bucket, schedule.rules
        reads = schedule.workload.reads
        self._readers = _Readers(reads, bucket, schedule) if reads is not None else None
        self._sums = dict.fromkeys(("objects", "index_bytes", "waiting_bytes", "local_bytes", "both_bytes"), 0.0)
        self._now_ms = 0
        self._settled_ms = -1  # the last pass that has run
        self._closed = self._cleaned = self._copied = self._dropped = self._expired = 0

    def fill(self) -> None:
        schedule, grace_ms = self._schedule, self._rules.delete_grace_ms
        expires = schedule.expires_on_average
        # The monthly bill of an unlimited log is the bill after its first year.
        start = expires(_STEADY) + grace_ms
        now_ms = self._now_ms = int(schedule.pass_at(start if start != inf else 365 * DAY_MS))
        self._settled_ms = now_ms - 1  # overdue work is done at the begin: the clock never goes back
        self._closed = schedule.closed_by(now_ms)
        self._cleaned = self._copied = schedule.passed(schedule.copies, self._closed, now_ms)
        self._dropped = min(self._copied, schedule.passed(schedule.drops, self._closed, now_ms))
        self._expired = schedule.passed(expires, self._copied, now_ms)
        self._fill_pending()
        self._bucket.fill(self._copied - self._expired)
        if self._readers is not None:
            self._readers.next_ms, self._readers.cached_upto = now_ms, self._dropped

    def _fill_pending(self) -> None:
        schedule, grace_ms = self._schedule, self._rules.delete_grace_ms
        expires = schedule.expires_on_average
        first = schedule.passed(lambda number: expires(number) + grace_ms, self._expired, self._now_ms)
        while first < self._expired:
            moment = int(schedule.pass_at(expires(first)))
            upto = first + (moment - int(expires(first))) // schedule.segment_ms + 1
            upto = min(self._expired, max(first + 1, upto))
            self._bucket.unlink(moment, upto - first)
            first = upto

    def run(self, window_ms: int) -> Simulated:
        end_ms = self._now_ms + window_ms
        while (moment := self._next_pass()) < end_ms:
            self._pass_time(int(moment))
            while self._apply_plan():
                pass
            if self._readers is not None:
                self._readers.read(self._now_ms, self._expired, self._dropped, self._copied)
            self._settled_ms = self._now_ms
        self._pass_time(end_ms)
        schedule, averages = self._schedule, {name: total / window_ms for name, total in self._sums.items()}
        return Simulated(
            counts=self._bucket.counts,
            stored_bytes=averages["objects"] * schedule.stored_bytes,
            small_bytes=averages["objects"] * schedule.indexes_bytes,
            object_bytes=schedule.stored_bytes,
            short_byte_days=self._bucket.short_byte_days,
            **averages,
        )

    def _next_pass(self) -> float:
        schedule = self._schedule
        moments: list[float] = [schedule.closes(self._closed)]
        if self._copied < (self._cleaned if self._rules.cleanup_compact else self._closed):
            moments.append(schedule.copies(self._copied))
        if self._dropped < self._copied:
            moments.append(schedule.drops(self._dropped))
        if self._expired < self._copied:
            moments.append(schedule.expires(self._expired, self._cleaned))
        if (oldest_ms := self._bucket.pending.oldest_ms) is not None:
            moments.append(deletion_due_ms(oldest_ms, self._rules))
        if self._readers is not None:
            moments.append(self._readers.next_ms)
        return schedule.pass_at(max(min(moments), self._settled_ms + 1))

    def _pass_time(self, now_ms: int) -> None:
        span_ms, bucket, sums = now_ms - self._now_ms, self._bucket, self._sums
        manifests = bucket.sequence - bucket.boundary
        sums["objects"] += span_ms * (self._copied - self._expired)
        sums["index_bytes"] += span_ms * (bucket.manifest_bytes * manifests + bucket.page_bytes)
        sums["waiting_bytes"] += span_ms * bucket.pending.size_bytes
        schedule, of = self._schedule, self._schedule.workload
        arrived = (self._now_ms + now_ms) / 2 / of.batch_ms * of.batch_bytes  # a straight line through the steps
        in_both = (self._copied - self._dropped) * schedule.object_bytes
        sums["local_bytes"] += span_ms * (in_both + max(0.0, arrived - self._copied * schedule.rolled_bytes))
        sums["both_bytes"] += span_ms * (self._copied - self._dropped) * schedule.object_bytes
        self._now_ms = now_ms

    def _apply_plan(self) -> bool:
        schedule, bucket, now_ms = self._schedule, self._bucket, self._now_ms
        self._closed = max(self._closed, schedule.closed_by(now_ms))
        expired, dropped = self._expired, self._dropped
        while expired < self._copied and schedule.expires(expired, self._cleaned) <= now_ms:
            expired += 1
        while dropped < self._copied and schedule.drops(dropped) <= now_ms:
            dropped += 1
        due = bucket.pending.due(self._rules, now_ms)
        upto = collectable_upto(bucket.sequence, bucket.boundary)
        is_busy = self._clean() or self._copy()
        if expired > self._expired:
            bucket.expire(now_ms, expired - self._expired)
        if due:
            bucket.delete(now_ms, due)
        if upto:
            bucket.collect(upto)
        is_busy |= (dropped, expired) != (self._dropped, self._expired)
        self._dropped, self._expired = dropped, expired
        return is_busy or bool(due or upto)

    def _clean(self) -> bool:
        if not self._rules.cleanup_compact or self._cleaned >= self._closed:
            return False
        dirty = (self._closed - self._cleaned) * self._schedule.rolled_bytes
        clean = (self._cleaned - self._dropped) * self._schedule.object_bytes
        if not is_dirty_enough(dirty, clean, self._rules.min_cleanable_dirty_ratio):
            return False
        self._cleaned = self._closed
        return True

    def _copy(self) -> bool:
        """Copy due segments; return if any. A compacted topic: all cleaned ones at once if the oldest is due."""
        schedule, bucket, before, uncommitted = self._schedule, self._bucket, self._copied, 0
        is_compacted = self._rules.cleanup_compact
        upper = self._cleaned if is_compacted else self._closed
        while self._copied < upper and schedule.copies(before if is_compacted else self._copied) <= self._now_ms:
            bucket.upload()
            self._copied += 1
            uncommitted += 1
            if not is_compacted and completes_commit(uncommitted, uncommitted * schedule.rolled_bytes):
                bucket.commit(uncommitted)
                uncommitted = 0
        if uncommitted:
            bucket.commit(uncommitted)
        return self._copied > before
