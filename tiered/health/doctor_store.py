"""The doctor's checks of the store and its content: permissions, guarantees, clock, manifests, pins, uploads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from local.errors import LogError, NotFound
from local.verify.findings import Finding, Severity, error, passed, warning
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.gc.pins import list_pins
from remote.keys import PROBES, new_ulid
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest, lacks_seal, size_of
from remote.store import ObjectStore
from remote.store.probe import probe_store
from tiered.config.units import counted, format_bytes, format_ms
from tiered.health.doctor import Check, Patient, failed, not_checked
from tiered.manager.manager import LogManager
from tiered.node.problems import group_problems, next_step, problems_of, shared_places
from tiered.partition.partition import Partition
from tiered.read.partition_source import PartitionSource

SKEW_WARNING_MS = 30_000
SKEW_ERROR_MS = 5 * 60_000  # S3 refuses signatures that are 15 minutes off
RESOLUTION_MS = 1000  # stores report whole seconds
PARTITIONS_LOOKED_AT = 200  # pins cost a listing each
PIN_MS_LONG = 7 * 86_400_000
UPLOAD_MS_OLD = 86_400_000
MANIFEST_BYTES_LARGE = 8 << 20

_OTHER_BYTES = error(
    "permissions.other-bytes", "the store returned other bytes than were written", "do not use this store"
)
_NOT_DELETED = error(
    "permissions.delete", "a deleted object still exists", "is it versioned, locked, or without s3:DeleteObject?"
)
_SKEW = warning(
    "clock.skew",
    "the clock of this machine is {skew} {relation} the clock of the store",
    "set the clock by NTP: retention, grace periods and S3 signatures depend on it",
)
_OVERWRITES_ALONE = warning(
    "guarantees.single-writer",
    "the store overwrites existing objects; remote.single.writer=true states that no other process writes",
    "move to a store with create-if-absent",
)
_OVERWRITES = error(
    "guarantees.overwrites",
    "the store overwrites existing objects: two managers would lose records",
    "use another store, or set remote.single.writer=true if no other process writes",
)
_OLD_UPLOADS = warning(
    "uploads.old",
    "{count} uploads were never finished, the oldest began {age} ago",
    "tiered gc; add a lifecycle rule that aborts incomplete uploads",
)
_UNOPENED = error("partitions.unopened", "the partition cannot be opened")
_UNSEALED = warning(
    "index.unsealed", "encrypted, and its manifests are not sealed: forgeries and rollbacks are not detected"
)
_LARGE_MANIFEST = warning("index.large", "its manifest has {size}, {pending}", "check that a manager runs: tiered run")
_BEHIND = warning(
    "index.behind",
    "the log ends at {local}, the bucket at {remote}",
    "another machine wrote, or this disk lost the end of the log; the next start continues at the end of the bucket",
)
_LONG_PIN = warning("pins.long", "pinned by {holder} for another {remaining}")
_EXPIRED_PIN = warning(
    "pins.expired",
    "the pin of {holder} expired {age} ago",
    "it has no effect; the next garbage collection of manifests deletes it",
)


def permissions(patient: Patient) -> Iterator[Finding]:
    """Check list, create, read and delete separately, and compare the store's clock with this one."""
    store, clock = _store(patient), patient.around.clock_ms
    start_ms = clock()
    try:
        store.list_prefixes("")
    except LogError as problem:
        yield failed("store", problem)
        return
    yield passed("store", f"{store.url} replies to a listing in {clock() - start_ms} ms")
    if not patient.may_write:
        yield not_checked("permissions", "creating and deleting were not tried")
        return
    key, body = f"{PROBES}{new_ulid(start_ms)}", b"tiered doctor\n"
    done: list[str] = []
    before = after = clock()
    try:
        store.put_if_absent(key, body)
        after = clock()
        done.append("create")
        if store.get(key) != body:
            yield _OTHER_BYTES.found("")
        done.append("read")
        modified_ms = store.head(key).modified_ms
        done.append("look")
    except LogError as problem:
        yield failed("permissions", problem)
        modified_ms = None
    finally:
        yield from _deleted(store, key, done)
    yield passed("permissions", f"may list, {', '.join(done)}")
    if modified_ms is not None:
        yield _skew(modified_ms, before, after)


def _deleted(store: ObjectStore, key: str, done: list[str]) -> Iterator[Finding]:
    """Delete the probe, if it was created; report a store that refuses deletes."""
    if not done:
        return
    try:
        delete_objects(store, "", [key], DeleteReason.PROBE)
        store.head(key)
    except NotFound:
        done.append("delete")
    except LogError as problem:
        yield failed("permissions", problem)
    else:
        yield _NOT_DELETED.found("", object=key)


def _skew(modified_ms: int, before_ms: int, after_ms: int) -> Finding:
    """Report the smallest difference of both clocks that the measurement proves."""
    late, early = modified_ms - after_ms, before_ms - (modified_ms + RESOLUTION_MS)
    skew_ms = max(late, early, 0)
    if skew_ms < SKEW_WARNING_MS:
        return passed("clock", f"the clocks of the store and this machine differ by {format_ms(skew_ms)} at most")
    severity = Severity.ERROR if skew_ms >= SKEW_ERROR_MS else Severity.WARNING
    relation = "behind" if late > early else "ahead of"
    return _SKEW.found("", severity=severity, skew=format_ms(skew_ms), relation=relation)


