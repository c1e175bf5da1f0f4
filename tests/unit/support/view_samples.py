"""Sample compacted views."""

from __future__ import annotations

from remote_samples import stored_row

from remote.manifest.view import CompactedView, ViewRun

RUN = ViewRun(
    started_ms=1_700_000_000_000,
    took_ms=12,
    from_offset=0,
    upto_offset=20,
    records_in=20,
    records_out=4,
    bytes_in=900,
    bytes_out=200,
)


def view_row(ulid="V1", base_offset=0, next_offset=10, view="compacted", **changes):
    return stored_row(ulid, base_offset, next_offset, view=view, **changes)


def view(*entries, name="compacted", horizon_offset=20, **changes):
    facts = {"name": name, "horizon_offset": horizon_offset, "entries": entries, "record_count": 4, "key_count": 4}
    return CompactedView(**{**facts, "source_sequence": 7, "last_run": RUN, **changes})
