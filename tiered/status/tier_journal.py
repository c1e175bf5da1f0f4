"""Journal of a running manager: figures of both tiers every five minutes, and reading them back.

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
from typing import TypeVar

from local.errors import InvalidRequest, LogError, NotFound
from local.storage import Storage, join, replace_file
from tiered.config.price_file import configured_prices
from tiered.manager.manager import LogManager
from tiered.partition.partition import Partition
from tiered.partition.partition_status import PartitionStatus, partition_status
from tiered.status.status_report import snapshots_at_hand
from tiered.status.storage_cost import storage_costs
from tiered.status.tier_series import FILE, STEPS, TierPoint, TierSeries

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
        storage, root = self._manager.first_directory()
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
        storage, root = self._manager.first_directory()
        with suppress(NotFound):
            storage.read(join(root, FILE))
        try:
            return read_series(self._manager.directory_places(), is_writer=True)
        except InvalidRequest as error:
            self._is_off = True
            _log.warning("the history of the tiers is disabled: error=%s", error)
            return None


def look(manager: LogManager, now_ms: int) -> tuple[TierPoint, dict[str, TierPoint]]:
    """Return the state of the tiers, of all topics together and of each, without a request.

    Not counted: partitions that did not open. None: remote figures of topics with a remote tier not read since the
    start, and dollars while the prices cannot be read.
    """
    found: dict[str, list[PartitionStatus]] = {topic.name: [] for topic in manager.topics()}
    for snapshot in snapshots_at_hand(manager, now_ms):
        found.setdefault(snapshot.partition.topic, []).append(partition_status(snapshot))
    counts = {topic.name: topic.partition_count for topic in manager.topics()}
    unseen = {each.name.topic for each in manager.partitions() if is_unseen(manager, each)}
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


def is_unseen(manager: LogManager, held: Partition) -> bool:
    """Return whether the content of a partition's remote tier is unknown here."""
    return held.is_tiered and held.reconciled_manifest() is None and held.name in manager.problems


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


__all__ = ["FILE", "TierJournal", "is_unseen", "look", "read_series"]
