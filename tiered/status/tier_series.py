"""Figures of both tiers over time, thinned as they age: each five minutes, then each hour, then each day.

| step | of all topics together | of each of a dozen | of each of a hundred | of each of a thousand |
|---|---|---|---|---|
| 5 min | 2 days | 12 hours | 1 hour | the last |
| 1 h | 30 days | 2 weeks | 2 days | 4 hours |
| 1 d | 3 years | 3 years | 4 months | 2 weeks |

A step keeps one point: what was seen last in it, but the most of what waited and of what was at risk: those matter
when they are large. Topics share `TOPIC_POINTS_MAX` points; the largest `TOPICS_MAX` topics have some. All of it is
half a megabyte at most.

Times are kept as they were told. A clock that was wrong for a while leaves points in the past or in the future; they
take a place each, those in the future make way first, and whoever reads asks for a stretch up to now.

As a file: zlib (whose Adler-32 finds damage) over msgpack: the steps, and by name (``""`` is the sum) for each step the
columns as differences from value to value.
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
STEPS = {5 * MINUTE_MS: 576, HOUR_MS: 720, DAY_MS: 1096}  # how many points of all topics together, by ms
TOPIC_STEPS = {5 * MINUTE_MS: 144, HOUR_MS: 336, DAY_MS: 1096}  # and of one
TOPIC_POINTS_MAX = 20_000
TOPICS_MAX = 1000
FORGOTTEN_MS = 30 * DAY_MS  # a topic of which nothing was seen for so long was deleted
VERSION = 1
FILE_BYTES_MAX = 64 << 20  # of what a file unpacks to
TOTAL = ""
UNKNOWN = -1
_COLUMNS = 7
_TIME, _LAG, _AT_RISK, _MISSING = 0, 3, 4, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPoint:
    """How the tiers stood at `at_ms`. Bytes; dollars are of storage in the bucket for a month, at the prices of then.

    None: not known, since the bucket was not seen yet. `missing_partitions` could not be opened and are left out.
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


_FILE = msgspec.msgpack.Decoder(_File)  # made at import: made in two threads at once it ends the process (msgspec 0.22)
_ENCODER = msgspec.msgpack.Encoder()


class Series:
    """Points of one topic or of all, by step. Times ascend within a step; no two in one stretch of it."""

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
        """Whether there is a point in the shortest step around that time."""
        step_ms = min(STEPS)
        return any(each.at_ms // step_ms == at_ms // step_ms for each in self.points(step_ms, at_ms - step_ms, at_ms))

    def add(self, point: TierPoint) -> None:
        """A point more, into every step."""
        row = _row(point)
        for step_ms, rung in self._rungs.items():
            _put(step_ms, rung, row)

    def join(self, other: Series) -> None:
        """All points of another one as well."""
        for step_ms, rung in self._rungs.items():
            for row in zip(*other._rungs[step_ms], strict=True):
                _put(step_ms, rung, row)

    def trim(self, now_ms: int, counts: Mapping[int, int], share: float = 1.0) -> None:
        """Keep that share of so many points by step: those in the future go first, then the oldest."""
        for step_ms, count_max in counts.items():
            rung, keep = self._rungs[step_ms], max(1, int(count_max * share))
            while len(rung[_TIME]) > keep:
                at = -1 if rung[_TIME][-1] * 1000 > now_ms else 0
                for column in rung:
                    column.pop(at)

    def points(self, step_ms: int, since_ms: int, until_ms: int) -> list[TierPoint]:
        """Those of one step within ``[since_ms, until_ms]``, by time."""
        rung = self._rungs[step_ms]
        begin, end = (bisect_left(rung[_TIME], at) for at in (-(-since_ms // 1000), until_ms // 1000 + 1))
        return [_point(row) for row in zip(*(column[begin:end] for column in rung), strict=True)]

    def step_for(self, span_ms: int, until_ms: int) -> int:
        """The shortest step with points that reach back as far as those of longer ones do within a span."""
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
        """By step, for a file: each column's first value, then differences."""
        return [[_differences(column) for column in self._rungs[step]] for step in STEPS]

    @classmethod
    def of_columns(cls, steps: Iterable[int], columns: list[list[list[int]]]) -> Series:
        """The inverse. Steps that are none of ours are left out. Raises ValueError for what no series gave."""
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
        """Of one topic, of all for None; an empty one where there is none."""
        return self.total if topic is None else self.topics.get(topic, Series())

    def add(self, total: TierPoint, topics: Mapping[str, TierPoint]) -> None:
        """How it stood at one time; the largest topics alone where there are too many."""
        self.total.add(total)
        for name, point in topics.items():
            self.topics.setdefault(name, Series()).add(point)
        self._forget(total.at_ms, topics)
        share = min(1.0, TOPIC_POINTS_MAX / max(1, len(self.topics)) / sum(TOPIC_STEPS.values()))
        self.total.trim(total.at_ms, STEPS)
        for series in self.topics.values():
            series.trim(total.at_ms, TOPIC_STEPS, share)

    def join(self, other: TierSeries) -> None:
        """All points of another one as well."""
        self.total.join(other.total)
        for name, series in other.topics.items():
            self.topics.setdefault(name, Series()).join(series)

    def encoded(self) -> bytes:
        """As a file."""
        series = {TOTAL: self.total.columns(), **{name: each.columns() for name, each in self.topics.items()}}
        return zlib.compress(_ENCODER.encode(_File(version=VERSION, steps=list(STEPS), series=series)))

    @classmethod
    def decoded(cls, data: bytes) -> TierSeries:
        """The inverse. Raises Corrupt, and InvalidRequest for a file of a newer version."""
        try:
            unpacker = zlib.decompressobj()
            found = _FILE.decode(unpacker.decompress(data, FILE_BYTES_MAX))
            if not unpacker.eof:
                raise ValueError("it goes on or breaks off")
            if found.version > VERSION:
                raise InvalidRequest("reading figures over time, of a newer version", version=found.version)
            made = cls()
            made.topics = {name: Series.of_columns(found.steps, each) for name, each in found.series.items()}
        except (zlib.error, msgspec.MsgspecError, ValueError, OverflowError) as error:
            raise Corrupt("reading figures over time", cause=" ".join(str(error).split())) from error
        made.total = made.topics.pop(TOTAL, Series())
        return made

    def _forget(self, now_ms: int, topics: Mapping[str, TierPoint]) -> None:
        """Topics that are gone, and the smallest of too many."""
        for name in [each for each in self.topics if each not in topics]:
            newest = self.topics[name].newest_ms
            if newest is None or now_ms - newest > FORGOTTEN_MS:
                del self.topics[name]
        sizes = {name: _size(topics.get(name)) for name in self.topics}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name))[TOPICS_MAX:]:
            del self.topics[name]


def stretches(points: Iterable[TierPoint], step_ms: int) -> Iterator[list[TierPoint]]:
    """Points in runs without a gap: two steps without one, and nobody looked meanwhile."""
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
    """Into its place, or into one with the point of the same stretch."""
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
        raise ValueError("columns of different lengths")
    if any(after <= before for before, after in pairwise(rung[_TIME])):
        raise ValueError("times that do not ascend")
    if any(min(column, default=0) < UNKNOWN for column in rung):
        raise ValueError("a figure below zero")
    return rung
