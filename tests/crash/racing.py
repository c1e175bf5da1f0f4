"""Several managers and readers race for one partition in the order of a seed; then the checks.

Everything is drawn from one seed. Each actor runs its real code in a thread of its own, and stops before and after
every call to the store, and at some effects of its disk. One baton decides which actor continues. So any actor may
pause at any step for any time, while others take over, commit, compact, expire and delete.

Time is virtual. A request may be refused, lose its answer, or arrive long after its sender got an error. A process may
be killed in the middle of a call, before or after its effect. Its machine may lose power, and returns with the state of
its disk or with a fresh disk.

| actor | module |
|---|---|
| two or three managers: append, copy, compact, replace entries, build and drop views, delete | `race_managers` |
| a reader of log and view by manifests that may be old; a reader that pins a manifest for hours | `race_readers` |
| a co-writer job that merges entries; a process that lists and deletes orphans | `race_jobs` |
| housekeeping with a conditional takeover, to delete due objects | `race_jobs` |
| a process that forks the topic; then managers, readers and a job of the fork too | `race_forks` |

`race_scenes` draws the topic, the size of manifest pages and the number of manifests that are retained. The bucket is
checked at every effect. The truth is the sequence of its manifests (`race_truth`):

1. Manifests form one chain. An epoch has one writer. A named object exists and is complete as long as it is named.
2. A committed offset has its record for ever. The log start offset never falls.
3. No object is deleted that the newest manifest or a pinned manifest names, or before its grace period, or that another
   program stored.
4. A manifest has every committed record from the log start on. For a compacted log it has the newest record of every
   key, and no key returns after its tombstone was removed. A view has the newest value of every key below its horizon,
   and no other record.
5. A reader with any old manifest gets exactly these records, or an error that they are deleted.
6. A fork has the records of its source. No object is deleted that the fork names, that is in the fork's grace period,
   or that the fork's readers have pinned, whatever happens to the source.
7. No segment is copied while uploads of a manager are paused.
8. A disk deletes a record only when the bucket holds it, or retention has passed it, or a newer record of its key
   exists. Every record that a machine acknowledged is on its disk, or committed, or below the log start offset.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from bucket_truth import assert_sound
from race_forks import make_fork
from race_jobs import collect, collect_all, free, merge
from race_managers import Machine, append, manage, new_machines, open_manager
from race_readers import hold, read
from race_scenes import SceneOfRace, scene_of
from race_stage import HOUR, Actor, GatedStore, Life, Race
from race_truth import Truth

from local.errors import Conflict, Corrupt
from remote.check.partition_check import ObjectKind
from remote.keys import partition_prefix
from tiered.manager.manager import LogManager
from tiered.migrate import fork
from tiered.read.bucket_reader import RemoteLog

__all__ = ["GatedStore", "Race", "race_once"]

QUIET_HOURS = 4  # between two rounds of the final phase
ROUNDS_MAX = 12


def race_once(seed: int, *, managers: int | None = None, scene: SceneOfRace | None = None) -> Race:
    """Run one race and its final phase. Raises AssertionError with the last steps of the seed."""
    race = Race(seed, scene or scene_of(seed))
    with ExitStack() as stack:
        stack.enter_context(_drawn_ids(race))
        stack.enter_context(race.scene.set_up())
        (last, *machines), topic = new_machines(race, managers or (2 if seed % 2 else 3))
        of_fork: list[Machine] = []  # the first one, if any, is for the final phase
        race.truth.begin(partition_prefix("t", topic.topic_id, 0))
        for machine in machines:
            race.spawn(machine.name, partial(manage, machine), weight=4)
        race.spawn("reader", partial(read, truth=race.truth))
        if not race.scene.is_plain:
            race.spawn("holder", partial(hold, truth=race.truth))
            race.spawn("collector", collect)
        if race.scene.has_guest:
            race.spawn("guest", partial(merge, truth=race.truth))
        if race.scene.has_freer:
            race.spawn("freer", partial(free, truth=race.truth))
        if race.scene.has_fork:
            race.spawn("forker", partial(make_fork, machines=of_fork), race.scene.forker_weight)
        try:
            race.run()
            _peace(race, [*of_fork[:1], last], [*of_fork[1:], *machines])
        except (AssertionError, Corrupt) as error:
            told = "\n".join(race.events[-25:])
            raise AssertionError(f"seed {seed} ({race.scene.kind}): {error}\n{told}") from error
    return race


def _peace(race: Race, lasts: Sequence[Machine], machines: Sequence[Machine]) -> None:
    """The final phase, without faults.

    One machine takes over and finishes its work, of a fork first. Then all promises are checked.
    """
    for machine in machines:
        machine.disk.locks.clear()
        machine.check()
    race.trouble = race.kills = 0.0
    for last in lasts:
        race.actors, race.steps = [], 0
        race.spawn("last", partial(_finish, last, last is lasts[-1]))
        race.run()
    for truth in (race.truth, *race.forks):
        truth.check_strangers()
    half_made = frozenset(truth.prefix for truth in race.forks if not truth.is_told)  # their creators were killed
    reports = assert_sound(race.inner, half_made=half_made)
    whole = [each for each in reports if each.prefix not in half_made]  # the next run finishes the others
    left = {ObjectKind.UNLINKED, ObjectKind.ORPHAN} & {kind for each in whole for kind in each.counts()}
    assert not left, f"objects that no process will delete: {left}"
    for machine in machines:
        machine.check()


def _finish(machine: Machine, is_last: bool, actor: Actor) -> None:
    race, truth = actor.race, machine.truth
    manager = open_manager(machine, Life(actor, machine.disk))
    name = machine.partition
    if truth.is_deleted:
        assert isinstance(manager.problems.get(name), Conflict), "a deleted partition accepted a writer"
        manager.topics.delete(name.topic, now_ms=race.now_ms)
    else:
        append(machine, race, manager, actor.rng, 20)
        manager.partitions.roll(name.topic, now_ms=race.now_ms)
    _finish_rounds(machine, race, manager)
    if not is_last and actor.rng.random() < 0.5:
        machine.acked = {}
        manager.topics.delete(name.topic, now_ms=race.now_ms)
        _finish_rounds(machine, race, manager)
    if is_last:
        assert collect_all(actor) == 0, "orphans are never deleted"
    manager.close()


def _finish_rounds(machine: Machine, race: Race, manager: LogManager) -> None:
    for _ in range(ROUNDS_MAX):
        while manager.tick(race.now_ms):
            pass
        assert not manager.problems, f"problems remain in the final phase: {manager.problems}"
        machine.check()
        for truth in (race.truth, *(each for each in race.forks if each.is_told)):
            _check_bucket(race, truth)
        if _is_finished(machine.truth):
            break
        race.now_ms += QUIET_HOURS * HOUR
    assert _is_finished(machine.truth), "pending deletes are never deleted"


def _is_finished(truth: Truth) -> bool:
    manifest = truth.manifests[-1]
    is_waiting = manifest.pending_deletes or manifest.pending_page_deletes
    return not is_waiting and not (truth.is_deleted and (manifest.has_entries or manifest.views))


def _check_bucket(race: Race, truth: Truth) -> None:
    """A fresh reader gets exactly the committed records above the log start offset."""
    if truth.is_deleted or not truth.manifests:
        return
    bucket = RemoteLog(race.inner, topic_ids=truth.topic_ids).reader()
    start, end = bucket.offsets(truth.name)
    truth.check_read(bucket.records(truth.name, start) if start < end else (), start, end, truth.log_start)


@contextmanager
def _drawn_ids(race: Race) -> Iterator[None]:
    """Names of objects and commits come from the seed, so that each race of a seed is the same."""
    rng = random.Random(f"{race.seed} ids")
    real = secrets.randbits
    new_topic_id, fork.new_topic_id = fork.new_topic_id, lambda: f"{rng.getrandbits(64):021x}A"  # type: ignore[attr-defined]
    secrets.randbits = rng.getrandbits
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        secrets.randbits = real
        fork.new_topic_id = new_topic_id  # type: ignore[attr-defined]
        logging.disable(level)
