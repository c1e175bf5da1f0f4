"""Measured history of a topic: arrival rate, and the effect of compaction, compression and the index.

| figure | measured on |
|---|---|
| rates and ratios | segment entries in the bucket, segments on the disk |
| batches, compression | samples of real segments: the newest on the disk, else of the bucket |
| size of a manifest | the newest manifest |
| reads | the request meter |

A figure without a measurement has the default of `Workload`. A history shorter than `HISTORY_LEAST_MS` has no night and
no quiet hour: such a topic has no figures without a given rate. The rate of a compacted log is measured by offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Any, NamedTuple

import msgspec

from local.errors import InvalidRequest
from local.facts import SegmentInfo
from local.format.batch_header import HEADER_BYTES, read_header
from local.names import TopicPartition
from local.segment.segment import Segment
from local.settings import LogSettings
from policies.cost.scenarios import Stream
from policies.cost.simulation import Reads, Workload
from policies.cost.storage_cost import DAY_MS, DAYS_PER_MONTH, held_part_bytes
from policies.formatting import counted
from policies.rules import Limits
from remote.keys import topic_directory
from remote.manifest.manifest import Manifest, encode_line
from remote.segment_entry import SegmentEntry
from remote.segments.stored_segment import CHUNK_BYTES, ZSTD, Seal
from remote.store import Body
from remote.store.middleware.store_wrapper import RequestCounts
from tiered.config.price_file import new_class
from tiered.config.units import format_bytes, format_ms, parse_bytes
from tiered.cost.topic_cost import all_entries
from tiered.manager.manager import LogManager
from tiered.node.problems import flat
from tiered.partition.partition import Partition
from tiered.status.status_report import unread_partitions
from tiered.stores.persistent_meter import RequestHistory

SAMPLES_MAX = 4  # sampled segments
SAMPLE_BYTES = 2 * CHUNK_BYTES  # of each, so that a batch of the largest size fits
_ZSTD = Seal(codec=ZSTD)
RATE_MS = 30 * DAY_MS  # a rate is measured over this much of the past
HISTORY_LEAST_MS = DAY_MS  # a shorter history gives no forecast
BATCH_MS_EXACT = 1000  # batches further apart than this lose no precision to whole milliseconds
_UNITS_MS = {"s": 1000, "h": 3_600_000, "d": DAY_MS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One topic. `stream` None: no forecast; `warning`: why, and the next step (None: no data)."""

    topic: str
    stream: Stream | None
    basis: tuple[str, ...]
    warning: str | None = None
    is_unread: bool = False


def measured_streams(
    manager: LogManager,
    now_ms: int,
    topics: Iterable[str] | None = None,
    *,
    may_ask: bool = True,
    rates: Mapping[str | None, float] | None = None,
) -> list[Measured]:
    """Measure every tiered topic (or `topics`), by name. Reads samples of local segments, changes nothing.

    Without `may_ask` no request is sent. `rates`, bytes a day by topic (None: the only one), replace measured ones.
    """
    history = manager.store.history() if manager.store is not None else None
    wanted = None if topics is None else set(topics)
    for name in wanted or ():
        manager.topics.get(name)
    tiered = [each.name for each in manager.topics.all() if each.was_tiered]
    names = sorted(name for name in tiered if wanted is None or name in wanted)
    given = rates_of(rates, names) if rates else {}
    unread = {name.topic: error for name, error in unread_partitions(manager, names).items()}
    found = []
    for name in names:
        if name in unread:
            why = f"{name}: omitted, its remote tier is unreadable: {flat(unread[name])}"
            basis = ("a remote tier is unreadable",)
            found.append(Measured(topic=name, stream=None, basis=basis, warning=why, is_unread=True))
        else:
            found.append(measured(manager, name, now_ms, history, may_ask=may_ask, bytes_per_day=given.get(name)))
    return found


