"""The meter of a manager's store whose counts outlive the process: what was sent in each month, topic by topic.

``remote-requests.json`` in the first log directory: the store's url, since when and up to when it was counted, and for
each calendar month (UTC) the counts by topic directory. It is put in its place whole
(`local.storage.storage.replace_file`), at most once in KEEP_INTERVAL_MS, at the end, and only when something was
counted. A crash loses what was counted since the last time, never what was kept. A file that cannot be read, or of
another store, is begun anew: these are counts for a bill, and nothing else depends on them.

A month's bill goes by what was sent of late: RATE_DAYS and what more of a calendar month that takes, so that neither
last year's backfill nor a place that stood still is spread over it.

Times are those that the rounds go by. A clock that was never set (before EARLIEST_MS: an empty battery at the first
start) is none of them: nothing is written down until there is a time, and the meter then began as long ago as has been
counted. What a clock wrote that had been ahead is taken to be of now.

A manager that only looks writes nothing, so its requests are not kept. Tries again after a failed request are not seen
(`remote.store.middleware.metered_store`).
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from local.errors import LogError, NotFound
from local.logdirs.log_dirs import LogDirectories
from local.storage import Storage, join, replace_file
from remote.segments.cleanup_failures import left_behind
from remote.store import ObjectStore
from remote.store.middleware.metered_store import MeteredStore, RequestCounts
from tiered.config.clock_guard import counted_ms

if TYPE_CHECKING:
    from tiered.stores.store_clock import StoreClock

FILE = "remote-requests.json"
VERSION = 1
KEEP_INTERVAL_MS = 60_000
MONTHS_KEPT = 13
RATE_DAYS = 28
DAY_MS = 86_400_000
EARLIEST_MS = 1_577_836_800_000  # 2020-01-01: clocks begin with 1970, 2000 or their firmware's date
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHistory:
    """What was kept. `months` are ``2026-11`` and so on, ascending, each with counts by topic directory.

    The first month counts from `since_ms`, the last up to `upto_ms`, both in ms. `begun` has for each topic directory
    when something was first sent for it: its counts are of the time since then, not of all that was metered.
    """

    version: int = VERSION
    url: str
    since_ms: int
    upto_ms: int
    months: Mapping[str, Mapping[str, RequestCounts]] = field(default_factory=dict)
    begun: Mapping[str, int] = field(default_factory=dict)

    def rate_since_ms(self, now_ms: int) -> int:
        """From when on counts stand for a month of now."""
        start_ms = _start_of(month_of(now_ms))
        if now_ms - start_ms < RATE_DAYS * DAY_MS:
            start_ms = _start_of(month_of(start_ms - 1))
        return max(self.since_ms, start_ms)

    def recent(self, directory: str, now_ms: int) -> tuple[RequestCounts, int]:
        """What was sent of late for one topic, and in how many ms up to now."""
        since_ms = self.rate_since_ms(now_ms)
        counts = (
            each.get(directory, RequestCounts()) for name, each in self.months.items() if name >= month_of(since_ms)
        )
        return sum(counts, RequestCounts()), max(0, now_ms - max(since_ms, self.begun.get(directory, since_ms)))

    def total(self) -> RequestCounts:
        """All that was kept."""
        return sum((counts for each in self.months.values() for counts in each.values()), RequestCounts())


# Made at import: made in two threads at once it ends the process (msgspec 0.22).
_HISTORY = msgspec.json.Decoder(RequestHistory)


class KeptMeter(MeteredStore):
    """A `MeteredStore` that keeps its counts; see the module text. Thread safe."""

    def __init__(
        self,
        inner: ObjectStore,
        place: Callable[[], tuple[Storage, str]],
        now_ms: int,
        *,
        read_only: bool = False,
        counted: Callable[[], int] = counted_ms,
    ) -> None:
        """`place` says which directory keeps the file; with `read_only` nothing is written. `counted` is a clock that
        nobody sets."""
        super().__init__(inner)
        self._place = place
        self._read_only = read_only
        self._kept: dict[str, RequestCounts] = {}
        self._history: RequestHistory | None = None
        self._is_written, self._is_closed = True, False
        self._since_ms = self._kept_ms = self._now_ms = now_ms
        self._steady_ms, self._opened_ms = counted, counted()

    def keep(self, now_ms: int | None = None) -> None:
        """Write down what was counted; at a time only where the last one is long enough ago, without one at once.

        A disk that refuses is told in the log; the counts stay for the next try.
        """
        self._now_ms = self._now_ms if now_ms is None else now_ms
        is_early = now_ms is not None and 0 <= now_ms - self._kept_ms < KEEP_INTERVAL_MS
        counts = self.counts_by_topic()
        if self._read_only or is_early or self._now_ms < EARLIEST_MS or (self._is_written and counts == self._kept):
            return
        # Added up in memory and written whole, so a write that failed half way counts nothing twice.
        self._history = self._with(counts)
        self._kept, self._kept_ms, self._is_written = counts, self._now_ms, False
        storage, root = self._place()
        try:
            replace_file(storage, join(root, FILE), msgspec.json.encode(self._history))
        except LogError as error:
            _log.warning("counts of requests could not be kept: cause=%s", error)
            return
        self._is_written = True

    def history(self) -> RequestHistory:
        """What was kept until now and counted since. Of one that only looks what the file said, and nothing else."""
        return self._begun() if self._read_only else self._with(self.counts_by_topic())

    def close(self) -> None:
        """Let go of the store, once."""
        if not self._is_closed:
            self._is_closed = True
            super().close()

    def _with(self, counts: Mapping[str, RequestCounts]) -> RequestHistory:
        more = {name: each - self._kept.get(name, RequestCounts()) for name, each in counts.items()}
        return added(self._history or self._begun(), more, self._now_ms)

    def _begun(self) -> RequestHistory:
        known = read_history(*self._place())
        if known is not None and known.url == self.url:
            return known
        since_ms = self._since_ms
        if since_ms < EARLIEST_MS <= self._now_ms:
            since_ms = max(EARLIEST_MS, self._now_ms - (self._steady_ms() - self._opened_ms))
        return RequestHistory(url=self.url, since_ms=since_ms, upto_ms=self._now_ms)


class Metered:
    """The part of a manager that tells what it sent."""

    _store: KeptMeter | None

    def store_clock(self, now_ms: Callable[[], int]) -> StoreClock | None:
        """Who asks the store what time it is; None without a store, or one that goes by this machine's clock."""
        from tiered.stores.store_clock import StoreClock, has_own_clock

        return StoreClock(self._store, now_ms) if self._store is not None and has_own_clock(self._store.url) else None

    def request_counts(self) -> RequestCounts | None:
        """Requests sent to the store since it was opened; None without a store."""
        return self._store.counts() if self._store is not None else None

    def request_counts_by_topic(self) -> dict[str, RequestCounts]:
        """The same by the topic's directory in the store; nothing without a store."""
        return self._store.counts_by_topic() if self._store is not None else {}

    def left_objects(self) -> int:
        """Objects that failed uploads may have left, at most, since it was opened
        (`remote.segments.cleanup_failures`)."""
        return left_behind(self._store).objects if self._store is not None else 0

    def request_history(self) -> RequestHistory | None:
        """Requests of this and earlier managers of the directory, by month and topic; None without a store."""
        return self._store.history() if self._store is not None else None


