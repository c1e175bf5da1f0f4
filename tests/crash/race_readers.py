"""Readers that know only the bucket: short reads by old manifests, long reads by a pinned one."""

from __future__ import annotations

from contextlib import suppress

from race_stage import HOUR, Actor, GatedStore, Life, ProcessDied
from race_truth import Truth, plain, records_in, view_name

from local.errors import Conflict, NotFound, OffsetOutOfRange, Unavailable
from remote.cache.chunk_cache import ChunkCache
from remote.fetch.range_reader import RemotePartition
from remote.gc.pins import Pin, pin_newest, release
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.manifest.manifest_lookup import MetadataIndex, Pages
from remote.manifest.view import find_view
from tiered.read.bucket_reader import RemoteLog
from tiered.spark.source.planning import pinned_log


def read(actor: Actor, truth: Truth) -> None:
    """Read the log, and the compacted view if there is one, by a manifest that may be old."""
    race, rng = actor.race, actor.rng
    bucket: RemoteLog | None = None
    while not race.is_ending:
        actor.step("before a read")
        try:
            if bucket is None or rng.random() < 0.2:
                bucket = RemoteLog(GatedStore(Life(actor)), topic_ids=truth.topic_ids)  # type: ignore[arg-type]
            if rng.random() < 0.3:
                bucket.refresh()
            if race.scene.has_views and rng.random() < 0.5:
                _read_view(bucket, truth)
            start, end = bucket.reader().offsets(truth.name)
            truth.check_head(bucket.manifest(truth.name))
            if start < end:
                at = rng.randrange(start, end)
                found = list(bucket.reader().records(truth.name, at, end))
                truth.check_read(found, at, end, truth.log_start)
        except (Unavailable, OffsetOutOfRange):
            continue
        except (NotFound, ProcessDied):
            bucket = None  # the log or the view does not exist (yet or any more), or another view was built


def _read_view(bucket: RemoteLog, truth: Truth) -> None:
    """Read the whole view: it is exactly the view of the manifest before the read, or of the one after it."""
    before = find_view(bucket.manifest(truth.name).views, "compacted")
    if before is None or not before.is_built:
        return
    records = bucket.reader(read_compacted=True).records(truth.name, before.start_offset, before.horizon_offset)
    found = {each.offset: plain(each) for each in records}
    after = find_view(bucket.manifest(truth.name).views, "compacted")
    wanted = [truth.views[view_name(each)] for each in (before, after) if each is not None and each.is_built]
    assert found in [{at: record for at, record in each.items() if at < before.horizon_offset} for each in wanted], (
        f"a view has wrong records: {sorted(found)}"
    )


def hold(actor: Actor, truth: Truth) -> None:
    """A long read: pin a manifest, read all its objects repeatedly for hours, release the pin."""
    race, rng = actor.race, actor.rng
    while not race.is_ending:
        actor.step("before a pin")
        store = GatedStore(Life(actor))
        log = MetadataLog(store, truth.prefix)  # type: ignore[arg-type]
        with suppress(Unavailable, NotFound, Conflict, ProcessDied):
            expires_ms = race.now_ms + rng.choice((1, 3, 12)) * HOUR
            pin, manifest = pin_newest(
                store,  # type: ignore[arg-type]
                truth.prefix,
                log,
                now_ms=race.now_ms,
                expires_ms=expires_ms,
                holder=actor.name,
            )
            truth.pinned(pin, manifest)
            for _ in range(rng.randrange(2, 20)):
                actor.step("with a pin")
                if not _read_pinned(actor, store, pin, manifest, truth):
                    break
            truth.unpinned(pin)
            release(store, truth.prefix, [pin])  # type: ignore[arg-type]


def _read_pinned(actor: Actor, store: GatedStore, pin: Pin, manifest: Manifest, truth: Truth) -> bool:
    """Read the pinned manifest and one object that it names; False once the pin has expired.

    After the pin expired, GC may delete the manifest, and a slow writer may create another one under the void name. The
    reader must then raise NotFound. It must never return the other manifest.
    """
    race = actor.race
    try:
        again = pinned_log(store, truth.prefix, pin).load()  # type: ignore[arg-type]
        assert again == manifest, f"another manifest under the pinned name: {again.commit_id}, not {manifest.commit_id}"
        index = MetadataIndex(manifest, Pages(store, truth.prefix).entries)  # type: ignore[arg-type]
        entries = [*index.entries_with_dead(0, 1 << 62), *manifest.view_entries]
        if entries:
            entry = actor.rng.choice(entries)
            remote = RemotePartition(store, truth.prefix, ChunkCache(0))  # type: ignore[arg-type]
            found = records_in(bytes(remote.read(entry, 0, entry.size_bytes)))
            assert found == truth.held[entry.ulid], f"a pinned object has other records: {entry.data_key}"
    except Unavailable:
        return True
    except NotFound as error:
        if race.now_ms < pin.expires_ms:
            raise AssertionError(f"an object of a pinned manifest is deleted: {error}") from error
        return False
    return race.now_ms < pin.expires_ms