def measured(
    manager: LogManager,
    topic: str,
    now_ms: int,
    history: RequestHistory | None,
    *,
    may_ask: bool = True,
    bytes_per_day: float | None = None,
) -> Measured:
    held = manager.partitions.all([topic])
    entries_of = {each.name: list(all_entries(each, may_ask=may_ask)) for each in held}
    rows = [row for each in entries_of.values() for row in each]
    times = [(row.size_bytes, row.min_timestamp_ms, row.max_timestamp_ms) for row in rows]
    pieces = [Piece(size, first, last) for size, first, last in times if first is not None and last is not None]
    samples = list(_samples(held))
    if not held or not (pieces or samples):
        return Measured(topic=topic, stream=None, basis=("no records are stored yet",))
    shares = _shares(rows, held[0])
    beginnings: list[tuple[TopicPartition, Body]]
    beginnings = [(name, segment.read(0, min(segment.size_bytes, SAMPLE_BYTES))) for name, segment in samples]
    beginnings = beginnings or (list(_remote_samples(held)) if may_ask else [])
    batch_bytes, zstd = _batches([data for _, data in beginnings])
    if bytes_per_day is None:
        marks = [_marks(each, entries_of[each.name], beginnings) for each in held]
        record_bytes = sum(row.size_bytes for row in rows) / max(1, sum(row.record_count for row in rows))
        compacted = by_offsets(marks, record_bytes) if shares[0] < 1 else None
        local = [segment for _, segment in samples]
        arriving = compacted or arrival(pieces, local, batch_bytes, shares[0], len(held))
    else:
        arriving = given_arrival(bytes_per_day, len(held))
    if (warning := arriving.warning(topic)) is not None:
        return Measured(topic=topic, stream=None, basis=(arriving.said,), warning=warning)
    manifests = [manifest for each in held if (manifest := each.manifest()) is not None]
    batch = steady(batch_bytes, arriving.bytes_per_ms)
    workload = _workload(manager, held[0].log.settings, batch, shares, rows, manifests)
    read, range_bytes, metered_ms = _reads(manager, topic, history, rows, now_ms)
    if read:
        workload = replace(workload, reads=Reads(every_ms=DAY_MS, share=read / DAYS_PER_MONTH, range_bytes=range_bytes))
    stream = Stream(
        topic=topic,
        partitions=len(held),
        workload=workload,
        rules=held[0].rules,
        storage_class=new_class(manager.config),
        read_share=read,
        zstd_share=zstd,
    )
    older = 0 if may_ask else sum(page.segment_count for manifest in manifests for page in manifest.pages)
    basis = (
        arriving.said,
        f"{counted(len(rows), 'segment')} in the bucket",
        f"{counted(len(beginnings), 'segment')} sampled {'on the disk' if samples else 'in the bucket'}",
        *([f"reads of the last {max(metered_ms, DAY_MS) / DAY_MS:.1f} days"] if read else []),
        *_caveats(held, pieces, now_ms),
        *([f"{older} older segments are not counted"] if older else []),
    )
    return Measured(topic=topic, stream=stream, basis=basis)


def _marks(
    held: Partition, rows: Iterable[SegmentEntry], beginnings: Iterable[tuple[TopicPartition, Body]]
) -> list[Mark]:
    ends: list[SegmentEntry | SegmentInfo] = [*rows, *held.log.segments()]
    found = [Mark(each.next_offset, each.max_timestamp_ms) for each in ends if each.max_timestamp_ms is not None]
    firsts = [first_mark(data) for name, data in beginnings if name == held.name]
    return [*found, *(each for each in firsts if each is not None)]


def _caveats(held: Sequence[Partition], pieces: Sequence[Piece], now_ms: int) -> Iterator[str]:
    ends = [info.max_timestamp_ms for each in held for info in each.log.segments()]
    newest_ms = max((ms for ms in (*ends, *(piece.max_ms for piece in pieces)) if ms is not None), default=now_ms)
    if now_ms - newest_ms > DAY_MS:
        yield f"no records arrived for {format_ms(now_ms - newest_ms)}, simulated with the earlier rate"
    if held[0].rules.log_limits == Limits(None, None):
        yield "retained without limit, shown after a year"


def manifest_costs(manifest: Manifest) -> dict[str, Any]:
    bare = replace(manifest, segments=(), pending_deletes=(), pages=(), views=())
    base = float(_encoded(bare))
    found: dict[str, Any] = {"manifest_base_bytes": base}
    if manifest.segments:
        found |= _row_costs(bare, manifest.segments)
    if manifest.pending_deletes:
        with_rows = replace(bare, segments=manifest.segments)
        more = _encoded(replace(with_rows, pending_deletes=manifest.pending_deletes)) - _encoded(with_rows)
        found["unlinked_bytes"] = max(1.0, more / len(manifest.pending_deletes))
    if manifest.pages:
        found["page_bytes_due"] = max(1.0, (_encoded(replace(bare, pages=manifest.pages)) - base) / len(manifest.pages))
        pages = sum(page.segment_count for page in manifest.pages)
        found["page_row_bytes"] = sum(page.page_bytes for page in manifest.pages) / pages
    return found


