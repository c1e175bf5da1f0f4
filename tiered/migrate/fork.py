"""Fork a topic: a new topic of the same bucket with the same records, without copying them.

`remote.gc.fork_references` has the protocol: states, crashes, and which partition deletes which object. A machine
writes to a fork after it restores it (`tiered.migrate.restore_plan`, ``takes_over``). `upto_offset` ends the fork
before the first segment that reaches above it. A second run adds missing partitions and leaves the others unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from local.errors import Conflict, Fenced, InvalidRequest
from local.names import check_topic, new_topic_id
from policies.cost.prices import BUILT_IN, PriceTable
from policies.cost.storage_cost import request_cost
from remote.gc.fork_references import homes_of
from remote.gc.partition_removal import PartitionRemoval, Removal
from remote.gc.pins import Pin, end_pin, list_pins, pin_newest
from remote.keys import key_in_other_topic, topic_directory
from remote.manifest.catalog import RemotePartitionName, missing_between
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_changes import add_segments, delete_partition, expire_segments
from remote.manifest.page_out import keys_of, named_keys
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from tiered.migrate.restore_plan import cleaned_reach, missing_keys, readable_entries
from tiered.read.bucket_reader import without_deleted

PIN_MS = 86_400_000
_REMOVER = "fork"  # writer id of the manifest that removes an unfinished fork


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFork:
    """One partition: `entries` of `manifest` become the fork's entries. `is_there`: an earlier run made it."""

    source: RemotePartitionName
    fork: RemotePartitionName
    manifest: Manifest
    entries: tuple[SegmentEntry, ...]
    is_there: bool = False

    @property
    def next_offset(self) -> int:
        return self.entries[-1].next_offset if self.entries else self.manifest.log_start_offset

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)

    def dollars(self, prices: PriceTable = BUILT_IN) -> float:
        of = prices.of(None)
        return 0.0 if self.is_there else request_cost(puts=5 + len(self.entries) // 4096, gets=6, lists=4, prices=of)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPlan:
    """`unfinished` partitions of earlier runs are removed first; the source has no manifest of `missing` ones."""

    topic: str
    topic_id: str
    partitions: tuple[PartitionFork, ...]
    upto_offset: int | None = None
    unfinished: tuple[RemotePartitionName, ...] = ()
    missing: tuple[RemotePartitionName, ...] = ()

    def dollars(self, prices: PriceTable = BUILT_IN) -> float:
        return sum(each.dollars(prices) for each in self.partitions)


def plan_fork(
    store: ObjectStore,
    names: Sequence[RemotePartitionName],
    topic: str,
    *,
    known: Sequence[RemotePartitionName],
    upto_offset: int | None = None,
) -> ForkPlan:
    """Plan a fork of all partitions `names` of one topic. `known` are the bucket's partitions of the name `topic`.

    Raises InvalidRequest for partitions of several topics, for a name that another topic has, and for a cleaned topic
    that would lack keys below `upto_offset`. Raises NotFound for a deleted topic.
    """
    check_topic(topic)
    names = without_deleted(store, names)
    if len(sources := {topic_directory(name.topic, name.topic_id) for name in names}) != 1:
        wrong = "cannot fork, the name matches several topics: choose one by its id"
        raise InvalidRequest(wrong, topics=",".join(sorted(sources)))
    manifests = {name: manifest for name in known if (manifest := _manifest(store, name)) is not None}
    dead = {name.topic_id for name, manifest in manifests.items() if manifest.deleted_ms is not None}
    living = {name: manifest for name, manifest in manifests.items() if name.topic_id not in dead}
    ids = {name.topic_id for name in living}
    if len(ids) > 1 or any(manifest.writer_id != _writer(names[0]) for manifest in living.values()):
        raise InvalidRequest("cannot fork, the bucket has another topic of that name", topic=topic)
    topic_id = ids.pop() if ids else new_topic_id()
    parts = []
    for name in names:
        fork = RemotePartitionName(topic, topic_id, name.partition)
        log = MetadataLog(store, name.prefix)
        manifest = log.refresh(exact=True)
        entries = _entries(log, manifest, upto_offset)
        parts.append(PartitionFork(source=name, fork=fork, manifest=manifest, entries=entries, is_there=fork in living))
    ours = _REMOVER, _writer(names[0])
    forkers = {name: manifest for name, manifest in manifests.items() if manifest.writer_id in ours}
    dropped = {name.topic_id for name, manifest in forkers.items() if manifest.deleted_ms is not None}
    return ForkPlan(
        topic=topic,
        topic_id=topic_id,
        partitions=tuple(parts),
        upto_offset=upto_offset,
        unfinished=tuple(name for name in forkers if name.topic_id in dropped),
        missing=tuple(missing_between(names)),
    )


def run_fork(
    store: ObjectStore,
    plan: ForkPlan,
    *,
    now_ms: Callable[[], int],
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda partitions: None,
) -> tuple[PartitionFork, ...]:
    """Fork each partition; returns the partitions forked now or before. To repeat it, plan again.

    Raises Conflict, and removes the fork, if the pin of a partition ended before everything was written.
    """
    done = []
    for name in plan.unfinished:
        _remove(store, name, now_ms)
    for each in plan.partitions:
        if should_stop():
            break
        done.append(each if each.is_there and _is_whole(store, each) else _forked(store, plan, each, now_ms))
        progress(1)
    return tuple(done)


def _forked(store: ObjectStore, plan: ForkPlan, each: PartitionFork, now_ms: Callable[[], int]) -> PartitionFork:
    prefix, began = each.source.prefix, now_ms()
    source = MetadataLog(store, prefix)
    pin, manifest = pin_newest(
        store, prefix, source, now_ms=began, expires_ms=began + PIN_MS, holder="fork", fork=each.fork.prefix
    )
    entries = _entries(source, manifest, plan.upto_offset)
    announced = [(prefix, pin), *_pinned_other_homes(store, each, entries, pin, now_ms=began)]
    log = MetadataLog(store, each.fork.prefix)
    log.become_writer(
        _writer(each.source),
        now_ms(),
        **each.fork.identity,
        properties=manifest.properties,
        first_epoch=manifest.epoch + 1,  # appends use this epoch: it is above all leader epochs of the entries
        seal_key_id=manifest.seal_key_id,
    )
    if not log.refresh().has_entries:  # otherwise an earlier run wrote entries; they are checked below
        if manifest.log_start_offset:  # before the entries: records deleted below it in the first segment stay deleted
            log.commit(expire_segments([], now_ms=now_ms(), log_start_offset=manifest.log_start_offset), now_ms())
        log.commit(add_segments([_renamed(entry, prefix) for entry in entries]), now_ms())
    is_in_time = _is_in_time(store, log, source, each, announced, now_ms)
    # The pin of the source ends last: it marks the check as finished.
    if not is_in_time or any(end_pin(store, home, pin, now_ms=now_ms()) is None for home, pin in reversed(announced)):
        if _is_whole(store, each):  # another run was in time, so the fork stays
            return replace(each, is_there=True)
        with _not_taken_over(manifest):
            log.commit(delete_partition(now_ms=now_ms()), now_ms())
        for part in plan.partitions:
            _remove(store, part.fork, now_ms)
        wrong = "cannot fork the partition, objects may have been deleted before the fork was complete"
        raise Conflict(f"{wrong}: run the command again", source=manifest.topic)
    # A run that takes over after this check sees the ended pin and removes nothing (`_is_whole`). A run that took over
    # before may not have seen it.
    with _not_taken_over(manifest):
        log.refresh(exact=True)
        log.check_not_fenced()
    return replace(each, manifest=manifest, entries=entries, is_there=True)


def _pinned_other_homes(
    store: ObjectStore, each: PartitionFork, entries: Sequence[SegmentEntry], pin: Pin, *, now_ms: int
) -> list[tuple[str, Pin]]:
    """Pin the other partitions whose objects a fork of a fork will name, before its first manifest; return the pins."""
    pinned = []
    for home in sorted(homes_of(keys_of(entries), each.source.prefix) - {each.source.prefix}):
        log = MetadataLog(store, home)
        other, _ = pin_newest(
            store, home, log, now_ms=now_ms, expires_ms=pin.expires_ms, holder="fork", fork=each.fork.prefix
        )
        pinned.append((home, other))
    return pinned


def _is_in_time(
    store: ObjectStore,
    log: MetadataLog,
    source: MetadataLog,
    each: PartitionFork,
    announced: Sequence[tuple[str, Pin]],
    now_ms: Callable[[], int],
) -> bool:
    """Whether the fork was made in time: announced, its objects still in the source, pins with time left.

    A process that saw a pin expired before the fork existed may still delete that pin. A process that finds the pin
    expired from now on also finds the fork.
    """
    if any(pin.key not in {found.key for found in list_pins(store, home)} for home, pin in announced):
        return False
    newest = source.refresh(exact=True)
    if newest.deleted_ms is not None:
        return False
    named = source.ask(newest, lambda index: named_keys(index.manifest, index.page))
    known = {key_in_other_topic(each.source.prefix, key) for key in named}
    has_all = log.ask(log.refresh(), lambda index: set(keys_of(index.entries()))) <= known
    return has_all and all(pin.expires_ms > now_ms() + PIN_MS // 24 for _, pin in announced)


def _remove(store: ObjectStore, name: RemotePartitionName, now_ms: Callable[[], int]) -> None:
    """Delete a partition of an unreported fork without a grace period. A next run can finish the removal."""
    if _manifest(store, name) is None:
        return
    removal = PartitionRemoval(store, name, _REMOVER)
    while removal.step(now_ms(), grace_ms=0) is Removal.UNDER_WAY:
        pass


@contextmanager
def _not_taken_over(manifest: Manifest) -> Iterator[None]:
    """Raise Conflict if the block finds that another run, perhaps already successful, has taken the fork over."""
    try:
        yield
    except Fenced as error:
        wrong = "cannot fork the partition, another run is forking it: run the command again"
        raise Conflict(wrong, source=manifest.topic) from error


def _is_whole(store: ObjectStore, each: PartitionFork) -> bool:
    """Whether some run finished its last check: a pin was ended on purpose. The content does not matter."""
    manifest = _manifest(store, each.fork)
    if manifest is None or manifest.deleted_ms is not None:
        return False
    return any(pin.fork == each.fork.prefix and pin.expires_ms == 0 for pin in list_pins(store, each.source.prefix))


def _entries(log: MetadataLog, manifest: Manifest, upto: int | None) -> tuple[SegmentEntry, ...]:
    """The entries of the fork: without `upto` all, else those that end at or below it."""
    readable = readable_entries(log, manifest, "fork")
    selected = [entry for entry in readable if upto is None or entry.next_offset <= upto]
    end = selected[-1].next_offset if selected else manifest.log_start_offset
    reach = cleaned_reach([entry for entry in readable if upto is None or entry.base_offset < upto])
    if reach > (manifest.next_offset if upto is None else end):
        raise missing_keys("fork", manifest, ends_at=end, exact_from=reach)
    return tuple(selected)


def _renamed(entry: SegmentEntry, prefix: str) -> SegmentEntry:
    keys = key_in_other_topic(prefix, entry.data_key), key_in_other_topic(prefix, entry.indexes_key)
    return replace(entry, data_key=keys[0], indexes_key=keys[1])


def _manifest(store: ObjectStore, name: RemotePartitionName) -> Manifest | None:
    return MetadataLog(store, name.prefix).load(exact=True)


def _writer(source: RemotePartitionName) -> str:
    return f"fork of {source.topic}-{source.topic_id}"
