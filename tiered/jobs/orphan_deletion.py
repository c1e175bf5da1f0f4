"""Orphans of a bucket: list them with bytes and price, then delete the listed ones.

| condition to delete an entry of the list | reason |
|---|---|
| it is an orphan by a new check | a check is right at any time; the list may be a year old |
| it has existed for the grace period, by the store's clock | courtesy: time to notice a mistake in list or check |

The second step may be repeated, with an old list, while managers and jobs run: it writes no manifest. Order of effects:
1. the check; 2. the deletes, a page of keys at a time. List entries for objects that no longer exist are no error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec

from local.errors import AccessDenied, Corrupt, InvalidRequest, LogError, NotFound
from policies.cost.prices import S3_STANDARD, Prices
from policies.cost.storage_cost import monthly_storage
from remote.gc.object_deletion import DeleteReason, Evidence, delete_objects
from remote.gc.orphan_search import find_orphans
from remote.manifest.catalog import RemotePartitionName
from remote.manifest.commit_protocol import MetadataLog
from remote.store import ObjectStore
from remote.store.unfinished_uploads import UnfinishedUpload, UnfinishedUploads, orphaned_uploads
from tiered.jobs.job_bucket import Bucket
from tiered.jobs.runner import Executor, packed

SCHEMA_VERSION = 1
GRACE_MS = 3 * 86_400_000  # longer than any upload; a courtesy, see the module text
DELETE_PAGE = 1000  # keys of one request
PARTITIONS_A_TASK = 8
ENTRIES_MAX = 50_000  # of one list, some 20 MB; more are counted, and found again once the listed ones are deleted

Kind = Literal["object", "upload"]


class Garbage(msgspec.Struct, frozen=True, kw_only=True):
    """One orphaned object or unfinished upload. `key` is relative to the partition's prefix."""

    kind: Kind
    topic: str
    topic_id: str
    partition: int
    key: str
    size_bytes: int
    modified_ms: int | None
    upload_id: str | None = None

    @property
    def name(self) -> RemotePartitionName:
        return RemotePartitionName(self.topic, self.topic_id, self.partition)

    @property
    def identity(self) -> tuple[str, str | None]:
        return self.key, self.upload_id

    def is_due(self, now_ms: int, grace_ms: int) -> bool:
        """False if the store does not report an age."""
        return self.modified_ms is not None and now_ms - self.modified_ms >= grace_ms


class GarbageList(msgspec.Struct, frozen=True, kw_only=True):
    """The orphans at `listed_ms`. `more` counts orphans above the list's limit.

    Partitions that could not be checked have a reason by prefix: `left_out` are damaged, `refused` are denied.
    """

    schema_version: int = SCHEMA_VERSION
    store: str
    listed_ms: int
    entries: list[Garbage]
    left_out: dict[str, str] = {}
    refused: dict[str, str] = {}
    more: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.entries)

    def dollars_per_month(self, prices: Prices = S3_STANDARD) -> float:
        return monthly_storage(self.size_bytes, prices)

    def plus(self, other: GarbageList, entries_max: int) -> GarbageList:
        entries = [*self.entries, *other.entries]
        return msgspec.structs.replace(
            self,
            entries=entries[:entries_max],
            left_out=self.left_out | other.left_out,
            refused=self.refused | other.refused,
            more=self.more + other.more + len(entries[entries_max:]),
        )


# Created at import: creating it in two threads at once ends the process (msgspec 0.22).
_LIST = msgspec.json.Decoder(GarbageList)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """`young` entries are in their grace period, `named` by a manifest or absent, `unjudged` could not be checked."""

    entries: tuple[Garbage, ...]
    young: int = 0
    named: int = 0
    unjudged: Mapping[str, LogError] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.entries)

    def plus(self, other: Deleted) -> Deleted:
        entries, unjudged = (*self.entries, *other.entries), {**self.unjudged, **other.unjudged}
        young, named = self.young + other.young, self.named + other.named
        return Deleted(entries=entries, young=young, named=named, unjudged=unjudged)


def list_garbage(
    store: ObjectStore,
    names: Sequence[RemotePartitionName],
    *,
    now_ms: int,
    uploads: UnfinishedUploads | None = None,
    entries_max: int = ENTRIES_MAX,
) -> GarbageList:
    """List all orphans of these partitions; with `uploads`, unfinished uploads too. Raises Unavailable.

    A partition with a missing or unreadable manifest or page is reported and left out: the page may name any object.
    """
    entries: list[Garbage] = []
    left_out, refused = dict[str, str](), dict[str, str]()
    for name in names:
        try:
            entries += _orphans_of(store, name, now_ms, uploads)[0]
        except AccessDenied as error:
            refused[name.prefix] = str(error)
        except (Corrupt, NotFound) as error:
            left_out[name.prefix] = str(error)
    listed, more = entries[:entries_max], len(entries[entries_max:])
    return GarbageList(store=store.url, listed_ms=now_ms, entries=listed, left_out=left_out, refused=refused, more=more)


