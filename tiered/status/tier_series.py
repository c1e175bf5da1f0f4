"""Figures of both tiers over time, thinned with age: every five minutes, then hour, then day.

| step | of all topics together | of each of a dozen | of each of a hundred | of each of a thousand |
|---|---|---|---|---|
| 5 min | 2 days | 12 hours | 1 hour | the last |
| 1 h | 30 days | 2 weeks | 2 days | 4 hours |
| 1 d | 3 years | 3 years | 4 months | 2 weeks |

A step has one point: its last values, but the maximum of copy lag and bytes at risk, because large values matter there.
Topics share `TOPIC_POINTS_MAX` points; the `TOPICS_MAX` largest topics have some. The total is half a megabyte at most.

Times are stored as given. A clock that was wrong for a while leaves points in the past or in the future. Each takes one
place, points in the future are removed first, and readers ask for a range up to now.

File format: zlib (its Adler-32 detects damage) over msgpack. The content is the steps, and for each name (``""`` is the
sum) and step the columns as differences from value to value.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec

from local.errors import Corrupt, InvalidRequest

FILE = "tier-history.bin"  # in a log directory
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
STEPS = {5 * MINUTE_MS: 576, HOUR_MS: 720, DAY_MS: 1096}  # number of points of all topics together, by ms
TOPIC_STEPS = {5 * MINUTE_MS: 144, HOUR_MS: 336, DAY_MS: 1096}  # and of one topic
TOPIC_POINTS_MAX = 20_000
TOPICS_MAX = 1000
FORGOTTEN_MS = 30 * DAY_MS  # a topic without a point for so long was deleted
VERSION = 1
FILE_BYTES_MAX = 64 << 20  # of a file's uncompressed content
TOTAL = ""
UNKNOWN = -1
_COLUMNS = 7
_TIME, _LAG, _AT_RISK, _MISSING = 0, 3, 4, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPoint:
    """State of the tiers at `at_ms`, in bytes, and dollars a month of remote storage.

    Dollars use the prices of that time. None: unknown, because the bucket was not read yet. `missing_partitions` could
    not be opened and are not counted.
    """

    at_ms: int
    local_bytes: int
    remote_bytes: int | None
    lag_bytes: int | None
    at_risk_bytes: int | None
    dollars_per_month: float | None
    missing_partitions: int = 0


class _File(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    steps: list[int]
    series: dict[str, list[list[list[int]]]]


_FILE = msgspec.msgpack.Decoder(_File)  # at import: creating it in two threads at once ends the process (msgspec 0.22)
_ENCODER = msgspec.msgpack.Encoder()


class Series:
    """Points of one topic or of all, by step. Times ascend within a step; one point a step at most."""

    def __init__(self) -> None:
        self._rungs = {step: tuple(array("q") for _ in range(_COLUMNS)) for step in STEPS}

    @property
    def newest_ms(self) -> int | None:
        """The time of the newest point."""
        times = [rung[_TIME][-1] for rung in self._rungs.values() if rung[_TIME]]
        return max(times) * 1000 if times else None

    @property
    def oldest_ms(self) -> int | None:
        times = [rung[_TIME][0] for rung in self._rungs.values() if rung[_TIME]]
        return min(times) * 1000 if times else None

    def has(self, at_ms: int) -> bool:
        """Return whether the shortest step around that time has a point."""
        step_ms = min(STEPS)
        return any(each.at_ms // step_ms == at_ms // step_ms for each in self.points(step_ms, at_ms - step_ms, at_ms))

    def add(self, point: TierPoint) -> None:
        """Add a point to every step."""
        row = _row(point)
        for step_ms, rung in self._rungs.items():
            _put(step_ms, rung, row)

    def join(self, other: Series) -> None:
        """Add all points of another series."""
        for step_ms, rung in self._rungs.items():
            for row in zip(*other._rungs[step_ms], strict=True):
                _put(step_ms, rung, row)

    def trim(self, now_ms: int, counts: Mapping[int, int], share: float = 1.0) -> None:
        """Remove points above a share of the limits: points in the future first, then the oldest."""
        for step_ms, count_max in counts.items():
            rung, keep = self._rungs[step_ms], max(1, int(count_max * share))
            while len(rung[_TIME]) > keep:
                at = -1 if rung[_TIME][-1] * 1000 > now_ms else 0
                for column in rung:
                    column.pop(at)

    def points(self, step_ms: int, since_ms: int, until_ms: int) -> list[TierPoint]:
        """Return the points of one step within ``[since_ms, until_ms]``, by time."""
        rung = self._rungs[step_ms]
        begin, end = (bisect_left(rung[_TIME], at) for at in (-(-since_ms // 1000), until_ms // 1000 + 1))
        return [_point(row) for row in zip(*(column[begin:end] for column in rung), strict=True)]

    def step_for(self, span_ms: int, until_ms: int) -> int:
        """Return the shortest step with points that reach as far back as longer steps' within a span."""
        since_ms = until_ms - span_ms
        firsts = {step: self._first(step, since_ms, until_ms) for step in STEPS if STEPS[step] * step >= span_ms}
        oldest = min((at for at in firsts.values() if at is not None), default=None)
        if oldest is None:
            return max(STEPS)
        return next(step for step, at in firsts.items() if at is not None and (at - oldest) * 1000 <= 2 * step)

    def _first(self, step_ms: int, since_ms: int, until_ms: int) -> int | None:
        times = self._rungs[step_ms][_TIME]
        at = bisect_left(times, -(-since_ms // 1000))
        return times[at] if at < len(times) and times[at] * 1000 <= until_ms else None

    def columns(self) -> list[list[list[int]]]:
        """Return the columns by step, for a file: each column's first value, then differences."""
        return [[_differences(column) for column in self._rungs[step]] for step in STEPS]

    @classmethod
    def of_columns(cls, steps: Iterable[int], columns: list[list[list[int]]]) -> Series:
        """Rebuild a series from columns, without unknown steps. Raises ValueError for invalid columns."""
        made = cls()
        for step, found in zip(steps, columns, strict=True):
            if step in STEPS:
                made._rungs[step] = _checked(tuple(array("q", accumulate(each)) for each in found))
        return made


class TierSeries:
    """Series of all topics together and of each. Not thread safe."""

    def __init__(self) -> None:
        self.total = Series()
        self.topics: dict[str, Series] = {}

    def of(self, topic: str | None) -> Series:
        """Return the series of one topic, of all for None; empty if there is none."""
        return self.total if topic is None else self.topics.get(topic, Series())

    def add(self, total: TierPoint, topics: Mapping[str, TierPoint]) -> None:
        """Add the state at one time; of too many topics only the largest."""
        self.total.add(total)
        for name, point in topics.items():
            self.topics.setdefault(name, Series()).add(point)
        self._forget(total.at_ms, topics)
        share = min(1.0, TOPIC_POINTS_MAX / max(1, len(self.topics)) / sum(TOPIC_STEPS.values()))
        self.total.trim(total.at_ms, STEPS)
        for series in self.topics.values():
            series.trim(total.at_ms, TOPIC_STEPS, share)

    def join(self, other: TierSeries) -> None:
        """Add all points of another object."""
        self.total.join(other.total)
        for name, series in other.topics.items():
            self.topics.setdefault(name, Series()).join(series)

    def encoded(self) -> bytes:
        """Encode as a file."""
        series = {TOTAL: self.total.columns(), **{name: each.columns() for name, each in self.topics.items()}}
        return zlib.compress(_ENCODER.encode(_File(version=VERSION, steps=list(STEPS), series=series)))

    @classmethod
    def decoded(cls, data: bytes) -> TierSeries:
        """Decode a file. Raises Corrupt, and InvalidRequest for a file of a newer version."""
        try:
            unpacker = zlib.decompressobj()
            found = _FILE.decode(unpacker.decompress(data, FILE_BYTES_MAX))
            if not unpacker.eof:
                raise ValueError("it is too long or too short")
            if found.version > VERSION:
                raise InvalidRequest("cannot read the history, it is of a newer version", version=found.version)
            made = cls()
            made.topics = {name: Series.of_columns(found.steps, each) for name, each in found.series.items()}
        except (zlib.error, msgspec.MsgspecError, ValueError, OverflowError) as error:
            raise Corrupt("cannot read the history", cause=" ".join(str(error).split())) from error
        made.total = made.topics.pop(TOTAL, Series())
        return made

    def _forget(self, now_ms: int, topics: Mapping[str, TierPoint]) -> None:
        """Remove deleted topics, and the smallest if there are too many."""
        for name in [each for each in self.topics if each not in topics]:
            newest = self.topics[name].newest_ms
            if newest is None or now_ms - newest > FORGOTTEN_MS:
                del self.topics[name]
        sizes = {name: _size(topics.get(name)) for name in self.topics}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name))[TOPICS_MAX:]:
            del self.topics[name]


