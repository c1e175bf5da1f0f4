"""History of both tiers: bytes on disk and in the bucket, copy lag, bytes at risk, dollars a month.

A running manager notes the figures every five minutes. How long points of a step stay, by number of topics:

| step | of all topics together | of each of a dozen | of each of a hundred | of each of a thousand |
|---|---|---|---|---|
| 5 min | 2 days | 12 hours | 1 hour | the last |
| 1 h | 30 days | 2 weeks | 2 days | 4 hours |
| 1 d | 3 years | 3 years | 4 months | 2 weeks |

A step has one point: its last values, but the maximum of copy lag and bytes at risk. The `TOPICS_MAX` largest topics
share `TOPIC_POINTS_MAX` points: half a megabyte at most. After a wrong clock, points in the future are removed first.

The file is ``tier-history.bin`` in the first online log directory: zlib (its Adler-32 detects damage) over msgpack of
the steps and, for each name (``""`` is the sum) and step, the columns as differences. It is replaced as a whole after a
maintenance run in a new five-minute step, and at the end. Notes are read from all log directories, because the first
may have been offline. A damaged file is replaced; with a file of a newer version no notes are written.
"""

from __future__ import annotations

import logging
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

import msgspec

from local.errors import Corrupt, InvalidRequest, LogError, NotFound
from local.storage import DiskStorage, Storage, join, replace_file
from remote.keys import parse_page_key, ulid_ms
from remote.segment_entry import SegmentState
from tiered.config.config import Config
from tiered.config.price_file import configured_prices
from tiered.partition.partition_status import PartitionStatus, partition_status
from tiered.status.status_report import is_unseen, snapshots_at_hand, storage_costs

if TYPE_CHECKING:
    import pandas as pd

    from tiered.manager.manager import LogManager

_log = logging.getLogger(__name__)
Figure = TypeVar("Figure", int, float)
_REMOTE = ("remote_bytes", "lag_bytes", "at_risk_bytes")
FILE = "tier-history.bin"  # in a log directory
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
SPAN_MS = 2 * DAY_MS
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
    """Both tiers at `at_ms`: bytes, and dollars a month of remote storage at the prices of that time.

    None: unknown, because the bucket was not read yet. `missing_partitions` could not be opened and are not counted.
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
    """Points of one topic or of all, by step: ascending times, at most one point a step."""

    def __init__(self) -> None:
        self._rungs = {step: tuple(array("q") for _ in range(_COLUMNS)) for step in STEPS}

    @property
    def newest_ms(self) -> int | None:
        times = [rung[_TIME][-1] for rung in self._rungs.values() if rung[_TIME]]
        return max(times) * 1000 if times else None

    @property
    def oldest_ms(self) -> int | None:
        times = [rung[_TIME][0] for rung in self._rungs.values() if rung[_TIME]]
        return min(times) * 1000 if times else None

    def has(self, at_ms: int) -> bool:
        step_ms = min(STEPS)
        return any(each.at_ms // step_ms == at_ms // step_ms for each in self.points(step_ms, at_ms - step_ms, at_ms))

    def add(self, point: TierPoint) -> None:
        row = _row(point)
        for step_ms, rung in self._rungs.items():
            _put(step_ms, rung, row)

    def join(self, other: Series) -> None:
        for step_ms, rung in self._rungs.items():
            for row in zip(*other._rungs[step_ms], strict=True):
                _put(step_ms, rung, row)

    def trim(self, now_ms: int, counts: Mapping[int, int], share: float = 1.0) -> None:
        """Remove points above a share of the limits: in the future first, then the oldest."""
        for step_ms, count_max in counts.items():
            rung, keep = self._rungs[step_ms], max(1, int(count_max * share))
            while len(rung[_TIME]) > keep:
                at = -1 if rung[_TIME][-1] * 1000 > now_ms else 0
                for column in rung:
                    column.pop(at)

    def points(self, step_ms: int, since_ms: int, until_ms: int) -> list[TierPoint]:
        rung = self._rungs[step_ms]
        begin, end = (bisect_left(rung[_TIME], at) for at in (-(-since_ms // 1000), until_ms // 1000 + 1))
        return [_point(row) for row in zip(*(column[begin:end] for column in rung), strict=True)]

    def step_for(self, span_ms: int, until_ms: int) -> int:
        """Return the shortest step whose points reach as far back in a span as those of longer steps."""
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
        """Return columns by step, for a file: each one's first value, then differences."""
        return [[_differences(column) for column in self._rungs[step]] for step in STEPS]

    @classmethod
    def of_columns(cls, steps: Iterable[int], columns: list[list[list[int]]]) -> Series:
        """Rebuild a series, without unknown steps. Raises ValueError for invalid columns."""
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
        """Return the series of a topic (None: of all); empty if there is none."""
        return self.total if topic is None else self.topics.get(topic, Series())

    def add(self, total: TierPoint, topics: Mapping[str, TierPoint]) -> None:
        self.total.add(total)
        for name, point in topics.items():
            self.topics.setdefault(name, Series()).add(point)
        self._forget(total.at_ms, topics)
        share = min(1.0, TOPIC_POINTS_MAX / max(1, len(self.topics)) / sum(TOPIC_STEPS.values()))
        self.total.trim(total.at_ms, STEPS)
        for series in self.topics.values():
            series.trim(total.at_ms, TOPIC_STEPS, share)

    def join(self, other: TierSeries) -> None:
        self.total.join(other.total)
        for name, series in other.topics.items():
            self.topics.setdefault(name, Series()).join(series)

    def encoded(self) -> bytes:
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
        for name in [each for each in self.topics if each not in topics]:
            newest = self.topics[name].newest_ms
            if newest is None or now_ms - newest > FORGOTTEN_MS:
                del self.topics[name]
        sizes = dict.fromkeys(self.topics, UNKNOWN)
        sizes |= {name: each.local_bytes + (each.remote_bytes or 0) for name, each in topics.items()}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name))[TOPICS_MAX:]:
            del self.topics[name]


