"""A meter of a manager's store with persistent counts: requests per month and topic.

``remote-requests.json`` is in the first log directory: the counts by calendar month (UTC) and topic directory. It is
replaced whole, at most once in KEEP_INTERVAL_MS and at the end. A crash loses the counts since the last write. An
unreadable file, or one of another store, is started over. Retries after a failed request are not counted.

A clock before EARLIEST_MS was never set: nothing is written until it is valid, and the start of the meter is then
computed back. Counts dated in the future are counted in the present month.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from local.errors import LogError, NotFound
from local.storage import Storage, join, replace_file
from remote.store import ObjectStore
from remote.store.middleware.store_wrapper import MeteredStore, RequestCounts
from tiered.config.clock_guard import counted_ms

FILE = "remote-requests.json"
VERSION = 1
KEEP_INTERVAL_MS = 60_000
MONTHS_MAX = 13
RATE_DAYS = 28
DAY_MS = 86_400_000
EARLIEST_MS = 1_577_836_800_000  # 2020-01-01: clocks begin with 1970, 2000 or their firmware's date
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHistory:
    """The recorded counts of `months` (``2026-11``, ascending), each by topic directory.

    The first month counts from `since_ms`, the last up to `upto_ms`. A topic counts since `begun`.
    """

    version: int = VERSION
    url: str
    since_ms: int
    upto_ms: int
    months: Mapping[str, Mapping[str, RequestCounts]] = field(default_factory=dict)
    begun: Mapping[str, int] = field(default_factory=dict)

    def rate_since_ms(self, now_ms: int) -> int:
        """The start of the counts scaled to a month: the newest month's start RATE_DAYS or more ago."""
        start_ms = _start_of(month_of(now_ms))
        if now_ms - start_ms < RATE_DAYS * DAY_MS:
            start_ms = _start_of(month_of(start_ms - 1))
        return max(self.since_ms, start_ms)

    def recent(self, directory: str, now_ms: int) -> tuple[RequestCounts, int]:
        """Return (counts of a topic directory since `rate_since_ms`, the ms that they cover)."""
        since_ms = self.rate_since_ms(now_ms)
        counts = (
            each.get(directory, RequestCounts()) for name, each in self.months.items() if name >= month_of(since_ms)
        )
        return sum(counts, RequestCounts()), max(0, now_ms - max(since_ms, self.begun.get(directory, since_ms)))

    def total(self) -> RequestCounts:
        return sum((counts for each in self.months.values() for counts in each.values()), RequestCounts())


# Built at import: building it in two threads in parallel ends the process (msgspec 0.22).
_HISTORY = msgspec.json.Decoder(RequestHistory)


class PersistentMeter(MeteredStore):
    """A `MeteredStore` with persistent counts. Thread safe."""

    def __init__(
        self, inner: ObjectStore, place: Callable[[], tuple[Storage, str]], now_ms: int, *, read_only: bool = False
    ) -> None:
        """`place` returns the directory for the file; `read_only` writes nothing."""
        super().__init__(inner)
        self._place, self._read_only = place, read_only
        self._kept: dict[str, RequestCounts] = {}
        self._history: RequestHistory | None = None
        self._is_written, self._is_closed = True, False
        self._since_ms = self._kept_ms = self._now_ms = now_ms
        self._opened_ms = counted_ms()

    def keep(self, now_ms: int | None = None) -> None:
        """Write the counts: with `now_ms` only after KEEP_INTERVAL_MS. A disk error is only logged."""
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
            _log.warning("cannot save the request counts: cause=%s", error)
            return
        self._is_written = True

    def history(self) -> RequestHistory:
        """The recorded counts and later ones; in a read-only open only the recorded ones."""
        return self._begun() if self._read_only else self._with(self.counts_by_topic())

    def close(self) -> None:
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
            since_ms = max(EARLIEST_MS, self._now_ms - (counted_ms() - self._opened_ms))
        return RequestHistory(url=self.url, since_ms=since_ms, upto_ms=self._now_ms)


def read_history(storage: Storage, root: str) -> RequestHistory | None:
    """The recorded counts in a log directory; None if there are none or they are unreadable."""
    try:
        history = _HISTORY.decode(storage.read(join(root, FILE)))
    except NotFound:
        return None
    except msgspec.MsgspecError as error:
        _log.warning("the file of request counts is damaged, counting starts at zero: file=%s cause=%s", FILE, error)
        return None
    return history if history.version == VERSION else None


def added(history: RequestHistory, more: Mapping[str, RequestCounts], now_ms: int) -> RequestHistory:
    """`history` plus counts of the month of `now_ms`, without too old months; later months join that one."""
    name, since_ms = month_of(now_ms), min(history.since_ms, now_ms)
    months = {known: each for known, each in history.months.items() if known < name}
    month: dict[str, RequestCounts] = {}
    for counts_by_topic in (each for known, each in history.months.items() if known >= name):
        for topic, counts in counts_by_topic.items():
            month[topic] = month.get(topic, RequestCounts()) + counts
    known_months = {**months, name: dict(month)} if month else months
    counted = {topic for each in known_months.values() for topic in each}
    begun = {topic: min(at, now_ms) for topic, at in history.begun.items() if at and topic in counted}
    for topic, counts in more.items():
        if counts != RequestCounts():
            month[topic] = month.get(topic, RequestCounts()) + counts
            if topic not in begun:  # now, or its first month with counts
                starts = [_start_of(known) for known, each in known_months.items() if topic in each]
                begun[topic] = max([since_ms, *(starts[:1] if starts or not known_months else [now_ms])])
    months = dict(sorted({**months, name: month}.items())[-MONTHS_MAX:])
    since_ms, upto_ms = max(since_ms, _start_of(next(iter(months)))), max(history.upto_ms, now_ms)
    return RequestHistory(url=history.url, since_ms=since_ms, upto_ms=upto_ms, months=months, begun=begun)


def month_of(now_ms: int) -> str:
    return datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).strftime("%Y-%m")


def _start_of(month: str) -> int:
    return int(datetime.datetime.strptime(month, "%Y-%m").replace(tzinfo=datetime.UTC).timestamp() * 1000)