def _row_costs(bare: Manifest, rows: tuple[SegmentEntry, ...]) -> dict[str, Any]:
    """Sizes by number of entries: the first entries take the most bytes, because compression learns."""
    base, counts = _encoded(bare), [*takewhile(len(rows).__gt__, (1 << power for power in count())), len(rows)]
    curve = tuple((each, float(_encoded(replace(bare, segments=rows[:each])) - base)) for each in counts)
    found: dict[str, Any] = {"first_rows": curve}
    if len(curve) > 1:
        (fewer, before), (all_of_them, together) = curve[-2:]
        found["row_bytes"] = max(1.0, (together - before) / (all_of_them - fewer))
    return found


def _encoded(manifest: Manifest) -> int:
    return len(encode_line(msgspec.json.encode(manifest)))


def _workload(
    manager: LogManager,
    settings: LogSettings,
    batch: tuple[int, int],
    shares: tuple[float, float],
    rows: Sequence[SegmentEntry],
    manifests: Sequence[Manifest],
) -> Workload:
    found: dict[str, Any] = {"segment_bytes": settings.segment_bytes, "segment_ms": settings.roll_ms}
    found |= {"compacted_share": shares[0], "stored_share": shares[1]}
    if rows:
        share = sum(row.indexes_bytes for row in rows) / max(1, sum(row.size_bytes for row in rows))
        found |= {"index_base_bytes": 0.0, "index_share": share, "part_bytes": held_part_bytes(rows)}
    if manifests:
        found |= manifest_costs(max(manifests, key=lambda manifest: manifest.segment_count))
    tick_ms = manager.config.int_of("remote.log.manager.task.interval.ms")
    return Workload(batch_bytes=batch[0], batch_ms=batch[1], tick_ms=tick_ms, **found)


def _shares(rows: Sequence[SegmentEntry], held: Partition) -> tuple[float, float]:
    """Return (share of records left by compaction, share of bytes left by compression)."""
    size = sum(row.size_bytes for row in rows)
    stored = sum(row.stored_bytes for row in rows) / size if size else 1.0
    cleaned = [row for row in rows if row.cleaned_through is not None]
    offsets = sum(row.next_offset - row.base_offset for row in cleaned)
    records = sum(row.record_count for row in cleaned)
    return min(1.0, max(records, 1) / offsets if held.rules.cleanup_compact and offsets else 1.0), stored


def _samples(held: Sequence[Partition]) -> Iterable[tuple[TopicPartition, Segment]]:
    closed = [(each, info) for each in held for info in each.log.segments() if not info.is_empty]
    newest = sorted(closed, key=lambda pair: (pair[1].is_active, -(pair[1].max_timestamp_ms or 0)))
    for partition, info in newest[:SAMPLES_MAX]:
        yield partition.name, partition.log.segment(info.base_offset)


def _remote_samples(held: Sequence[Partition]) -> Iterator[tuple[TopicPartition, Body]]:
    """Yield the starts of the newest remote segments; two GETs each, unless cached."""
    for partition in held[:SAMPLES_MAX]:
        manifest = partition.manifest()
        if partition.remote is not None and manifest is not None and manifest.segments:
            yield partition.name, partition.remote.read(manifest.segments[-1], 0, SAMPLE_BYTES)


def _batches(samples: Sequence[Body]) -> tuple[float, float | None]:
    """Return (average bytes of a batch, share of bytes left by zstd), from the start of each sample."""
    bytes_seen = batches = packed = 0
    for data in samples:
        at = 0
        while (header := read_header(data, at)) is not None and at + header.size_bytes <= len(data):
            at += header.size_bytes
            batches += 1
        bytes_seen += at
        starts = range(0, at, CHUNK_BYTES)
        packed += sum(len(_ZSTD.close(0, data[start : min(at, start + CHUNK_BYTES)])) for start in starts)
    if not batches:
        return 64 << 10, None
    return bytes_seen / batches, min(1.0, packed / bytes_seen)