def guarantees(patient: Patient) -> Iterator[Finding]:
    """Check that the store creates an object only if absent, also in concurrent calls."""
    if not patient.may_write:
        yield not_checked("guarantees", "not tried")
        return
    found = probe_store(_store(patient), now_ms=patient.around.clock_ms(), is_racing=True)
    if found.allows_writers:
        what = "the store supports create-if-absent; one of several concurrent creates succeeds"
        yield passed("guarantees", what)
    else:
        yield (_OVERWRITES_ALONE if patient.config.is_single_writer else _OVERWRITES).found("")


def unfinished(patient: Patient) -> Iterator[Finding]:
    """Report incomplete multipart uploads; they cost money and no listing shows them."""
    from remote.store.unfinished_uploads import UnfinishedUploads
    from tiered.stores.configured_store import store_options

    url, now_ms = patient.config.remote_url or "", patient.around.clock_ms()
    if not url.startswith("s3://"):
        return
    if patient.is_away():  # a separate client with its own timeouts lists them
        yield not_checked("uploads", "the store did not reply")
        return
    options = store_options(patient.config)
    options.pop("client", None)
    found = UnfinishedUploads(url, options).list()
    old = [each for each in found if now_ms - each.begun_ms > UPLOAD_MS_OLD]
    if not old:
        yield passed("uploads", f"{len(found)} unfinished, none older than a day")
        return
    age = format_ms((now_ms - min(each.begun_ms for each in old)) // 3_600_000 * 3_600_000)
    yield _OLD_UPLOADS.found("", count=len(old), age=age)


# --- both tiers ------------------------------------------------------------------------------------------------------


def partitions(patient: Patient) -> Iterator[Finding]:
    """Open every partition read-only and check its log, manifest, pending deletes and pins."""
    now_ms = patient.around.clock_ms()
    with LogManager.open(
        patient.config, now_ms=now_ms, read_only=True, storage=patient.around.storage, store=patient.store
    ) as manager:
        for group in group_problems(problems_of(manager.problems)):
            name = group.first.partition
            step = next_step(manager.problems[name]) if name is not None else None
            yield _UNOPENED.found(shared_places(group.places), what=group.what, next_step=step)
        held = manager.partitions.all()
        count = sum(topic.partition_count for topic in manager.topics.all())
        opened = sum(each.name not in manager.problems for each in held)
        # A partition with a problem does not count, although its log opens: a start refuses it.
        what = f"{opened} of {count} can be opened"
        yield (
            passed("partitions", what)
            if opened == count
            else not_checked("partitions", f"{what}; the others are listed above")
        )
        for each in held:
            yield from _of_manifest(each)
        yield from _pins(patient, held, now_ms)


def _of_manifest(held: Partition) -> Iterator[Finding]:
    manifest, where = held.manifest(), str(held.name)
    if manifest is None:
        return
    if lacks_seal(manifest):
        yield _UNSEALED.found(where, next_step=f"upgrade all readers, then: tiered rotate-keys {manifest.topic}")
    if held.fatal_error is None and held.log.size_bytes and held.log.next_offset < manifest.allocated_end_offset:
        yield _behind(held, manifest)
    size_bytes = size_of(manifest)
    if size_bytes > MANIFEST_BYTES_LARGE:
        pending = counted(len(manifest.pending_deletes), "pending delete")
        yield _LARGE_MANIFEST.found(where, size=format_bytes(size_bytes), pending=pending)


def _behind(held: Partition, manifest: Manifest) -> Finding:
    """Report the next start's handling of a log that ends below the bucket's end.

    The start's own check decides.
    """
    from tiered.partition.reconciliation import check_same_records

    try:
        check_same_records(held, PartitionSource(held.name, None, held.remote, held.metadata), manifest)
    except LogError as problem:
        return failed("partitions", problem, str(held.name))
    return _BEHIND.found(str(held.name), local=held.log.next_offset, remote=manifest.allocated_end_offset)


def _pins(patient: Patient, held: Iterable[Partition], now_ms: int) -> Iterator[Finding]:
    """Report pins that hold objects for long, and ended pins that were not removed.

    A fork's pin outlives its end.
    """
    if patient.store is None:
        return
    with_manifests = [each for each in held if isinstance(each.metadata, MetadataLog)]
    readers = forks = 0
    for each in with_manifests[:PARTITIONS_LOOKED_AT]:
        for pin in list_pins(patient.store, each.prefix):
            remaining_ms = pin.expires_ms - now_ms
            if pin.fork is not None and remaining_ms <= 0:
                forks += 1
                continue
            readers += 1
            if remaining_ms > PIN_MS_LONG:
                key = f"{each.prefix}{pin.key}"
                step = f"no object that it names is deleted until then; delete {key} if its reader has ended"
                remaining = format_ms(remaining_ms // 1000 * 1000)
                yield _LONG_PIN.found(str(each.name), next_step=step, holder=pin.holder, remaining=remaining)
            elif remaining_ms < -PIN_MS_LONG:
                age = format_ms(-remaining_ms // 1000 * 1000)
                yield _EXPIRED_PIN.found(str(each.name), holder=pin.holder, age=age)
    more = f", {counted(forks, 'fork')} of partitions" if forks else ""
    if len(with_manifests) > PARTITIONS_LOOKED_AT:
        more += f", of the first {PARTITIONS_LOOKED_AT} partitions"
    yield passed("pins", f"{counted(readers, 'reader')} with pins on manifests{more}")


def _store(patient: Patient) -> ObjectStore:
    assert patient.store is not None, "these checks need a store"
    return patient.store


STORE_CHECKS: Iterable[tuple[str, Check]] = (
    ("store", permissions),
    ("guarantees", guarantees),
    ("uploads", unfinished),
)
PARTITION_CHECKS: Iterable[tuple[str, Check]] = (("partitions", partitions),)
