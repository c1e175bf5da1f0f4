"""Notes of a manager at work on how both tiers stand, every five minutes, and reading them back.

``tier-history.bin`` (`tiered.status.tier_series`) in the first log directory that is online. It is put in its place
whole (`local.storage.storage.replace_file`) after a round, when the last note is from other five minutes, and at the
end: a crash leaves the notes up to the one before or with the new one. Notes are read from all log directories, since
the first one may have been offline for a while. Nothing depends on them but what people are shown: a damaged file is
begun anew, and one of a newer version is left as it is, without notes until that version works again.
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
from tiered.status.storage_cost import keeping_costs
from tiered.status.tier_series import FILE, STEPS, TierPoint, TierSeries

_log = logging.getLogger(__name__)
Figure = TypeVar("Figure", int, float)


class TierJournal:
    """Keeps the notes of one manager. Not thread safe: rounds come one after the other."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager
        self._series: TierSeries | None = None
        self._noted: int | None = None  # the five minutes of the last note
        self._is_written = True
        self._is_off = False
        self._complaint = ""

    def note(self, now_ms: int, *, is_last: bool = False) -> None:
        """A round is over; the last one leaves how it stands at the end in the place of what was noted before.

        A disk that refuses is told in the log, and tried again after the next round.
        """
        at = now_ms // min(STEPS)
        if (at == self._noted and not is_last) or self._is_off:
            return
        try:
            self._keep(now_ms, is_last=is_last)
        except LogError as error:
            if str(error) != self._complaint:
                _log.warning("notes on the tiers could not be kept: cause=%s", error)
            self._complaint = str(error)
        else:
            self._noted, self._complaint = at, ""

    def _keep(self, now_ms: int, *, is_last: bool) -> None:
        storage, root = self._manager.first_directory()
        series = self._series or self._begun()
        if series is None:
            return
        self._series = series
        if is_last or not series.total.has(now_ms):  # as the manager before this one may have done
            series.add(*look(self._manager, now_ms))
            self._is_written = False
        if not self._is_written:
            replace_file(storage, join(root, FILE), series.encoded())
            self._is_written = True

    def _begun(self) -> TierSeries | None:
        """What was noted before; None where that is not to be written over. Raises what the disk raises of the very
        file that is to be replaced: years of notes are not begun anew for a read that failed."""
        storage, root = self._manager.first_directory()
        with suppress(NotFound):
            storage.read(join(root, FILE))
        try:
            return read_series(self._manager.directory_places(), is_writer=True)
        except InvalidRequest as error:
            self._is_off = True
            _log.warning("no notes on the tiers are taken: error=%s", error)
            return None


def look(manager: LogManager, now_ms: int) -> tuple[TierPoint, dict[str, TierPoint]]:
    """How the tiers stand, of all topics together and of each; no request is sent for it.

    What has no figure: partitions that did not open, the bucket's part of topics of which it was not seen since the
    start, dollars while the prices cannot be read.
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
    """Whether what the bucket holds of it is not known here."""
    return held.is_tiered and held.agreed_head() is None and held.name in manager.problems


def read_series(places: Iterable[tuple[Storage, str]], *, is_writer: bool = False) -> TierSeries:
    """The notes of all log directories. A damaged file is as if there were none.

    Raises InvalidRequest for a file of a newer version to one who would write over it.
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
            _log.warning("notes cannot be read and are begun anew: file=%s cause=%s", join(root, FILE), error)
    return found


def _dollars(manager: LogManager) -> dict[str, float] | None:
    """A month's by topic; None while the prices cannot be read."""
    try:
        prices = configured_prices(manager.config)
    except LogError as error:
        _log.warning("dollars are not noted: error=%s", error)
        return None
    found: dict[str, float] = {}
    for name, kept in keeping_costs(manager, prices).items():
        found[name.topic] = found.get(name.topic, 0.0) + kept.total
    return found


def _sum(points: Sequence[TierPoint], now_ms: int) -> TierPoint:
    """Of all topics; not known where it is not of one of them."""
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
