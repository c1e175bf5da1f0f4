"""Open a bucket for reading: records, and topics as Arrow batches."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

from local.errors import InvalidRequest
from local.storage import DiskStorage
from remote.cache.disk_cache import DiskCache
from remote.external.external_layout import LayoutOptions
from remote.manifest.manifest_lookup import manifest_disk_cache, shares
from remote.store.open_store import open_store
from tiered.config.secrets import load_key_ring, split_url
from tiered.read.bucket_reader import CACHE_BYTES, CACHE_DIR_BYTES, RemoteLog

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.compute import Expression

    from tiered.spark.options import ReadOptions
    from tiered.spark.source.splits import ReadPlan
    from tiered.tables.scan import Offsets, Selection


class RemoteTables(RemoteLog):
    """A `RemoteLog` that also reads topics as Arrow batches, which DuckDB, Polars and pandas take as they are."""

    def scan(
        self,
        topic: str,
        *,
        columns: Sequence[str] | None = None,
        partitions: Sequence[int] | None = None,
        start: Offsets = None,
        end: Offsets = None,
        filter: Expression | None = None,  # noqa: A002 - the word of Arrow and Polars
        view: str | None = None,
        is_committed: bool = False,
        fail_on_data_loss: bool = True,
        threads: int | None = None,
        memory_bytes: int = 256 << 20,
    ) -> pa.RecordBatchReader:
        """The topic's records in the order of partition and offset, as they are in the bucket now.

        | parameter | meaning |
        |---|---|
        | `columns` | names of `docs/reference/spark.md`; None: all but ``headers``. Others are not decoded |
        | `partitions` | numbers; None: all |
        | `start`, `end` | an offset, offsets by partition, or a `datetime` with a time zone; `end` is not read |
        | `filter` | a `pyarrow.compute` expression over any column; each batch is filtered in its thread |
        | `view` | the name of a compacted view to read |
        | `is_committed` | leave out records of aborted transactions |
        | `fail_on_data_loss` | False reads past offsets that are outside the log, and segments that are gone |
        | `threads` | that fetch and decode; None: one for each CPU, at most 8 |
        | `memory_bytes` | of batches that are ready; each thread holds about 64 MiB more |

        A time means the first offset whose record has this timestamp or a later one, as in Kafka. The manifests are
        pinned until the reader is exhausted or dropped; its `close` does nothing in pyarrow. A pin that is not renewed
        expires after an hour. A bucket that cannot be written is read without pins.

        Raises InvalidRequest for a wrong selection, NotFound for an unknown topic or partition, OffsetOutOfRange. The
        reader raises Corrupt for damaged bytes.
        """
        if importlib.util.find_spec("pyarrow") is None:
            raise InvalidRequest(
                "cannot scan, a library is missing", library="pyarrow", fix="pip install 'tiered[arrow]'"
            )
        from tiered.tables.scan import Selection, scan

        selection = Selection(
            topic=topic,
            topic_id=self._selected.get(topic),
            columns=columns,
            partitions=partitions,
            start=start,
            end=end,
            filter=filter,
            view=view,
            is_committed=is_committed,
            fail_on_data_loss=fail_on_data_loss,
            threads=threads,
            memory_bytes=memory_bytes,
        )
        return scan(self.store, selection, keys=self._keys, layout=self._layout)

    def planned(self, selection: Selection, threads: int) -> tuple[ReadPlan, ReadOptions]:
        """As `tiered.tables.scan.planned`, for this bucket."""
        from tiered.tables.scan import planned

        return planned(self.store, selection, threads, keys=self._keys, layout=self._layout)

    async def scan_async(self, topic: str, **selection: object) -> AsyncIterator[pa.RecordBatch]:
        """As `scan`, with the same parameters, without blocking the event loop. Close it if it is not read to its end.

        ``async with contextlib.aclosing(bucket.scan_async("orders")) as batches`` closes it.
        """
        reader = await asyncio.to_thread(self.scan, topic, **selection)  # type: ignore[arg-type]
        try:
            while (batch := await asyncio.to_thread(_next, reader)) is not None:
                yield batch
        finally:
            await asyncio.to_thread(reader.close)


def _next(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    return next(iter(reader), None)


def open_remote(
    url: str,
    options: Mapping[str, object] | None = None,
    *,
    topic_ids: Mapping[str, str] | None = None,
    key_ring: str | None = None,
    cache_bytes: int = CACHE_BYTES,
    cache_dir: str | None = None,
    cache_dir_bytes: int = CACHE_DIR_BYTES,
    layout: str = "tiered",
    prefixes: Sequence[str] = ("",),
    private_keys: Mapping[str, str] | None = None,
) -> RemoteTables:
    """Open the bucket at `url` (``s3://bucket/prefix``, ``file:///path``), with fsspec's options for it.

    | parameter | meaning |
    |---|---|
    | `topic_ids` | as in `RemoteLog` |
    | `key_ring` | a file of keys, which the environment may name as well (`tiered.config.secrets`) |
    | `cache_bytes` | memory for fetched bytes |
    | `cache_dir` | keeps up to `cache_dir_bytes` of fetched bytes and of the index for later processes |
    | `layout` | ``tiered``, ``aiven``, ``local-tiered-storage``, ``pinterest``, ``logs``, or ``auto`` to detect it |
    | `prefixes` | for Aiven: the values of ``key.prefix`` |
    | `private_keys` | for Aiven: the files of the RSA keys by their ids |

    No request is sent before the first read. Raises InvalidRequest for an invalid url or option, and the errors of
    reading the key ring.
    """
    split_url(url)
    wanted_layout = LayoutOptions(layout=layout, prefixes=tuple(prefixes), private_keys=dict(private_keys or {}))
    if cache_dir and not wanted_layout.is_ours:
        raise InvalidRequest("cannot cache an external bucket on a disk, it has no checksums", layout=layout)
    keys = load_key_ring(key_ring, os.environ)
    piece_bytes, index_bytes = shares(cache_dir_bytes)
    disk = DiskCache.open(DiskStorage(), os.path.abspath(cache_dir), piece_bytes) if cache_dir else None
    store = open_store(url, dict(options or {}))
    copies = manifest_disk_cache(cache_dir, index_bytes, is_writer=disk is not None)
    return RemoteTables(
        store, cache_bytes=cache_bytes, topic_ids=topic_ids, keys=keys, disk=disk, copies=copies, layout=wanted_layout
    )
