"""Arrival rate of a topic: measured on segments of both tiers, or given by the user.

A month is forecast from the measured history, so the history must be long enough. A history below `HISTORY_LEAST_MS`
has no night and no quiet hour: a forecast from some minutes can be wrong by a factor of a thousand. Such a topic has no
figures until the caller gives its rate.

In a compacted log the oldest records left do not show when the log began: older ones arrived and were removed. Offsets
remain. So the number of records that arrived between two remaining ones, and their time, are known (`by_offsets`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from local.errors import InvalidRequest
from local.format.batch_header import HEADER_BYTES, read_header
from local.segment.segment import Segment
from policies.cost.storage_cost import DAY_MS
from remote.store import Body
from tiered.config.units import format_bytes, format_ms, parse_bytes

RATE_MS = 30 * DAY_MS  # a rate is measured over this much of the past
HISTORY_LEAST_MS = DAY_MS  # a shorter history gives no forecast
BATCH_MS_EXACT = 1000  # batches further apart than this lose no precision to whole milliseconds
_UNITS_MS = {"s": 1000, "h": 3_600_000, "d": DAY_MS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of the log in either tier. `min_ms` and `max_ms` are its oldest and its newest record."""

    size_bytes: int
    min_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Bytes that arrive in one partition in a ms, before compaction.

    `seen_ms` is the length of the measured history, None for a given rate.
    """

    bytes_per_ms: float
    said: str
    seen_ms: int | None

    def warning(self, topic: str) -> str | None:
        """Return why there is no forecast, and a next step.

        None for a history of a day or more, and for a given rate.
        """
        if self.seen_ms is None or self.seen_ms >= HISTORY_LEAST_MS:
            return None
        seen = f"only {format_ms(self.seen_ms)} of records" if self.seen_ms else "the records cover no time span"
        return (
            f"{topic}: no figures: {seen} to measure the arrival rate, less than the "
            f"{format_ms(HISTORY_LEAST_MS)} that a monthly forecast needs; next: state the rate, as "
            f"--rate {topic}=20GiB/d"
        )


def arrival(
    pieces: Sequence[Piece], samples: Sequence[Segment], batch_bytes: float, compacted_share: float, partitions: int
) -> Arrival:
    """Measure the rate on recent segment entries, else on the newest local segments.

    Entries follow one another, so the rate is the sum of their bytes over the time from the oldest to the newest
    record. n batches have n - 1 pauses between them, hence one batch is subtracted.
    """
    newest = max((piece.max_ms for piece in pieces), default=0)
    late = [piece for piece in pieces if piece.max_ms > newest - RATE_MS]
    span = max((piece.max_ms for piece in late), default=0) - min((piece.min_ms for piece in late), default=0)
    if span > 0:
        came = sum(piece.size_bytes for piece in late) / compacted_share / partitions
        rate = max(came - batch_bytes, came / 2) / span
        return Arrival(bytes_per_ms=rate, said=f"arrival rate of {_shown(span)} in the bucket", seen_ms=span)
    known = [(size, span) for size, span in map(_span, samples) if span > 0]
    if not known:
        return Arrival(bytes_per_ms=0.0, said="no arrival rate: all records have the same time", seen_ms=0)
    seen = sum(span for _, span in known)
    rate = sum(size for size, _ in known) / seen
    longest = max(span for _, span in known)
    return Arrival(bytes_per_ms=rate, said=f"arrival rate of {_shown(longest)} in local segments", seen_ms=longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """At `at_ms` all records of a partition below `next_offset` had arrived."""

    next_offset: int
    at_ms: int


def by_offsets(marks: Sequence[Sequence[Mark]], record_bytes: float) -> Arrival | None:
    """Measure the rate of a compacted log: offsets by time, times the bytes of a record.

    `marks` has the marks of each partition, in any order. A partition without records has none and counts as idle.
    Returns None if no partition has marks of two times. A time that is below the time of a smaller offset is ignored.
    """
    newest = max((mark.at_ms for each in marks for mark in each), default=0)
    late = [sorted((m for m in each if m.at_ms > newest - RATE_MS), key=astuple) for each in marks]
    begun = [each[0] for each in late if each]
    known = [(each[-1].next_offset - each[0].next_offset, newest - each[0].at_ms) for each in late if len(each) > 1]
    span = max((newest - each.at_ms for each in begun), default=0)
    if not (came := sum(offsets for offsets, ms in known if ms > 0)):
        return None
    rate = came / sum(ms for offsets, ms in known if ms > 0) * record_bytes * len(begun) / len(marks)
    return Arrival(bytes_per_ms=rate, said=f"arrival rate of {_shown(span)}, by offsets", seen_ms=span)


def first_mark(beginning: Body) -> Mark | None:
    """Return the mark of a segment's first batch; None for no batch, and for a batch without records."""
    first = read_header(beginning[:HEADER_BYTES])
    if first is None or not first.record_count or first.max_timestamp_ms < 0:
        return None
    return Mark(next_offset=first.last_offset + 1, at_ms=first.max_timestamp_ms)


