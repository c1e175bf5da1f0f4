"""Measured history of a topic: arrival rate, and the effect of compaction, compression and the index.

| figure | measured on |
|---|---|
| rates and ratios | segment entries in the bucket, segments on the disk |
| batches, compression | samples of real segments: the newest on the disk, else of the bucket |
| size of a manifest | the newest manifest |
| reads | the request meter |

A figure without a measurement has the default of `Workload`, and `basis` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Any

import msgspec

from local.errors import LogError
from local.format.batch_header import read_header
from local.names import TopicPartition
from local.segment.segment import Segment
from local.segment.segment_info import SegmentInfo
from policies.cost.scenarios import Stream
from policies.cost.simulation import Reads, Workload
from policies.cost.storage_cost import DAY_MS, DAYS_PER_MONTH
from policies.formatting import counted, format_ms
from remote.keys import topic_directory
from remote.manifest.manifest import Manifest, encode_line
from remote.segment_entry import SegmentEntry
from remote.segments.chunk_table import CHUNK_BYTES, ZSTD
from remote.segments.object_encoding import Seal
from remote.store import Body
from remote.store.middleware.metered_store import RequestCounts
from tiered.config.price_file import new_class
from tiered.cost.arrival_rate import Mark, Piece, arrival, by_offsets, first_mark, given_arrival, rates_of, steady
from tiered.cost.topic_cost import all_rows
from tiered.manager.manager import LogManager
from tiered.node.problems import flat
from tiered.partition.partition import Partition
from tiered.status.status_report import unread_partitions
from tiered.stores.persistent_meter import RequestHistory

SAMPLES_MAX = 4  # sampled segments
SAMPLE_BYTES = 2 * CHUNK_BYTES  # of each, so that a batch of the largest size fits
_ZSTD = Seal(codec=ZSTD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A stream with its basis. `stream` is None for a topic without a forecast.

    `warning` says why, with a next step: the history is shorter than a day, or a tier could not be read. It is None for
    a topic that has never stored anything.
    """

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

    Without `may_ask` no request is sent: older segments in the bucket are then unknown. `rates` are bytes a day by
    topic, instead of measured ones; the key None stands for the only topic. A topic with an unreadable tier has no
    stream.
    """
    history = manager.request_history()
    wanted = None if topics is None else set(topics)
    for name in wanted or ():
        manager.topic(name)
    chosen = [each for each in manager.topics() if each.was_tiered and (wanted is None or each.name in wanted)]
    names = sorted(each.name for each in chosen)
    given = rates_of(rates, names) if rates else {}
    unread = {name.topic: error for name, error in unread_partitions(manager, names).items()}
    return [
        _unread(name, unread[name])
        if name in unread
        else measured(manager, name, now_ms, history, may_ask=may_ask, bytes_per_day=given.get(name))
        for name in names
    ]


def _unread(topic: str, error: LogError) -> Measured:
    warning = f"{topic}: omitted, its remote tier is unreadable: {flat(error)}"
    return Measured(topic=topic, stream=None, basis=("a remote tier is unreadable",), warning=warning, is_unread=True)


def measured(
    manager: LogManager,
    topic: str,
    now_ms: int,
    history: RequestHistory | None,
    *,
    may_ask: bool = True,
    bytes_per_day: float | None = None,
) -> Measured:
    """Measure one topic. All its partitions are combined, and each counts as the average."""
    held = manager.partitions([topic])
    entries_of = {each.name: list(all_rows(each) if may_ask else _rows_at_hand(each)) for each in held}
    rows = [row for each in entries_of.values() for row in each]
    pieces = [Piece(size_bytes=row.size_bytes, min_ms=row.min_timestamp_ms, max_ms=row.max_timestamp_ms)
              for row in rows if row.min_timestamp_ms is not None and row.max_timestamp_ms is not None]  # fmt: skip
    samples = list(_samples(held))
    if not held or not (pieces or samples):
        return Measured(topic=topic, stream=None, basis=("no records are stored yet",))
    shares = _shares(rows, held[0])
    settings = held[0].log.settings
    beginnings: list[tuple[TopicPartition, Body]]
    beginnings = [(name, segment.read(0, min(segment.size_bytes, SAMPLE_BYTES))) for name, segment in samples]
    beginnings = beginnings or (list(_remote_samples(held)) if may_ask else [])
    looked_at = [data for _, data in beginnings]
    batch_bytes, zstd = _batches(looked_at)
    if bytes_per_day is None:
        marks = [_marks(each, entries_of[each.name], beginnings) for each in held]
        compacted = by_offsets(marks, _record_bytes(rows)) if shares[0] < 1 else None
        local = [segment for _, segment in samples]
        arriving = compacted or arrival(pieces, local, batch_bytes, shares[0], len(held))
    else:
        arriving = given_arrival(bytes_per_day, len(held))
    size, every_ms = steady(batch_bytes, arriving.bytes_per_ms)
    workload = Workload(
        batch_bytes=size,
        batch_ms=every_ms,
        segment_bytes=settings.segment_bytes,
        segment_ms=settings.roll_ms,
        compacted_share=shares[0],
        stored_share=shares[1],
        tick_ms=manager.config.int_of("remote.log.manager.task.interval.ms"),
    )
    workload = _with_index(workload, rows, _manifests(held))
    if (warning := arriving.warning(topic)) is not None:
        return Measured(topic=topic, stream=None, basis=(arriving.said,), warning=warning)
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
    where = "on the disk" if samples else "in the bucket"
    basis: tuple[str, ...] = (
        arriving.said,
        f"{counted(len(rows), 'segment')} in the bucket",
        f"{counted(len(looked_at), 'segment')} sampled {where}",
    )
    if read:
        basis = (*basis, f"reads of the last {max(metered_ms, DAY_MS) / DAY_MS:.1f} days")
    basis += _caveats(held, pieces, now_ms)
    older = 0 if may_ask else sum(page.segment_count for manifest in _manifests(held) for page in manifest.pages)
    if older:
        basis = (*basis, f"{older} older segments are not counted")
    return Measured(topic=topic, stream=stream, basis=basis)


def _marks(
    held: Partition, rows: Iterable[SegmentEntry], beginnings: Iterable[tuple[TopicPartition, Body]]
) -> list[Mark]:
    """Return marks at the ends of the segments of both tiers, and at the starts of sampled segments."""
    ends: list[SegmentEntry | SegmentInfo] = [*rows, *held.log.segments()]
    found = [Mark(next_offset=each.next_offset, at_ms=each.max_timestamp_ms)
             for each in ends if each.max_timestamp_ms is not None]  # fmt: skip
    firsts = [first_mark(data) for name, data in beginnings if name == held.name]
    return [*found, *(each for each in firsts if each is not None)]


def _record_bytes(rows: Iterable[SegmentEntry]) -> float:
    """Return the average bytes of a record with its part of a batch; 0 without records."""
    known = [(row.size_bytes, row.record_count) for row in rows]
    return sum(size for size, _ in known) / max(1, sum(count for _, count in known))


def _caveats(held: Sequence[Partition], pieces: Sequence[Piece], now_ms: int) -> tuple[str, ...]:
    """Return the points in which the forecast month differs from the past."""
    ends = [piece.max_ms for piece in pieces]
    ends += [
        info.max_timestamp_ms for each in held for info in each.log.segments() if info.max_timestamp_ms is not None
    ]
    idle_ms, limits = now_ms - max(ends, default=now_ms), held[0].rules.log_limits
    return (
        *(
            [f"no records arrived for {format_ms(idle_ms)}, simulated with the earlier rate"]
            if idle_ms > DAY_MS
            else []
        ),
        *(["retained without limit, shown after a year"] if limits.ms is limits.bytes is None else []),
    )


def _manifests(held: Sequence[Partition]) -> list[Manifest]:
    return [manifest for each in held if (manifest := each.manifest()) is not None]


def _rows_at_hand(held: Partition) -> tuple[SegmentEntry, ...]:
    """Return the newest entries, which are in the manifest itself."""
    manifest = held.manifest()
    return (*manifest.segments, *manifest.view_entries) if manifest is not None else ()


def manifest_costs(manifest: Manifest) -> dict[str, Any]:
    """Return sizes of a manifest and of its entries, pending deletes and pages: fields of `Workload`."""
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
    """Measure the size of 1, 2, 4, ... and all entries.

    The first entries take the most bytes, because compression has not seen similar ones yet.
    """
    base, counts = _encoded(bare), [*takewhile(len(rows).__gt__, (1 << power for power in count())), len(rows)]
    curve = tuple((each, float(_encoded(replace(bare, segments=rows[:each])) - base)) for each in counts)
    found: dict[str, Any] = {"first_rows": curve}
    if len(curve) > 1:
        (fewer, before), (all_of_them, together) = curve[-2:]
        found["row_bytes"] = max(1.0, (together - before) / (all_of_them - fewer))
    return found


def _encoded(manifest: Manifest) -> int:
    return len(encode_line(msgspec.json.encode(manifest)))


def _with_index(workload: Workload, rows: Sequence[SegmentEntry], manifests: Sequence[Manifest]) -> Workload:
    """Add index sizes: the average of the index share, and the sizes of the largest manifest."""
    if rows:
        share = sum(row.indexes_bytes for row in rows) / max(1, sum(row.size_bytes for row in rows))
        workload = replace(workload, index_base_bytes=0.0, index_share=share)
    if manifests:
        of = manifest_costs(max(manifests, key=lambda manifest: manifest.segment_count))
        workload = replace(workload, **of)
    return workload


def _shares(rows: Sequence[SegmentEntry], held: Partition) -> tuple[float, float]:
    """Return (share of records left by compaction, share of bytes left by compression).

    The share of bytes left by compaction is assumed to be the same.
    """
    size = sum(row.size_bytes for row in rows)
    stored = sum(row.stored_bytes for row in rows) / size if size else 1.0
    cleaned = [row for row in rows if row.cleaned_through is not None]
    offsets = sum(row.next_offset - row.base_offset for row in cleaned)
    kept = sum(row.record_count for row in cleaned)
    compacted = max(kept, 1) / offsets if held.rules.cleanup_compact and offsets else 1.0
    return min(1.0, compacted), stored


def _samples(held: Sequence[Partition]) -> Iterable[tuple[TopicPartition, Segment]]:
    """Yield the newest closed segments on the disk, of any partition; active ones only after them."""
    closed = [(each, info) for each in held for info in each.log.segments() if not info.is_empty]
    newest = sorted(closed, key=lambda pair: (pair[1].is_active, -(pair[1].max_timestamp_ms or 0)))
    for partition, info in newest[:SAMPLES_MAX]:
        yield partition.name, partition.log.segment(info.base_offset)


def _remote_samples(held: Sequence[Partition]) -> Iterator[tuple[TopicPartition, Body]]:
    """Yield the starts of a few of the newest remote segments; two GETs each, unless cached."""
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
        packed += sum(
            len(_ZSTD.close(0, data[start : min(at, start + CHUNK_BYTES)])) for start in range(0, at, CHUNK_BYTES)
        )
    if not batches:
        return 64 << 10, None
    return bytes_seen / batches, min(1.0, packed / bytes_seen)


def _reads(
    manager: LogManager, topic: str, history: RequestHistory | None, rows: Sequence[SegmentEntry], now_ms: int
) -> tuple[float, int, int]:
    """Return (share of stored bytes read in a month, bytes of an average data GET, metered ms)."""
    directory = topic_directory(topic, manager.topic(topic).topic_id)
    counts, period_ms = history.recent(directory, now_ms) if history is not None else (RequestCounts(), 0)
    stored = sum(row.stored_bytes for row in rows)
    if not stored or not counts.data_bytes_out:
        return 0.0, Reads(every_ms=DAY_MS).range_bytes, period_ms
    months = max(period_ms, DAY_MS) / DAY_MS / DAYS_PER_MONTH
    uploads = counts.puts - counts.data_puts  # each upload of a segment asks once for the size of its data
    gets = max(1, counts.data_gets - min(counts.data_gets - 1, counts.heads // 2 if uploads else 0))
    return counts.data_bytes_out / stored / months, max(1, counts.data_bytes_out // gets), period_ms


__all__ = ["Measured", "manifest_costs", "measured", "measured_streams"]