def stretches(points: Iterable[TierPoint], step_ms: int) -> Iterator[list[TierPoint]]:
    run: list[TierPoint] = []
    for point in points:
        if run and point.at_ms - run[-1].at_ms > 2 * step_ms:
            yield run
            run = []
        run.append(point)
    if run:
        yield run


def _row(point: TierPoint) -> tuple[int, ...]:
    dollars = point.dollars_per_month
    micros = None if dollars is None else round(dollars * 1e6)
    parts = (point.remote_bytes, point.lag_bytes, point.at_risk_bytes, micros)
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


class TierJournal:
    """Records the notes of one manager. Not thread safe: maintenance runs are sequential."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._series: TierSeries | None = None
        self._noted: int | None = None  # five-minute step of the last note
        self._is_written = True
        self._is_off = False
        self._complaint = ""

    def note(self, now_ms: int, *, is_last: bool = False) -> None:
        """Note the state after a maintenance run. A disk error is logged, and the next run tries again."""
        at = now_ms // min(STEPS)
        if (at == self._noted and not is_last) or self._is_off:
            return
        try:
            self._keep(now_ms, is_last=is_last)
        except LogError as error:
            if str(error) != self._complaint:
                _log.warning("cannot write the history of the tiers: cause=%s", error)
            self._complaint = str(error)
        else:
            self._noted, self._complaint = at, ""

    def _keep(self, now_ms: int, *, is_last: bool) -> None:
        storage, root = self._manager.directories.first_online()
        series = self._series or self._earlier_notes()
        if series is None:
            return
        self._series = series
        if is_last or not series.total.has(now_ms):  # the previous manager may have noted this step
            series.add(*points_now(self._manager, now_ms))
            self._is_written = False
        if not self._is_written:
            replace_file(storage, join(root, FILE), series.encoded())
            self._is_written = True

    def _earlier_notes(self) -> TierSeries | None:
        """Return earlier notes; None if a newer version wrote them. Raises the disk's errors, to keep the file."""
        storage, root = self._manager.directories.first_online()
        with suppress(NotFound):
            storage.read(join(root, FILE))
        try:
            return read_series(self._manager.directories.places(), is_writer=True)
        except InvalidRequest as error:
            self._is_off = True
            _log.warning("the history of the tiers is disabled: error=%s", error)
            return None


def points_now(manager: LogManager, now_ms: int) -> tuple[TierPoint, dict[str, TierPoint]]:
    """Return the state of all topics together and of each, without a request; unread figures are None."""
    found: dict[str, list[PartitionStatus]] = {topic.name: [] for topic in manager.topics.all()}
    for snapshot in snapshots_at_hand(manager, now_ms):
        found.setdefault(snapshot.partition.topic, []).append(partition_status(snapshot))
    counts = {topic.name: topic.partition_count for topic in manager.topics.all()}
    unseen = {each.name.topic for each in manager.partitions.all() if is_unseen(manager, each)}
    dollars = _dollars(manager)
    points = {
        name: TierPoint(
            at_ms=now_ms,
            local_bytes=sum(each.local_bytes for each in some),
            **{field: sum(getattr(each, field) for each in some) if name not in unseen else None for field in _REMOTE},
            dollars_per_month=dollars.get(name, 0.0) if dollars is not None and name not in unseen else None,
            missing_partitions=max(0, counts.get(name, 0) - len(some)),
        )
        for name, some in found.items()
    }
    total = TierPoint(
        at_ms=now_ms,
        local_bytes=sum(each.local_bytes for each in points.values()),
        **{field: _known_sum(getattr(each, field) for each in points.values()) for field in _REMOTE},
        dollars_per_month=_known_sum((each.dollars_per_month for each in points.values()), 0.0),
        missing_partitions=sum(each.missing_partitions for each in points.values()),
    )
    return total, points


