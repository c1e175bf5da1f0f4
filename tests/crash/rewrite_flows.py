"""Every flow that rewrites a bucket, with a fault at each call and readers before each write.

1. A flow runs, and one of its calls meets a fault.
2. Before every call that writes, a fresh reader reads the whole bucket, and a reader that began before the flow reads a
   few records more. Both must see every record once.
3. The store works again. The flow starts again and finishes.
4. Another writer opens the partition, and orphans are deleted.
5. The records are the same, and the bucket holds only objects that a manifest names.

The records of a key that the flow erases (`ERASED`) may be missing in 2, and are missing after 3.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from care_world import KEYS, MODES, NOW, SMALL_PAGES, TOPIC_ID, CareWorld, batches, named, small_chunks
from fault_kinds import PUTS, Clock, FaultStore, Kind, Plan

from local.errors import LogError
from local.names import TopicPartition
from remote.check.partition_check import ObjectKind
from remote.manifest.commit_protocol import MetadataLog
from remote.store import ObjectStore
from remote.store.memory_store import MemoryStore
from tiered.jobs.job_bucket import OpenBucket
from tiered.jobs.key_search import KeyDigests, scan_keys, survey
from tiered.jobs.orphan_deletion import delete_garbage, list_garbage
from tiered.jobs.redacting import plan_redaction, run_redaction
from tiered.jobs.rewriting import plan_merge, plan_recode, run_rewrite
from tiered.jobs.runner import Here
from tiered.read.bucket_reader import RemoteLog

NAME = TopicPartition("t", 0)
WRITES = PUTS | {"delete"}
Record = tuple[int, bytes | None, bytes | None, int]
Flow = Callable[[ObjectStore], None]


@small_chunks()
def merge(store: ObjectStore) -> None:
    plan = plan_merge(store, named("t"), now_ms=NOW, target_bytes=3000)
    run_rewrite(store, plan, now_ms=lambda: NOW, keys=KEYS, groups_a_manifest=2)


@small_chunks()
def compress(store: ObjectStore) -> None:
    plan = plan_recode(store, named("t"), now_ms=NOW, codec="zstd")
    run_rewrite(store, plan, now_ms=lambda: NOW, keys=KEYS, groups_a_manifest=3)


@small_chunks()
def encrypt(store: ObjectStore) -> None:
    plan = plan_recode(store, named("t"), now_ms=NOW, key_id="b")
    run_rewrite(store, plan, now_ms=lambda: NOW, keys=KEYS, groups_a_manifest=3)


@small_chunks()
def redact(store: ObjectStore) -> None:
    keys, bucket = KeyDigests.of([ERASED[redact]]), OpenBucket.of(store, KEYS)
    (scan,) = scan_keys(Here(), bucket, [survey(store, named("t"))], keys)
    run_redaction(Here(), bucket, [plan_redaction(scan, now_ms=NOW)], keys, now_ms=lambda: NOW)


FLOWS: dict[str, Flow] = {"merge": merge, "compress": compress, "encrypt": encrypt, "redact": redact}
ERASED: dict[Flow, bytes] = {redact: b"key-3"}


def small_segments(mode: str = "raw", count: int = 6, *, paged: bool = False) -> CareWorld:
    """Small neighbouring segments with one gap and two leader epochs, some cleaned or in pages."""
    world = CareWorld.empty()
    world.writer("t", SMALL_PAGES if paged else None)
    base = 0
    for number in range(count):
        following = base + 12
        data = b"".join(batches(base, (4, 5), epoch=number // 3, seed=number))
        cleaned = 5 + number if number < count // 2 else None
        world.add("t", data, following, object_encoding=MODES[mode], cleaned_through=cleaned)
        base = following + (7 if number == 1 else 0)
    return world


def records(store: ObjectStore) -> list[Record]:
    with RemoteLog(store, keys=KEYS) as bucket:
        return list(_read(bucket))


def _read(bucket: RemoteLog) -> Iterator[Record]:
    reader = bucket.reader()
    for record in reader.records(NAME, reader.offsets(NAME)[0]):
        yield record.offset, record.key, record.value, record.timestamp_ms


@dataclass(eq=False)  # a key, as every store is
class Watched:
    """A store with readers of the bucket behind it, which read before every write."""

    faults: FaultStore
    truth: list[Record]
    slow: Iterator[Record]
    erased: bytes | None = None
    seen: list[Record] = field(default_factory=list)

    def __getattr__(self, verb: str) -> object:
        target = getattr(self.faults, verb)
        if not callable(target):
            return target

        def call(*args: object, **more: object) -> object:
            if verb in WRITES:
                self.look()
            return target(*args, **more)

        return call

    def look(self) -> None:
        self.check(records(self.faults.inner), "a reader during the flow saw other records")
        for _ in range(2):
            if (record := next(self.slow, None)) is not None:
                self.seen.append(record)

    def check(self, found: list[Record], message: str) -> None:
        """The found records are those of the truth, in order; only records of the erased key may be missing."""
        missing = set(self.truth) - set(found)
        assert found == [each for each in self.truth if each not in missing], message
        assert all(key == self.erased and key is not None for _, key, _, _ in missing), message


def run_case(flow: Flow, world: CareWorld, at: int | None, kind: Kind | None) -> list[str]:
    """One complete case; returns the calls of the flow. Raises AssertionError for a broken promise."""
    return _run(flow, world, lambda number, verb: kind if number == at else None, may_fail=kind is not None)


def run_drawn(flow: Flow, world: CareWorld, seed: object) -> list[str]:
    """As `run_case`, with drawn faults: any call may meet any kind, and one flow may meet several."""
    rng = random.Random(repr(seed))
    rate = rng.choice((0.03, 0.1, 0.3))

    def plan(number: int, verb: str) -> Kind | None:
        kinds = [kind for kind in Kind if verb in kind.verbs and kind is not Kind.HANG]
        return rng.choice(kinds) if rng.random() < rate else None

    return _run(flow, world, plan, may_fail=True)


def _run(flow: Flow, world: CareWorld, plan: Plan, *, may_fail: bool) -> list[str]:
    assert isinstance(world.store, MemoryStore)
    truth = records(world.store)
    old = RemoteLog(world.store, keys=KEYS)
    faults = FaultStore(world.store, Clock(NOW))
    watched = Watched(faults, truth, _read(old), ERASED.get(flow))
    faults.follow(plan)
    try:
        flow(watched)  # type: ignore[arg-type]
    except LogError:
        assert may_fail, "the flow failed without a fault"
    calls = list(faults.calls)
    faults.heal()
    watched.look()
    flow(world.store)
    watched.look()
    watched.seen += watched.slow
    watched.check(watched.seen, "a reader that began before the flow saw other records")
    check_end(world, [each for each in truth if flow not in ERASED or each[1] != ERASED[flow]])
    return calls


def check_end(world: CareWorld, truth: list[Record]) -> None:
    """After a takeover, the grace period and garbage collection: the same records, and no other object."""
    world.logs.clear()
    MetadataLog(world.store, named("t").prefix).become_writer("next", NOW, topic="t", topic_id=TOPIC_ID, partition=0)
    later = NOW + 30 * 86_400_000
    delete_garbage(world.store, list_garbage(world.store, [named("t")], now_ms=later), now_ms=later)
    assert records(world.store) == truth
    (report,) = assert_sound_with_keys(world)
    kinds = {ObjectKind.ORPHAN, ObjectKind.IN_FLIGHT, ObjectKind.UNKNOWN}
    assert not kinds & set(report.counts()), report.counts()


def assert_sound_with_keys(world: CareWorld) -> list:
    from checked_bucket import check_bucket, damage

    reports = check_bucket(world.store, keys=KEYS)
    assert damage(reports) == []
    return reports
