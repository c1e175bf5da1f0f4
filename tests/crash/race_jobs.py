"""Other processes in a race: a co-writer job, garbage collection, and a conditional takeover."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from race_stage import HOUR, Actor, GatedStore, Life, ProcessDied
from race_truth import Truth

from local.errors import LogError
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.gc.pins import list_pins
from remote.keys import new_ulid
from remote.manifest.catalog import RemotePartitionName, list_partitions
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import AppliedJob, Manifest
from remote.manifest.manifest_changes import Replacement, replace_tiled
from remote.segment_entry import SegmentEntry
from remote.store import ObjectStore
from remote.upload.segment_upload import SegmentToCopy, copy_segment
from tiered.jobs.bucket_deletion import delete_pending, plan_deletion
from tiered.jobs.orphan_deletion import GarbageList, delete_garbage, list_garbage
from tiered.node.writer_ids import DELETION


def merge(actor: Actor, truth: Truth) -> None:
    """A job that repeatedly merges two neighbouring segments into one with the same bytes."""
    race = actor.race
    while not race.is_ending:
        actor.step("before a job")
        with suppress(LogError, ProcessDied):
            _merge_two(actor, GatedStore(Life(actor)), truth)  # type: ignore[arg-type]


def _merge_two(actor: Actor, store: ObjectStore, truth: Truth) -> None:
    race, prefix = actor.race, truth.prefix
    co_writer = MetadataLog(store, prefix)
    manifest = co_writer.join()
    entries = list(co_writer.index(manifest).entries_with_dead(0, 1 << 62))
    pairs = [pair for pair in pairwise(entries) if pair[0].next_offset == pair[1].base_offset]
    if not pairs:
        return
    old = actor.rng.choice(pairs)
    new = _merged(store, prefix, old, manifest, race.now_ms)
    change = replace_tiled(
        [Replacement(ulids=(old[0].ulid, old[1].ulid), entries=(new,))],
        cleaned_through=0,
        bound=None,
        note=AppliedJob(job_id=new_ulid(race.now_ms)),
    )
    co_writer.commit(change, race.now_ms, touches=(new.base_offset, new.next_offset))


def _merged(
    store: ObjectStore, prefix: str, old: tuple[SegmentEntry, SegmentEntry], manifest: Manifest, now_ms: int
) -> SegmentEntry:
    remote = RemotePartition(store, prefix, ChunkCache(0))
    body = b"".join(bytes(remote.read(entry, 0, entry.size_bytes)) for entry in old)
    stamps = [each for entry in old for each in (entry.min_timestamp_ms, entry.max_timestamp_ms) if each is not None]
    segment = SegmentToCopy(
        base_offset=old[0].base_offset,
        next_offset=old[1].next_offset,
        size_bytes=len(body),
        record_count=old[0].record_count + old[1].record_count,
        max_timestamp_ms=max(stamps, default=None),
        min_timestamp_ms=min(stamps, default=None),
        epochs=tuple(dict.fromkeys((*old[0].epochs, *old[1].epochs))),
        offset_index=b"",
        time_index=b"",
        read=lambda start, length: body[start : start + length],
    )
    entry = copy_segment(store, prefix, segment, epoch=manifest.epoch, now_ms=now_ms)
    cleaned = [each.cleaned_through for each in old if each.cleaned_through is not None]
    return replace(entry, cleaned_through=min(cleaned) if len(cleaned) == len(old) else None)


def free(actor: Actor, truth: Truth) -> None:
    """Housekeeping that takes the writer epoch, but only from the writer that it saw when it planned."""
    race, rng = actor.race, actor.rng
    name = RemotePartitionName(truth.name.topic, truth.topic_ids[truth.name.topic], truth.name.partition)
    planned: set[int] = set()  # epochs; a takeover by an earlier plan may arrive after the process was killed
    while not race.is_ending:
        actor.frozen_until = race.steps + rng.randrange(80)
        actor.step("before freeing")
        store: ObjectStore = GatedStore(Life(actor))  # type: ignore[assignment]
        plan = None
        begun = len(truth.manifests)
        with suppress(LogError, ProcessDied):
            plan = plan_deletion(store, name, race.scene.topic, now_ms=race.now_ms, takes_over=True)
            planned.add(plan.epoch)
            actor.frozen_until = race.steps + rng.randrange(60)
            actor.step("with a plan to free")
            delete_pending(store, plan, now_ms=race.now_ms)
            race.events.append(f"{actor.name} freed {min(1, plan.objects)}")
        for before, manifest in pairwise(truth.manifests[max(0, begun - 1) :]):
            is_taken = manifest.writer_id.startswith(DELETION) and before.writer_id != manifest.writer_id
            assert not is_taken or before.epoch in planned, (
                "the epoch was taken from a writer that took over after the plan"
            )


def collect(actor: Actor) -> None:
    """A process that lists orphans; later this process or the next one deletes from that list."""
    race, rng = actor.race, actor.rng
    listed: GarbageList | None = None
    while not race.is_ending:
        actor.frozen_until = race.steps + rng.randrange(60)
        actor.step("before a collection")
        store: ObjectStore = GatedStore(Life(actor))  # type: ignore[assignment]
        with suppress(LogError, ProcessDied):
            if listed is not None and rng.random() < 0.7:
                delete_garbage(store, listed, now_ms=race.now_ms, grace_ms=HOUR)
            else:
                listed = list_garbage(store, list_partitions(store), now_ms=race.now_ms)


def collect_all(actor: Actor) -> int:
    """List and delete all due garbage without races; return the number of objects that remain.

    The pin of a killed reader protects the objects of its manifest until it expires, so the clock first passes all
    pins.
    """
    race = actor.race
    store: ObjectStore = GatedStore(Life(actor))  # type: ignore[assignment]
    names = list_partitions(store)
    ends = [pin.expires_ms for name in names for pin in list_pins(race.inner, name.prefix)]
    race.now_ms = max(race.now_ms, *ends, 0)
    listed = list_garbage(store, names, now_ms=race.now_ms)
    race.now_ms += HOUR
    delete_garbage(store, listed, now_ms=race.now_ms, grace_ms=HOUR)
    return len(list_garbage(store, list_partitions(store), now_ms=race.now_ms).entries)
