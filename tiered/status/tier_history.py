"""History of both tiers: bytes on disk and in the bucket, copy lag, bytes at risk, dollars a month.

The history has the notes of running managers (`tiered.status.tier_journal`); times without a running manager have no
points. For the time before the first note `still_there` returns the little that the bucket itself proves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from local.errors import NotFound
from local.storage import DiskStorage, Storage
from remote.keys import parse_page_key, ulid_ms
from remote.segment_entry import SegmentState
from tiered.config.config import Config
from tiered.status.tier_journal import read_series
from tiered.status.tier_series import DAY_MS, STEPS, TierPoint, TierSeries

if TYPE_CHECKING:
    import pandas as pd

    from tiered.manager.manager import LogManager

SPAN_MS = 2 * DAY_MS


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
    for held in manager.partitions(topics):
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


__all__ = ["STEPS", "TierHistory", "TierPoint", "history_of", "still_there", "tier_history"]