def given_arrival(bytes_per_day: float, partitions: int) -> Arrival:
    """Return the rate that a user gave for the whole topic."""
    said = f"arrival rate as stated, {format_bytes(round(bytes_per_day))} a day"
    return Arrival(bytes_per_ms=bytes_per_day / DAY_MS / partitions, said=said, seen_ms=None)


def steady(batch_bytes: float, bytes_per_ms: float) -> tuple[int, int]:
    """Return (bytes of a batch, ms from one batch to the next) of a steady stream.

    Without a rate the interval is RATE_MS. The ms are whole numbers, so for a busy partition the bytes are adjusted:
    otherwise a batch of 16 KiB every 1.6 ms would be a quarter less than the rate.
    """
    size = max(1, round(batch_bytes))
    if not bytes_per_ms:
        return size, RATE_MS
    every_ms = max(1, round(size / bytes_per_ms))
    return (size if every_ms >= BATCH_MS_EXACT else max(1, round(bytes_per_ms * every_ms))), every_ms


def read_rates(texts: Sequence[str]) -> dict[str | None, float]:
    """Parse ``20GiB/d`` or ``orders=10MiB/s`` to bytes a day by topic, None for a rate without a name.

    Raises InvalidRequest.
    """
    found: dict[str | None, float] = {}
    for text in texts:
        topic, named, rate = text.rpartition("=")
        size, _, unit = rate.partition("/")
        of = parse_bytes(size.strip())
        if of is None or of <= 0 or unit.strip() not in _UNITS_MS or (named and not topic.strip()):
            raise InvalidRequest("invalid --rate, write bytes by time as 20GiB/d or orders=10MiB/s", text=repr(text))
        name = topic.strip() if named else None
        if name in found:
            raise InvalidRequest("invalid --rate, a topic is repeated", topic=name)
        found[name] = of * DAY_MS / _UNITS_MS[unit.strip()]
    return found


def rates_of(rates: Mapping[str | None, float], topics: Sequence[str]) -> dict[str, float]:
    """Return the rates by topic.

    Raises InvalidRequest for a rate without a name if there are several topics, and for a rate of another topic.
    """
    if None in rates and (len(topics) != 1 or len(rates) > 1):
        raise InvalidRequest(
            "invalid --rate, several topics are simulated: write TOPIC=20GiB/d", topics=",".join(topics)
        )
    strange = sorted(str(name) for name in rates if name is not None and name not in topics)
    if strange:
        raise InvalidRequest("invalid --rate, the topic is not simulated", topic=strange[0], topics=",".join(topics))
    return {topics[0] if name is None else name: rate for name, rate in rates.items()}


def _shown(span_ms: int) -> str:
    return f"{span_ms / DAY_MS:.1f} days" if span_ms >= DAY_MS else format_ms(span_ms)


def _span(segment: Segment) -> tuple[int, int]:
    """Return (bytes, ms) of a local segment, from its first batch and its largest timestamp."""
    first = read_header(segment.read(0, min(segment.size_bytes, HEADER_BYTES)))
    largest = segment.max_timestamp_ms
    if first is None or largest is None:
        return segment.size_bytes, 0
    return segment.size_bytes, max(0, largest - first.base_timestamp_ms)
