"""The doctor's checks of the store and its content: permissions, guarantees, clock, manifests, pins.

Unfinished uploads are checked too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from local.errors import LogError, NotFound
from remote.gc.object_deletion import DeleteReason, delete_objects
from remote.gc.pins import list_pins
from remote.keys import PROBES, new_ulid
from remote.manifest.commit_protocol import MetadataLog
from remote.manifest.manifest import Manifest
from remote.store import ObjectStore
from remote.store.probe import probe_store
from tiered.config.units import counted, format_bytes, format_ms
from tiered.health.doctor import Check, Finding, Patient, State, failed
from tiered.manager.manager import LogManager
from tiered.node.problem_groups import group_problems, problems_of
from tiered.partition.partition import Partition
from tiered.read.partition_source import PartitionSource

SKEW_WARNING_MS = 30_000
SKEW_ERROR_MS = 5 * 60_000  # S3 refuses signatures that are 15 minutes off
RESOLUTION_MS = 1000  # stores report whole seconds
PARTITIONS_LOOKED_AT = 200  # pins cost a listing each
PIN_MS_LONG = 7 * 86_400_000
UPLOAD_MS_OLD = 86_400_000
MANIFEST_BYTES_LARGE = 8 << 20


def permissions(patient: Patient) -> Iterator[Finding]:
    """Check list, create, read and delete separately, and compare the store's clock with this one."""
    store, clock = _store(patient), patient.around.clock_ms
    begun = clock()
    try:
        store.list_prefixes("")
    except LogError as error:
        yield failed("store", error)
        return
    yield Finding(check="store", state=State.OK, what=f"{store.url} replies to a listing in {clock() - begun} ms")
    if not patient.may_write:
        yield Finding(check="permissions", state=State.SKIPPED, what="creating and deleting were not tried")
        return
    key, body = f"{PROBES}{new_ulid(begun)}", b"tiered doctor\n"
    done: list[str] = []
    before = after = clock()
    try:
        store.put_if_absent(key, body)
        after = clock()
        done.append("create")
        if store.get(key) != body:
            yield _bad("permissions", "the store returned other bytes than were written", "do not use this store")
        done.append("read")
        modified_ms = store.head(key).modified_ms
        done.append("look")
    except LogError as error:
        yield failed("permissions", error)
        modified_ms = None
    finally:
        yield from _deleted(store, key, done)
    yield Finding(check="permissions", state=State.OK, what=f"may list, {', '.join(done)}")
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
    except LogError as error:
        yield failed("permissions", error)
    else:
        step = "is it versioned, locked, or without s3:DeleteObject?"
        yield _bad("permissions", f"a deleted object still exists: key={key}", step)


def _skew(modified_ms: int, before_ms: int, after_ms: int) -> Finding:
    """Report the smallest difference of both clocks that the measurement proves."""
    late, early = modified_ms - after_ms, before_ms - (modified_ms + RESOLUTION_MS)
    skew_ms = max(late, early, 0)
    if skew_ms < SKEW_WARNING_MS:
        return Finding(
            check="clock",
            state=State.OK,
            what=f"the clocks of the store and this machine differ by {format_ms(skew_ms)} at most",
        )
    what = (
        f"the clock of this machine is {format_ms(skew_ms)} {('behind' if late > early else 'ahead of')} "
        "the clock of the store"
    )
    state = State.ERROR if skew_ms >= SKEW_ERROR_MS else State.WARNING
    step = "set the clock by NTP: retention, grace periods and S3 signatures depend on it"
    return Finding(check="clock", state=state, what=what, next_step=step)


def guarantees(patient: Patient) -> Iterator[Finding]:
    """Check that the store creates an object only if absent, also in concurrent calls."""
    if not patient.may_write:
        yield Finding(check="guarantees", state=State.SKIPPED, what="not tried")
        return
    found = probe_store(_store(patient), now_ms=patient.around.clock_ms(), is_racing=True)
    if found.allows_writers:
        yield Finding(
            check="guarantees",
            state=State.OK,
            what="the store supports create-if-absent; one of several concurrent creates succeeds",
        )
    elif patient.config.is_single_writer:
        what = "the store overwrites existing objects; remote.single.writer=true states that no other process writes"
        yield Finding(
            check="guarantees", state=State.WARNING, what=what, next_step="move to a store with create-if-absent"
        )
    else:
        what = "the store overwrites existing objects: two managers would lose records"
        yield _bad("guarantees", what, "use another store, or set remote.single.writer=true if no other process writes")


