"""JSON of commands that work on whole topics and buckets: copies, repairs, jobs. See `tiered.cli.schemas.schemas`."""

from __future__ import annotations

from tiered.cli.schemas.schemas_base import Done, Versioned, Where


class PlannedExport(Where):
    """What would be read of a partition, in so many tasks."""

    start_offset: int
    next_offset: int
    size_bytes: int
    tasks: int


class BackfillPlan(Done):
    """``tiered backfill --dry-run``."""

    target: str
    ranges: list[PlannedExport]


class ExportedFile(Where):
    """A Parquet file."""

    key: str
    base_offset: int
    next_offset: int
    records: int
    size_bytes: int


class Backfilled(Versioned):
    """``tiered backfill``."""

    job: str
    is_complete: bool
    records: int
    files: list[ExportedFile]