def read_series(places: Iterable[tuple[Storage, str]], *, is_writer: bool = False) -> TierSeries:
    """Return the notes of all log directories; a damaged file counts as missing.

    With `is_writer` raises InvalidRequest for a file of a newer version.
    """
    found = TierSeries()
    for storage, root in places:
        try:
            found.join(TierSeries.decoded(storage.read(join(root, FILE))))
        except NotFound:
            continue
        except InvalidRequest:
            if is_writer:
                raise
        except LogError as error:
            _log.warning("the history file is unreadable, a new one begins: file=%s cause=%s", join(root, FILE), error)
    return found


def _dollars(manager: LogManager) -> dict[str, float] | None:
    try:
        prices = configured_prices(manager.config)
    except LogError as error:
        _log.warning("dollars are not recorded: error=%s", error)
        return None
    found: dict[str, float] = {}
    for name, cost in storage_costs(manager, prices).items():
        found[name.topic] = found.get(name.topic, 0.0) + cost.total
    return found


def _known_sum(values: Iterable[Figure | None], zero: Figure | int = 0) -> Figure | int | None:
    known = list(values)
    return None if None in known else sum((each for each in known if each is not None), zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHistory:
    """Notes within ``[since_ms, until_ms]``, by time, at most one for each `step_ms`.

    `topic` is None for all topics together. `begun_ms` is the time of the oldest note, None without notes.
    """

    topic: str | None
    since_ms: int
    until_ms: int
    step_ms: int
    points: tuple[TierPoint, ...]
    begun_ms: int | None

    def rows(self) -> list[dict[str, object]]:
        return [{"topic": self.topic, **asdict(each)} for each in self.points]

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with `at` as a time in UTC. Raises ImportError."""
        import pandas

        frame = pandas.DataFrame(self.rows(), columns=["topic", *TierPoint.__dataclass_fields__])
        frame.insert(1, "at", pandas.to_datetime(frame.pop("at_ms"), unit="ms", utc=True))
        return frame


def tier_history(
    config: Config, now_ms: int, *, span_ms: int = SPAN_MS, topics: Sequence[str] = (), storage: Storage | None = None
) -> list[TierHistory]:
    """Return the last `span_ms`, of all topics together or of each of `topics`. Raises NotFound without notes."""
    disk = storage or DiskStorage()
    found = read_series([(disk, root) for root in config.data_dirs])
    for name in topics:
        if name not in found.topics:
            raise NotFound("cannot read the history of a topic", topic=name)
    return [history_of(found, name, now_ms, span_ms) for name in topics or (None,)]


def history_of(found: TierSeries, topic: str | None, now_ms: int, span_ms: int) -> TierHistory:
    series = found.of(topic)
    step_ms = series.step_for(span_ms, now_ms)
    begun = series.oldest_ms
    return TierHistory(
        topic=topic,
        since_ms=now_ms - span_ms,
        until_ms=now_ms,
        step_ms=step_ms,
        points=tuple(series.points(step_ms, now_ms - span_ms, now_ms)),
        begun_ms=begun if begun is not None and begun <= now_ms else None,
    )


def still_there(manager: LogManager, topics: Iterable[str] | None = None) -> list[tuple[int, int]]:
    """Return (time, bytes): a lower bound of the bytes in the bucket at that time, ascending in both.

    Segments count from the commit of their entries or of their page, those of an external layout not at all.
    """
    came: list[tuple[int, int]] = []
    for held in manager.partitions.all(topics):
        manifest = held.manifest()
        if manifest is None or manifest.tier_disabled:
            continue
        rows = (row for row in manifest.segments if row.committed_ms and row.state is SegmentState.COPY_FINISHED)
        came += [(row.committed_ms, row.size_bytes) for row in rows]
        for page in manifest.pages:
            key = parse_page_key(page.key)
            if key is not None:
                came.append((ulid_ms(key.ulid), page.size_bytes))
    found: list[tuple[int, int]] = []
    for at_ms, size_bytes in sorted(came):
        reached = size_bytes + (found[-1][1] if found else 0)
        if found and found[-1][0] == at_ms:
            found.pop()
        found.append((at_ms, reached))
    return found