def unfinished(patient: Patient) -> Iterator[Finding]:
    """Report incomplete multipart uploads; they cost money and no listing shows them."""
    from remote.store.unfinished_uploads import UnfinishedUploads
    from tiered.stores.configured_store import store_options

    url, now_ms = patient.config.remote_url or "", patient.around.clock_ms()
    if not url.startswith("s3://"):
        return
    if patient.is_away():  # a separate client with its own timeouts lists them
        yield Finding(check="uploads", state=State.SKIPPED, what="the store did not reply")
        return
    options = store_options(patient.config)
    options.pop("client", None)
    found = UnfinishedUploads(url, options).list()
    old = [each for each in found if now_ms - each.begun_ms > UPLOAD_MS_OLD]
    if not old:
        yield Finding(check="uploads", state=State.OK, what=f"{len(found)} unfinished, none older than a day")
        return
    since = format_ms((now_ms - min(each.begun_ms for each in old)) // 3_600_000 * 3_600_000)
    what = f"{len(old)} uploads were never finished, the oldest began {since} ago"
    step = "tiered gc; add a lifecycle rule that aborts incomplete uploads"
    yield Finding(check="uploads", state=State.WARNING, what=what, next_step=step)


def partitions(patient: Patient) -> Iterator[Finding]:
    """Open every partition read-only and check its log, manifest, pending deletes and pins."""
    now_ms = patient.around.clock_ms()
    with LogManager.open(
        patient.config, now_ms=now_ms, read_only=True, storage=patient.around.storage, store=patient.store
    ) as manager:
        for group in group_problems(problems_of(manager.problems)):
            errors = {str(name): error for name, error in manager.problems.items()}
            yield _bad("partitions", group.line, failed("partitions", errors[group.places[0]]).next_step)
        held = manager.partitions()
        count = sum(topic.partition_count for topic in manager.topics())
        whole = sum(each.name not in manager.problems for each in held)
        rest = "" if whole == count else "; the others are listed above"
        # A partition with a problem does not count, although its log opens: a start refuses it.
        state = State.OK if whole == count else State.SKIPPED
        yield Finding(check="partitions", state=state, what=f"{whole} of {count} can be opened{rest}")
        for each in held:
            yield from _of_manifest(each)
        yield from _pins(patient, held, now_ms)


def _of_manifest(held: Partition) -> Iterator[Finding]:
    from remote.manifest.manifest import lacks_seal, size_of

    manifest = held.manifest()
    if manifest is None:
        return
    if lacks_seal(manifest):
        what = f"{held.name}: encrypted, and its manifests are not sealed: forgeries and rollbacks are not detected"
        step = f"upgrade all readers, then: tiered rotate-keys {manifest.topic}"
        yield Finding(check="index", state=State.WARNING, what=what, next_step=step)
    if held.fatal_error is None and held.log.size_bytes and held.log.next_offset < manifest.allocated_end_offset:
        yield _behind(held, manifest)
    size_bytes = size_of(manifest)
    if size_bytes > MANIFEST_BYTES_LARGE:
        waits = f"{counted(len(manifest.pending_deletes), 'pending delete')}"
        what = f"{held.name}: its manifest has {format_bytes(size_bytes)}, {waits}"
        yield Finding(check="index", state=State.WARNING, what=what, next_step="check that a manager runs: tiered run")


def _behind(held: Partition, manifest: Manifest) -> Finding:
    """Report the next start's handling of a log that ends below the bucket's end.

    The start's own check decides.
    """
    from tiered.partition.reconciliation import check_same_records

    try:
        check_same_records(held, PartitionSource(held.name, None, held.remote, held.metadata), manifest)
    except LogError as error:
        finding = failed("partitions", error)
        return _bad("partitions", f"{held.name}: {finding.what}", finding.next_step)
    what = f"{held.name}: the log ends at {held.log.next_offset}, the bucket at {manifest.allocated_end_offset}"
    step = (
        "another machine wrote, or this disk lost the end of the log; the next start continues at the end of the bucket"
    )
    return Finding(check="index", state=State.WARNING, what=what, next_step=step)


def _pins(patient: Patient, held: Iterable[Partition], now_ms: int) -> Iterator[Finding]:
    """Report pins that hold objects for long, and ended pins that were not removed.

    A fork's pin outlives its end.
    """
    if patient.store is None:
        return
    looked_at = [each for each in held if isinstance(each.metadata, MetadataLog)]
    count = forks = 0
    for each in looked_at[:PARTITIONS_LOOKED_AT]:
        for pin in list_pins(patient.store, each.prefix):
            left_ms = pin.expires_ms - now_ms
            if pin.fork is not None and left_ms <= 0:
                forks += 1
                continue
            count += 1
            if left_ms > PIN_MS_LONG:
                what = f"{each.name}: pinned by {pin.holder} for another {format_ms(left_ms // 1000 * 1000)}"
                step = (
                    f"no object that it names is deleted until then; delete {each.prefix}{pin.key} if its "
                    "reader has ended"
                )
                yield Finding(check="pins", state=State.WARNING, what=what, next_step=step)
            elif left_ms < -PIN_MS_LONG:
                what = f"{each.name}: the pin of {pin.holder} expired {format_ms(-left_ms // 1000 * 1000)} ago"
                step = "it has no effect; the next garbage collection of manifests deletes it"
                yield Finding(check="pins", state=State.WARNING, what=what, next_step=step)
    more = f", of the first {PARTITIONS_LOOKED_AT} partitions" if len(looked_at) > PARTITIONS_LOOKED_AT else ""
    forked = f", {counted(forks, 'fork')} of partitions" if forks else ""
    yield Finding(check="pins", state=State.OK, what=f"{counted(count, 'reader')} with pins on manifests{forked}{more}")


def _store(patient: Patient) -> ObjectStore:
    assert patient.store is not None, "these checks need a store"
    return patient.store


def _bad(check: str, what: str, step: str) -> Finding:
    return Finding(check=check, state=State.ERROR, what=what, next_step=step)


STORE_CHECKS: Iterable[tuple[str, Check]] = (
    ("store", permissions),
    ("guarantees", guarantees),
    ("uploads", unfinished),
)
PARTITION_CHECKS: Iterable[tuple[str, Check]] = (("partitions", partitions),)
