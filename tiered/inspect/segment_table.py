"""Content of a bucket as a table: segments, view segments, manifest pages, pending deletes.

Costs a few requests for each partition and one for each page. Dollars are of a single object, at the first price band
of its class; pending deletes and pages count as STANDARD.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from local.errors import NotFound
from policies.cost.prices import BUILT_IN, STANDARD, PriceTable
from policies.cost.storage_cost import (
    DAY_MS,
    billed_bytes,
    early_deletion,
    monthly_storage,
    request_cost,
    retrieval_cost,
)
from remote.external.external_layout import ExternalName
from remote.fetch.range_reader import RANGE_BYTES
from remote.keys import full_key
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, PageEntry, PendingDelete
from remote.manifest.manifest_changes import objects_of
from remote.manifest.manifest_lookup import MetadataIndex
from remote.segment_entry import SegmentEntry, SegmentState

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = (  # as Spark's DDL
    "topic string, topic_id string, partition int, kind string, view string, state string, is_readable boolean, "
    "base_offset bigint, next_offset bigint, record_count bigint, size_bytes bigint, stored_bytes bigint, "
    "indexes_bytes bigint, min_timestamp timestamp, max_timestamp timestamp, committed timestamp, unlinked timestamp, "
    "epochs array<struct<epoch:int,start_offset:bigint>>, codec string, key_id string, storage_class string, "
    "cleaned_through bigint, ulid string, data_key string, indexes_key string, head_sequence bigint, head_epoch int, "
    "log_start_offset bigint, topic_deleted timestamp, dollars_per_month double, dollars_to_read double, "
    "dollars_to_delete_now double"
)
COLUMNS = dict(column.split(" ") for column in SCHEMA.split(", "))
_OF_ENTRY = (
    "base_offset",
    "next_offset",
    "size_bytes",
    "stored_bytes",
    "indexes_bytes",
    "codec",
    "key_id",
    "cleaned_through",
)
BATCH_ROWS = 4096
Row = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    prices: PriceTable = BUILT_IN
    now_ms: int


def segment_rows(log: MetadataLog, name: RemotePartitionName, options: TableOptions) -> Iterator[Row]:
    """The rows of one partition from its newest manifest. Raises the errors of manifests and pages."""
    manifest = log.refresh()
    # A list: if a page is deleted during the listing, the newest manifest is read again before any row is yielded.
    for row in log.ask(manifest, lambda index: list(_rows_of(index, name, options))):
        yield {column: row.get(column) for column in COLUMNS}


def record_batches(rows: Iterator[Row], names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = pa.schema([(name, arrow_types()[name]) for name in names])
    while batch := list(islice(rows, BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(batch, schema=schema)


def arrow_types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    plain: dict[str, pa.DataType] = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "double": pa.float64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    epoch = pa.struct([("epoch", pa.int32()), ("start_offset", pa.int64())])
    return {name: plain.get(kind) or pa.list_(epoch) for name, kind in COLUMNS.items()}


def _rows_of(index: MetadataIndex, name: RemotePartitionName, options: TableOptions) -> Iterator[Row]:
    manifest = index.manifest
    common: Row = {
        "topic": name.topic,
        "topic_id": name.topic_id,
        "partition": name.partition,
        "head_sequence": manifest.sequence,
        "head_epoch": manifest.epoch,
        "log_start_offset": manifest.log_start_offset,
        "topic_deleted": _us(manifest.deleted_ms),
        "view": None,
        "unlinked": None,
    }
    for page in manifest.pages:
        yield {**common, **_page(page, name, options)}
    for row in index.entries_with_dead(0, manifest.entries_end_offset):
        alive = manifest.deleted_ms is None and row.next_offset > manifest.min_readable_offset
        yield {**common, **_segment(row, name, options), "kind": "log", "is_readable": alive}
    for view in manifest.views:
        for row in view.entries:
            more = {"kind": "view", "view": view.name, "is_readable": manifest.deleted_ms is None}
            yield {**common, **_segment(row, name, options), **more}
    for each in (*manifest.pending_deletes, *_of_pending_pages(index)):
        yield {**common, **_waiting(each, manifest, name, options)}


def _of_pending_pages(index: MetadataIndex) -> Iterator[PendingDelete]:
    """Yield the objects of each page's entries, then the page itself, which is deleted last."""
    for each in index.manifest.pending_page_deletes:
        with suppress(NotFound):
            for row in index.page(each.page):
                yield from objects_of(row, each.unlinked_ms, each.epoch)
        yield PendingDelete(
            key=each.page.key,
            size_bytes=each.page.page_bytes,
            unlinked_ms=each.unlinked_ms,
            epoch=each.epoch,
            unlinked_sequence=each.unlinked_sequence,
        )


def _segment(row: SegmentEntry, name: RemotePartitionName, options: TableOptions) -> Row:
    is_in_other_topic = isinstance(name, ExternalName)
    prices, small = options.prices.of(row.storage_class), options.prices.of(STANDARD)
    age_days = max(0, options.now_ms - row.committed_ms) / DAY_MS
    gets = -(-row.stored_bytes // RANGE_BYTES)
    storage = monthly_storage(billed_bytes(row.stored_bytes, 1, prices), prices)
    return {
        **{name: getattr(row, name) for name in _OF_ENTRY},
        "state": row.state.name,
        "record_count": None if is_in_other_topic else row.record_count,
        "min_timestamp": _us(row.min_timestamp_ms),
        "max_timestamp": _us(row.max_timestamp_ms),
        "committed": _us(row.committed_ms or None),
        "epochs": [{"epoch": epoch, "start_offset": start} for epoch, start in row.epochs],
        "storage_class": row.storage_class or STANDARD,
        "ulid": None if is_in_other_topic else row.ulid,
        "data_key": row.data_key if is_in_other_topic else full_key(name.prefix, row.data_key),
        "indexes_key": None if is_in_other_topic else full_key(name.prefix, row.indexes_key),
        "dollars_per_month": storage + monthly_storage(row.indexes_bytes, small),
        "dollars_to_read": request_cost(gets=gets, prices=prices)
        + request_cost(gets=1, prices=small)
        + retrieval_cost(row.stored_bytes, prices),
        "dollars_to_delete_now": early_deletion(row.stored_bytes, age_days, prices),
    }


def _page(page: PageEntry, name: RemotePartitionName, options: TableOptions) -> Row:
    return {
        "kind": "page",
        "is_readable": True,
        "base_offset": page.base_offset,
        "next_offset": page.next_offset,
        "min_timestamp": _us(page.min_timestamp_ms),
        "max_timestamp": _us(page.max_timestamp_ms),
        "data_key": name.prefix + page.key,
        **_small(page.page_bytes, options),
    }


def _waiting(each: PendingDelete, manifest: Manifest, name: RemotePartitionName, options: TableOptions) -> Row:
    assert manifest.sequence >= each.unlinked_sequence, "a manifest lists an object that an earlier manifest unlinked"
    return {
        "kind": "waiting",
        "state": SegmentState.DELETE_STARTED.name,
        "is_readable": False,
        "unlinked": _us(each.unlinked_ms),
        "data_key": full_key(name.prefix, each.key),
        **_small(each.size_bytes, options),
    }


def _small(size_bytes: int, options: TableOptions) -> Row:
    prices = options.prices.of(STANDARD)
    return {
        "stored_bytes": size_bytes,
        "storage_class": STANDARD,
        "dollars_per_month": monthly_storage(size_bytes, prices),
        "dollars_to_read": request_cost(gets=-(-size_bytes // RANGE_BYTES), prices=prices),
        "dollars_to_delete_now": 0.0,
    }


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * 1000