def search_garbage(
    executor: Executor,
    bucket: Bucket,
    names: Sequence[RemotePartitionName],
    *,
    now_ms: int,
    entries_max: int = ENTRIES_MAX,
    partitions_a_task: int = PARTITIONS_A_TASK,
    progress: Callable[[int], None] = lambda partitions: None,
) -> GarbageList | None:
    """Run `list_garbage` by an executor, a few partitions a task, with unfinished uploads; None if stopped early."""
    packs = packed(names, lambda name: 1, partitions_a_task if executor.is_parallel else 1)

    def search(pack: Sequence[RemotePartitionName]) -> GarbageList:
        with bucket.opened() as store:
            return list_garbage(store, pack, now_ms=now_ms, uploads=bucket.uploads(), entries_max=entries_max)

    with bucket.opened() as store:
        url = store.url
    listed, done = GarbageList(store=url, listed_ms=now_ms, entries=[]), 0
    for finished in executor.run(f"finding orphans of {len(names)} partitions", packs, search):
        for pack, found in finished:
            listed = listed.plus(found, entries_max)
            done += len(pack)
        progress(done)
    return listed if done == len(names) else None


def delete_listed(
    executor: Executor,
    bucket: Bucket,
    listed: GarbageList,
    *,
    now_ms: int,
    grace_ms: int = GRACE_MS,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda entries: None,
) -> Deleted:
    """Run `delete_garbage` by an executor, a partition at a time. After a stop the rest stays listed."""
    lists = [msgspec.structs.replace(listed, entries=entries) for _, entries in _by_partition(listed)] or [listed]

    def delete(part: GarbageList) -> Deleted:
        with bucket.opened() as store:
            uploads = bucket.uploads()
            return delete_garbage(store, part, now_ms=now_ms, grace_ms=grace_ms, uploads=uploads, dry_run=dry_run)

    done = Deleted(entries=())
    for finished in executor.run(f"deleting orphans of {len(lists)} partitions", lists, delete):
        for part, deleted in finished:
            done = done.plus(deleted)
            progress(len(part.entries))
    return done


def delete_garbage(
    store: ObjectStore,
    listed: GarbageList,
    *,
    now_ms: int,
    grace_ms: int = GRACE_MS,
    uploads: UnfinishedUploads | None = None,
    dry_run: bool = False,
) -> Deleted:
    """Delete listed entries that are still orphans and old enough. Raises InvalidRequest for another store's list."""
    if listed.store != store.url:
        wrong = "cannot delete orphans, the list belongs to another store"
        raise InvalidRequest(wrong, store=store.url, found=listed.store)
    done = Deleted(entries=())
    for name, entries in _by_partition(listed):
        try:
            found, epoch = _orphans_of(store, name, now_ms, uploads)
        except (AccessDenied, Corrupt, NotFound) as error:
            done = done.plus(Deleted(entries=(), unjudged={name.prefix: error}))
            continue
        wanted = {each.identity for each in entries}
        confirmed = [each for each in found if each.identity in wanted]
        due = tuple(each for each in confirmed if each.is_due(now_ms, grace_ms))
        if not dry_run:
            _delete(store, name, due, epoch, uploads)
        young, named = len(confirmed) - len(due), len(wanted) - len(confirmed)
        done = done.plus(Deleted(entries=due, young=young, named=named))
    return done


def _by_partition(listed: GarbageList) -> list[tuple[RemotePartitionName, list[Garbage]]]:
    parts: dict[RemotePartitionName, list[Garbage]] = {}
    for each in listed.entries:
        parts.setdefault(each.name, []).append(each)
    return sorted(parts.items())


def _delete(
    store: ObjectStore, name: RemotePartitionName, due: Sequence[Garbage], epoch: int, uploads: UnfinishedUploads | None
) -> None:
    keys = [each.key for each in due if each.kind == "object"]
    for at in range(0, len(keys), DELETE_PAGE):
        delete_objects(store, name.prefix, keys[at : at + DELETE_PAGE], DeleteReason.ORPHAN, Evidence(epoch=epoch))
    for each in due:
        if each.upload_id is not None and uploads is not None:
            key, begun_ms = name.prefix + each.key, each.modified_ms or 0
            uploads.abort(UnfinishedUpload(key=key, upload_id=each.upload_id, begun_ms=begun_ms))


def encode_garbage(listed: GarbageList) -> bytes:
    return msgspec.json.format(msgspec.json.encode(listed), indent=1) + b"\n"


def decode_garbage(data: bytes, path: str) -> GarbageList:
    """Decode a list. Raises InvalidRequest for another version, Corrupt for bytes that are no list."""
    try:
        listed = _LIST.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        wrong = "cannot read the list of orphans, the file has another format"
        raise Corrupt(wrong, path=path, cause=str(error)) from error
    if listed.schema_version != SCHEMA_VERSION:
        facts = {"version": listed.schema_version, "known": SCHEMA_VERSION}
        raise InvalidRequest("cannot read the list of orphans, it is of another version", path=path, **facts)
    return listed


def _orphans_of(
    store: ObjectStore, name: RemotePartitionName, now_ms: int, uploads: UnfinishedUploads | None
) -> tuple[list[Garbage], int]:
    """Return a partition's orphans and its newest manifest's epoch; 0 for a partition without objects."""
    metadata = MetadataLog(store, name.prefix)
    garbage = partial(Garbage, **name.identity)
    found = [
        garbage(kind="object", key=each.key, size_bytes=each.size_bytes, modified_ms=each.modified_ms)
        for each in find_orphans(store, name.prefix, metadata, now_ms=now_ms)
    ]
    manifest = metadata.cached
    if manifest is None:
        return found, 0
    listed = uploads.list(name.prefix) if uploads is not None else []
    for each in orphaned_uploads(listed, name.prefix, epoch=manifest.epoch):
        key, size = each.key.removeprefix(name.prefix), uploads.size_bytes(each) if uploads is not None else 0
        upload = garbage(kind="upload", key=key, size_bytes=size, modified_ms=each.begun_ms, upload_id=each.upload_id)
        found.append(upload)
    return found, manifest.epoch
