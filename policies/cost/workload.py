"""Input and output of `policies.cost.simulation`: stream, readers, requests, bytes of a partition."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from policies.cost.storage_cost import DAY_MS
from policies.rules import PartitionRules, local_expiry_ms

PAUSES_LOOKED_AT = 200  # pauses between batches, to count in how many of them a maintenance pass finds an idle segment
RANGE_BYTES = 8 << 20  # size of one GET of a long read (`remote.fetch.range_reader`)
CELL_BYTES = 16 << 20  # size of one GET of a stream with its full window (`remote.fetch.read_ahead`)

# Costs that no simulation counts, shown with every simulation; docs/explanation/cost-model.md explains each item.
OUTSIDE = (
    "tries again",
    "restarts",
    "scrub, verify and gc",
    "forks",
    "views",
    "transactions",
    "compaction of segments that are in the bucket",
    "bursts",
    "a read cache that is smaller than the data that readers read repeatedly",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Reads of a partition: every `every_ms`, a `share` of the segments up to `oldest_ms` old (None: all)."""

    every_ms: int
    share: float = 1.0  # below 1 it stands for many readers of single segments
    oldest_ms: int | None = None
    range_bytes: int = RANGE_BYTES  # average size of a GET of data
    is_stream: bool = False  # one reader reads everything in cells of CELL_BYTES, not `range_bytes`
    begins: float = 0.0  # extra GETs of a stream before its read-ahead starts
    is_managers: bool = False  # the manager reads: it knows the manifest, prefers the local tier, caches each segment


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One partition's stream and the sizes of its bytes at each stage, all measured."""

    batch_bytes: int  # of a batch, which arrives every `batch_ms`
    batch_ms: int
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    part_bytes: int | None = None  # of an upload; None: as `remote.segment_entry.part_step` chooses it
    compacted_share: float = 1.0  # of a segment, which compaction leaves
    stored_share: float = 1.0  # of that, which compression in the bucket leaves
    index_base_bytes: float = 300.0  # of a segment's indexes, with `index_share` of the segment
    index_share: float = 0.005
    manifest_base_bytes: float = 900.0  # with a size for each entry, each pending delete and each page
    row_bytes: float = 65.0  # of each entry past the last of `first_rows`
    # measured points (entries, their total bytes), with linear interpolation: the first entries compress worse
    first_rows: tuple[tuple[int, float], ...] = ()
    unlinked_bytes: float = 26.0
    page_bytes_due: float = 110.0
    page_row_bytes: float = 135.0
    tick_ms: int = 30_000
    reads: Reads | None = None

    @property
    def batches_per_segment(self) -> int:
        """Number of batches before a segment rolls, by size or by time, as in `local.log.log_appender`."""
        return max(1, min(self.segment_bytes // self.batch_bytes, self.segment_ms // self.batch_ms + 1))

    @property
    def rolled_bytes(self) -> int:
        return self.batches_per_segment * self.batch_bytes

    def rows_bytes(self, entries: float) -> float:
        known, taken = 0, 0.0
        for upto, size_bytes in self.first_rows:
            if entries < upto:
                return taken + (size_bytes - taken) * (entries - known) / (upto - known)
            known, taken = upto, size_bytes
        return taken + (entries - known) * self.row_bytes

    @property
    def bytes_per_month(self) -> float:
        return self.batch_bytes * 30 * DAY_MS / self.batch_ms


@dataclass(slots=True, kw_only=True)
class Counts:
    """Requests and bytes, as in `remote.store.middleware.store_wrapper.RequestCounts`."""

    puts: float = 0
    posts: float = 0
    gets: float = 0
    heads: float = 0
    lists: float = 0
    deletes: float = 0
    bytes_in: float = 0
    bytes_out: float = 0
    data_puts: float = 0
    data_gets: float = 0
    data_bytes_in: float = 0
    data_bytes_out: float = 0

    @property
    def billed(self) -> float:
        """The requests with a price: `posts` are among the PUTs, `heads` among the GETs."""
        return self.puts + self.gets + self.lists

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    def times(self, factor: float) -> Counts:
        return Counts(**{each.name: getattr(self, each.name) * factor for each in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Requests, average bytes. `short_byte_days`: byte-days that deleted objects lacked, by minimum days."""

    counts: Counts
    stored_bytes: float
    objects: float
    small_bytes: float
    index_bytes: float
    waiting_bytes: float
    local_bytes: float
    both_bytes: float
    object_bytes: float
    short_byte_days: dict[float, float] = field(default_factory=dict)


def idle_roll(of: Workload, rules: PartitionRules) -> tuple[int, int] | None:
    """Return when a maintenance pass rolls an idle active segment, None if the next batch is first.

    The pair is (ms after the segment's newest batch, average number of batches before it). The cause is a pause longer
    than `local.retention.ms` or `segment.ms` (`policies.tiering.rolls`).
    """
    local = None if rules.copy_disabled or (rules.copy_lag_ms is None and rules.copy_lag_bytes) else rules.local_limits
    limit = min([rules.segment_ms, *([] if local is None or local.ms is None else [local.ms])])
    if of.batch_ms <= limit:
        return None
    pauses = range(0, of.batch_ms * PAUSES_LOOKED_AT, of.batch_ms)
    rolled = sum(((at + limit) // of.tick_ms + 1) * of.tick_ms < at + of.batch_ms for at in pauses)
    return (local_expiry_ms(0, limit), max(1, round(PAUSES_LOOKED_AT / rolled))) if rolled else None
