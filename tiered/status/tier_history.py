"""History of both tiers: bytes on disk and in the bucket, copy lag, bytes at risk, dollars a month.

A running manager notes the figures every five minutes. Times without a running manager have no points. For the time
before the first note `still_there` returns the little that the bucket itself proves.

The file is ``tier-history.bin`` (`tiered.status.tier_series`) in the first online log directory. It is replaced as a
whole (`local.storage.storage.replace_file`) after a maintenance run, if the last note is from another five-minute step,
and at the end. After a crash the file has all notes up to the last one or the one before. Notes are read from all log
directories, because the first one may have been offline. Only displays depend on the notes. A damaged file is replaced
by a new one. A file of a newer version is not changed, and no notes are written until that version runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from local.errors import InvalidRequest, LogError, NotFound
from local.storage import DiskStorage, Storage, join, replace_file
from remote.keys import parse_page_key, ulid_ms
from remote.segment_entry import SegmentState
from tiered.config.config import Config
from tiered.config.price_file import configured_prices
from tiered.manager.manager import LogManager
from tiered.partition.partition_status import PartitionStatus, partition_status
from tiered.status.status_report import is_unseen, snapshots_at_hand, storage_costs
from tiered.status.tier_series import DAY_MS, FILE, STEPS, TierPoint, TierSeries

if TYPE_CHECKING:
    import pandas as pd

    from tiered.manager.manager import LogManager

SPAN_MS = 2 * DAY_MS
_log = logging.getLogger(__name__)
Figure = TypeVar("Figure", int, float)


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
        """Note the state after a maintenance run; the last note replaces the note of the same step.

        A disk error is logged, and the next maintenance run tries again.
        """
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
        series = self._series or self._begun()
        if series is None:
            return
        self._series = series
        if is_last or not series.total.has(now_ms):  # as the previous manager may have done
            series.add(*look(self._manager, now_ms))
            self._is_written = False
        if not self._is_written:
            replace_file(storage, join(root, FILE), series.encoded())
            self._is_written = True

    def _begun(self) -> TierSeries | None:
        """Return the earlier notes; None if they must not be overwritten.

        Raises the disk's errors for the file that is to be replaced: a failed read must not discard years of notes.
        """
        storage, root = self._manager.directories.first_online()
        with suppress(NotFound):
            storage.read(join(root, FILE))
        try:
            return read_series(self._manager.directories.places(), is_writer=True)
        except InvalidRequest as error:
            self._is_off = True
            _log.warning("the history of the tiers is disabled: error=%s", error)
            return None


def look(manager: LogManager, now_ms: int) -> tuple[TierPoint, dict[str, TierPoint]]:
    """Return the state of the tiers, of all topics together and of each, without a request.

    Not counted: partitions that did not open. None: remote figures of topics with a remote tier not read since the
    start, and dollars while the prices cannot be read.
    """
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
            remote_bytes=sum(each.remote_bytes for each in some) if name not in unseen else None,
            lag_bytes=sum(each.lag_bytes for each in some) if name not in unseen else None,
            at_risk_bytes=sum(each.at_risk_bytes for each in some) if name not in unseen else None,
            dollars_per_month=dollars.get(name, 0.0) if dollars is not None and name not in unseen else None,
            missing_partitions=max(0, counts.get(name, 0) - len(some)),
        )
        for name, some in found.items()
    }
    return _sum(list(points.values()), now_ms), points


def read_series(places: Iterable[tuple[Storage, str]], *, is_writer: bool = False) -> TierSeries:
    """Return the notes of all log directories. A damaged file counts as missing.

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
    """Return dollars a month by topic; None while the prices cannot be read."""
    try:
        prices = configured_prices(manager.config)
    except LogError as error:
        _log.warning("dollars are not recorded: error=%s", error)
        return None
    found: dict[str, float] = {}
    for name, kept in storage_costs(manager, prices).items():
        found[name.topic] = found.get(name.topic, 0.0) + kept.total
    return found


def _sum(points: Sequence[TierPoint], now_ms: int) -> TierPoint:
    """Return the sum over all topics; a figure unknown for one topic is unknown."""
    return TierPoint(
        at_ms=now_ms,
        local_bytes=sum(each.local_bytes for each in points),
        remote_bytes=_known_sum((each.remote_bytes for each in points), 0),
        lag_bytes=_known_sum((each.lag_bytes for each in points), 0),
        at_risk_bytes=_known_sum((each.at_risk_bytes for each in points), 0),
        dollars_per_month=_known_sum((each.dollars_per_month for each in points), 0.0),
        missing_partitions=sum(each.missing_partitions for each in points),
    )


def _known_sum(values: Iterable[Figure | None], zero: Figure) -> Figure | None:
    total = zero
    for each in values:
        if each is None:
            return None
        total += each
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class TierHistory:
    """Notes within ``[since_ms, until_ms]``, by time, one for each `step_ms` with a running manager.

    `topic` is None for all topics together. `begun_ms` is the time of the oldest note, None without notes. Times are in
    ms.
    """

    topic: str | None
    since_ms: int
    until_ms: int
    step_ms: int
    points: tuple[TierPoint, ...]
    begun_ms: int | None

    def rows(self) -> list[dict[str, object]]:
        """Return flat fields of each note."""
        return [{"topic": self.topic, **asdict(each)} for each in self.points]

    def to_frame(self) -> pd.DataFrame:
        """Return the rows as a DataFrame with `at` as a time in UTC. Raises ImportError without pandas."""
        import pandas

        names = ["topic", *TierPoint.__dataclass_fields__]
        frame = pandas.DataFrame(self.rows(), columns=names)
        frame.insert(1, "at", pandas.to_datetime(frame.pop("at_ms"), unit="ms", utc=True))
        return frame


def tier_history(
    config: Config,
    now_ms: int,
    *,
    span_ms: int = SPAN_MS,
    topics: Sequence[str] = (),
    storage: Storage | None = None,
) -> list[TierHistory]:
    """Return the last `span_ms` before `now_ms`, of all topics together or of each of `topics`.

    Reads files, takes no lock. The step is the shortest that was recorded over the whole span. Raises NotFound for a
    topic without a note.
    """
    disk = storage or DiskStorage()
    found = read_series([(disk, root) for root in config.data_dirs])
    for name in topics:
        if name not in found.topics:
            raise NotFound("cannot read the history of a topic", topic=name)
    if not topics:
        return [history_of(found, None, now_ms, span_ms)]
    return [history_of(found, name, now_ms, span_ms) for name in topics]


def history_of(found: TierSeries, topic: str | None, now_ms: int, span_ms: int) -> TierHistory:
    """Return a span of notes already read; empty for a topic without notes."""
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

    The bound counts today's segments by the commit time of their entries. Entries in pages of old entries are not read;
    their page's creation time counts. Objects deleted since are not counted. Entries of an external layout, which have
    no time, are left out.
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