def kept_meter(store: ObjectStore | None, directory: LogDirectories, now_ms: int) -> KeptMeter | None:
    """The meter of a manager's store; it writes nothing for one that only looks."""
    if store is None:
        return None
    return KeptMeter(store, directory.first_online, now_ms, read_only=directory.read_only)


def read_history(storage: Storage, root: str) -> RequestHistory | None:
    """What a log directory has kept; None where it has not, or where nobody can read it."""
    try:
        history = _HISTORY.decode(storage.read(join(root, FILE)))
    except NotFound:
        return None
    except msgspec.MsgspecError as error:
        _log.warning("counts of requests are begun anew, the file is damaged: file=%s cause=%s", FILE, error)
        return None
    return history if history.version == VERSION else None


def added(history: RequestHistory, more: Mapping[str, RequestCounts], now_ms: int) -> RequestHistory:
    """`history` with counts of the month of `now_ms`, and without months that are too old.

    What it has of later ones is taken to be of that one: a clock had been ahead.
    """
    name, history = month_of(now_ms), _not_ahead(history, now_ms)
    month = dict(history.months.get(name, {}))
    begun = {topic: at for each in history.months.values() for topic in each if (at := history.begun.get(topic))}
    for topic, counts in more.items():
        if counts != RequestCounts():
            month[topic] = month.get(topic, RequestCounts()) + counts
            begun.setdefault(topic, _begun_at(history, topic, now_ms))
    months = dict(sorted({**history.months, name: month}.items())[-MONTHS_KEPT:])
    first_ms = _start_of(next(iter(months)))
    return RequestHistory(
        url=history.url,
        since_ms=max(history.since_ms, first_ms),
        upto_ms=max(history.upto_ms, now_ms),
        months=months,
        begun=begun,
    )


def _not_ahead(history: RequestHistory, now_ms: int) -> RequestHistory:
    name, month = month_of(now_ms), dict[str, RequestCounts]()
    for later in (each for known, each in history.months.items() if known >= name):
        for topic, counts in later.items():
            month[topic] = month.get(topic, RequestCounts()) + counts
    months = {known: each for known, each in history.months.items() if known < name}
    return replace(
        history,
        since_ms=min(history.since_ms, now_ms),
        months=months | ({name: month} if month else {}),
        begun={topic: min(at, now_ms) for topic, at in history.begun.items()},
    )


def _begun_at(history: RequestHistory, topic: str, now_ms: int) -> int:
    """When a topic's counts began that has no such moment yet: now, or at the first month that has any.

    Of what was sent before anything was kept nobody knows more than when the meter began.
    """
    known = [_start_of(name) for name, each in history.months.items() if topic in each]
    if known or not history.months:
        return max([history.since_ms, *known[:1]])
    return max(history.since_ms, now_ms)


def month_of(now_ms: int) -> str:
    """``2026-11``, in UTC."""
    return datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).strftime("%Y-%m")


def _start_of(month: str) -> int:
    return int(datetime.datetime.strptime(month, "%Y-%m").replace(tzinfo=datetime.UTC).timestamp() * 1000)
