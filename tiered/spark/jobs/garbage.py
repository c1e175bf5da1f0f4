"""List and delete orphans in Spark tasks, partition by partition.

The rules are those of `tiered.jobs.orphan_deletion`. A task lists the objects under a few partitions' prefixes, reads
the objects that their manifests name, and returns only the orphans. The driver therefore holds no listing, and at most
as many orphans as one list may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from remote.manifest.catalog import RemotePartitionName
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.orphan_deletion import (
    ENTRIES_MAX,
    GRACE_MS,
    Deleted,
    Garbage,
    GarbageList,
    decode_garbage,
    encode_garbage,
    joined_lists,
)
from tiered.jobs.orphan_deletion import delete_garbage as delete_here
from tiered.jobs.orphan_deletion import list_garbage as list_here
from tiered.spark.jobs.task_batches import in_task_batches, packed
from tiered.spark.source.pinning import wall_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from remote.store.unfinished_uploads import UnfinishedUploads

PARTITIONS_A_TASK = 8


def list_garbage(
    spark: SparkSession,
    bucket: Bucket,
    names: Sequence[RemotePartitionName],
    *,
    now_ms: int | None = None,
    job_id: str | None = None,
    entries_max: int = ENTRIES_MAX,
    partitions_a_task: int = PARTITIONS_A_TASK,
    wave_tasks: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda partitions: None,
) -> GarbageList | None:
    """The orphans of these partitions, in order, as in `tiered.jobs.orphan_deletion.list_garbage`.

    None if `should_stop` ended the search. Changes nothing. `progress` receives the number of finished partitions.
    """
    moment = wall_ms() if now_ms is None else now_ms
    packs = packed(names, lambda name: 1, partitions_a_task)

    def search(pack: Sequence[RemotePartitionName]) -> bytes:
        with bucket.opened() as store:
            return encode_garbage(
                list_here(store, pack, now_ms=moment, uploads=_uploads(bucket), entries_max=entries_max)
            )

    done = 0

    def lists() -> Iterator[GarbageList]:
        nonlocal done
        description = f"finding orphans of {len(names)} partitions"
        for wave in in_task_batches(
            spark, description, packs, search, wave_tasks=wave_tasks, group=job_id, should_stop=should_stop
        ):
            for found in wave:
                yield decode_garbage(found, "a task's")
            done += len(wave)
            progress(sum(len(pack) for pack in packs[:done]))

    with bucket.opened() as store:
        url = store.url
    listed = joined_lists(lists(), url, now_ms=moment, entries_max=entries_max)
    return listed if done == len(packs) else None


def delete_garbage(
    spark: SparkSession,
    bucket: Bucket,
    listed: GarbageList,
    *,
    now_ms: int | None = None,
    grace_ms: int = GRACE_MS,
    job_id: str | None = None,
    wave_tasks: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Deleted:
    """Delete the listed objects that a new check of the task confirms as orphans and that are old enough.

    If `should_stop` ends the job, the rest stays listed. Raises InvalidRequest for another store's list.
    """
    moment = wall_ms() if now_ms is None else now_ms
    parts: dict[RemotePartitionName, list[Garbage]] = {}
    for each in listed.entries:
        parts.setdefault(each.name, []).append(each)
    lists = [
        encode_garbage(GarbageList(store=listed.store, listed_ms=listed.listed_ms, entries=of)) for of in parts.values()
    ]

    def delete(part: bytes) -> Deleted:
        with bucket.opened() as store:
            wanted = decode_garbage(part, "a task's")
            return delete_here(store, wanted, now_ms=moment, grace_ms=grace_ms, uploads=_uploads(bucket))

    description = f"deleting orphans of {len(parts)} partitions"
    waves = in_task_batches(
        spark, description, lists, delete, wave_tasks=wave_tasks, group=job_id, should_stop=should_stop
    )
    done = [each for wave in waves for each in wave]
    return Deleted(
        entries=tuple(entry for each in done for entry in each.entries),
        young=sum(each.young for each in done),
        somebodys=sum(each.somebodys for each in done),
        unjudged={prefix: error for each in done for prefix, error in each.unjudged.items()},
    )


def _uploads(bucket: Bucket) -> UnfinishedUploads | None:
    """None for a store without multipart uploads."""
    if not bucket.url.startswith("s3:"):
        return None
    from remote.store.unfinished_uploads import UnfinishedUploads

    return UnfinishedUploads(bucket.url, dict(bucket.options))