def stretches(points: Iterable[TierPoint], step_ms: int) -> Iterator[list[TierPoint]]:
    """Yield runs of points without a gap. More than two steps without a point are a gap."""
    run: list[TierPoint] = []
    for point in points:
        if run and point.at_ms - run[-1].at_ms > 2 * step_ms:
            yield run
            run = []
        run.append(point)
    if run:
        yield run


def _size(point: TierPoint | None) -> int:
    return point.local_bytes + (point.remote_bytes or 0) if point is not None else UNKNOWN


def _row(point: TierPoint) -> tuple[int, ...]:
    dollars = point.dollars_per_month
    parts = (
        point.remote_bytes,
        point.lag_bytes,
        point.at_risk_bytes,
        None if dollars is None else round(dollars * 1e6),
    )
    known = (UNKNOWN if each is None else each for each in parts)
    return (point.at_ms // 1000, point.local_bytes, *known, point.missing_partitions)


def _point(row: tuple[int, ...]) -> TierPoint:
    at_s, local, remote, lag, at_risk, micros, missing = row
    known = [None if each == UNKNOWN else each for each in (remote, lag, at_risk)]
    return TierPoint(
        at_ms=at_s * 1000,
        local_bytes=local,
        remote_bytes=known[0],
        lag_bytes=known[1],
        at_risk_bytes=known[2],
        dollars_per_month=None if micros == UNKNOWN else micros / 1e6,
        missing_partitions=missing,
    )


def _put(step_ms: int, rung: tuple[array[int], ...], row: tuple[int, ...]) -> None:
    """Insert a row at its place, or merge it with the point of the same step."""
    times, begin = rung[_TIME], row[_TIME] * 1000 // step_ms * step_ms
    at = len(times)
    if times and begin <= times[-1] * 1000:
        at = bisect_left(times, -(-begin // 1000))
    if at == len(times) or times[at] * 1000 >= begin + step_ms:
        for column, value in zip(rung, row, strict=True):
            column.insert(at, value)
        return
    is_later = row[_TIME] >= times[at]
    for name, (column, value) in enumerate(zip(rung, row, strict=True)):
        if name in (_TIME, _LAG, _AT_RISK, _MISSING):
            column[at] = max(column[at], value)
        elif value != UNKNOWN and (is_later or column[at] == UNKNOWN):
            column[at] = value


def _differences(column: array[int]) -> list[int]:
    return [*column[:1], *(after - before for before, after in pairwise(column))]


def _checked(rung: tuple[array[int], ...]) -> tuple[array[int], ...]:
    if len(rung) != _COLUMNS or len({len(column) for column in rung}) != 1:
        raise ValueError("its columns differ in length")
    if any(after <= before for before, after in pairwise(rung[_TIME])):
        raise ValueError("its times do not ascend")
    if any(min(column, default=0) < UNKNOWN for column in rung):
        raise ValueError("a figure is negative")
    return rung