def _reads(
    manager: LogManager, topic: str, history: RequestHistory | None, rows: Sequence[SegmentEntry], now_ms: int
) -> tuple[float, int, int]:
    """Return (share of stored bytes read in a month, bytes of an average data GET, metered ms)."""
    directory = topic_directory(topic, manager.topics.get(topic).topic_id)
    counts, period_ms = history.recent(directory, now_ms) if history is not None else (RequestCounts(), 0)
    stored = sum(row.stored_bytes for row in rows)
    if not stored or not counts.data_bytes_out:
        return 0.0, Reads(every_ms=DAY_MS).range_bytes, period_ms
    months = max(period_ms, DAY_MS) / DAY_MS / DAYS_PER_MONTH
    uploads = counts.puts - counts.data_puts  # each upload of a segment asks once for the size of its data
    gets = max(1, counts.data_gets - min(counts.data_gets - 1, counts.heads // 2 if uploads else 0))
    return counts.data_bytes_out / stored / months, max(1, counts.data_bytes_out // gets), period_ms


class Piece(NamedTuple):
    size_bytes: int
    min_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The arrival rate of one partition, before compaction. `seen_ms`: measured span, None if given."""

    bytes_per_ms: float
    said: str
    seen_ms: int | None

    def warning(self, topic: str) -> str | None:
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

    The rate is the entries' bytes over the time from the oldest to the newest record. n batches have n - 1 pauses
    between them, so one batch is subtracted.
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


class Mark(NamedTuple):
    """At `at_ms` all records of a partition below `next_offset` had arrived."""

    next_offset: int
    at_ms: int


def by_offsets(marks: Sequence[Sequence[Mark]], record_bytes: float) -> Arrival | None:
    """Measure the rate of a compacted log by the marks of each partition; None without marks of two times."""
    newest = max((mark.at_ms for each in marks for mark in each), default=0)
    late = [sorted(mark for mark in each if mark.at_ms > newest - RATE_MS) for each in marks]
    firsts = [each[0] for each in late if each]
    known = [(each[-1].next_offset - each[0].next_offset, newest - each[0].at_ms) for each in late if len(each) > 1]
    span = max((newest - each.at_ms for each in firsts), default=0)
    if not (came := sum(offsets for offsets, ms in known if ms > 0)):
        return None
    rate = came / sum(ms for offsets, ms in known if ms > 0) * record_bytes * len(firsts) / len(marks)
    return Arrival(bytes_per_ms=rate, said=f"arrival rate of {_shown(span)}, by offsets", seen_ms=span)


def first_mark(beginning: Body) -> Mark | None:
    first = read_header(beginning[:HEADER_BYTES])
    if first is None or not first.record_count or first.max_timestamp_ms < 0:
        return None
    return Mark(next_offset=first.last_offset + 1, at_ms=first.max_timestamp_ms)


def given_arrival(bytes_per_day: float, partitions: int) -> Arrival:
    said = f"arrival rate as stated, {format_bytes(round(bytes_per_day))} a day"
    return Arrival(bytes_per_ms=bytes_per_day / DAY_MS / partitions, said=said, seen_ms=None)


def steady(batch_bytes: float, bytes_per_ms: float) -> tuple[int, int]:
    """Return (bytes of a batch, whole ms to the next one) of a steady stream; RATE_MS without a rate."""
    size = max(1, round(batch_bytes))
    if not bytes_per_ms:
        return size, RATE_MS
    every_ms = max(1, round(size / bytes_per_ms))
    return (size if every_ms >= BATCH_MS_EXACT else max(1, round(bytes_per_ms * every_ms))), every_ms


def read_rates(texts: Sequence[str]) -> dict[str | None, float]:
    """Parse ``20GiB/d`` (key None) or ``orders=10MiB/s`` to bytes a day by topic. Raises InvalidRequest."""
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
    """Return the rates by topic. Raises InvalidRequest for an unknown topic or an ambiguous rate."""
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
    first = read_header(segment.read(0, min(segment.size_bytes, HEADER_BYTES)))
    largest = segment.max_timestamp_ms
    if first is None or largest is None:
        return segment.size_bytes, 0
    return segment.size_bytes, max(0, largest - first.base_timestamp_ms)
