"""Several managers and readers race for one partition, one step at a time, as a seed has it; then what must hold.

Everything that happens is drawn from one seed: each actor runs its real code in a thread of its own, and stops before
every call to the store, after it, and at some effects of its disk; one baton says who goes on. So any of them is
paused at any step for as long as the seed wants, while the others take over, commit, compact, expire, delete. Time is
virtual. A request may be refused, lose its answer, or arrive long after its sender was told that it failed. A process
may be killed in the middle of a call, before its effect or after it; its machine may lose its power, and comes back
with what its disk remembers, or with a fresh disk.

| actor | module |
|---|---|
| two or three managers: append, tier, compact, replace rows, build and drop views, expire, delete | `race_managers` |
| a reader of log and view by heads that may be old; one that pins a head and reads for hours | `race_readers` |
| a job, guest of the epoch, that merges rows; whoever collects what is nobody's, in two steps | `race_others` |
| housekeeping that takes the epoch from whom it saw, to free what is due | `race_others` |
| whoever forks the topic; then managers, a reader, a holder and a job of the fork as well | `race_forks` |

What the topic is, how early rows go into pages, how few heads are kept: `race_scenes`. The bucket is watched at every
effect, the truth being what its heads said, one after another (`race_truth`):

* heads form one chain; an epoch has one writer; what is named is there, whole, when it is named and as long as it is.
* an offset, once committed, has that record for ever; the log start never goes back; nothing that a head names is
  deleted, nothing before its grace time, nothing that a pinned head names, nothing that is not ours.
* a head has every committed record from the log start on. Of a compacted log it has the newest of every key, and no key
  comes back whose tombstone has left. A view has the newest value of every key below its horizon, and nothing else.
* a reader, with however old a head, gets these records and no others, or is told that they are gone.
* a fork has its source's records; nothing that it names, lists for its grace time, or that its readers have pinned is
  ever deleted, whatever becomes of its source.
* while a manager's uploads are paused none of its segments goes up.
* a disk lets go of a record only when the bucket holds it, or retention has passed it, or a newer one of its key is
  there: every record that a machine acknowledged is on its disk, or committed, or below the log start.
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
from race_managers import Machine, append, manage, new_machines, open_manager
from race_others import collect, collect_all, free, merge
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

QUIET_HOURS = 4  # between two rounds of the peace
ROUNDS_MAX = 12


def race_once(seed: int, *, managers: int | None = None, scene: SceneOfRace | None = None) -> Race:
    """One race to its end, and the peace after it. Raises AssertionError, naming the seed's last steps."""
    race = Race(seed, scene or scene_of(seed))
    with ExitStack() as stack:
        stack.enter_context(_drawn_ids(race))
        stack.enter_context(race.scene.set_up())
        (last, *machines), topic = new_machines(race, managers or (2 if seed % 2 else 3))
        of_fork: list[Machine] = []  # when there is one, the first of them for the peace
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
    """Nobody fails any more. One machine takes over and finishes, of a fork first; then all that was promised is looked
    for."""
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
    half_made = frozenset(truth.prefix for truth in race.forks if not truth.is_told)  # whoever made them was killed
    reports = assert_sound(race.inner, half_made=half_made)
    whole = [each for each in reports if each.prefix not in half_made]  # what is left of others, the next run ends
    left = {ObjectKind.UNLINKED, ObjectKind.ORPHAN} & {kind for each in whole for kind in each.counts()}
    assert not left, f"left behind for good: {left}"
    for machine in machines:
        machine.check()


def _finish(machine: Machine, is_last: bool, actor: Actor) -> None:
    race, truth = actor.race, machine.truth
    manager = open_manager(machine, Life(actor, machine.disk))
    name = machine.partition
    if truth.is_deleted:
        assert isinstance(manager.problems.get(name), Conflict), "a deleted partition takes a writer"
        manager.delete_topic(name.topic, now_ms=race.now_ms)
    else:
        append(machine, race, manager, actor.rng, 20)
        manager.roll(name.topic, now_ms=race.now_ms)
    _finish_rounds(machine, race, manager)
    if not is_last and actor.rng.random() < 0.5:
        machine.acked = {}
        manager.delete_topic(name.topic, now_ms=race.now_ms)
        _finish_rounds(machine, race, manager)
    if is_last:
        assert collect_all(actor) == 0, "orphans stay for ever"
    manager.close()


def _finish_rounds(machine: Machine, race: Race, manager: LogManager) -> None:
    for _ in range(ROUNDS_MAX):
        while manager.tick(race.now_ms):
            pass
        assert not manager.problems, f"no peace: {manager.problems}"
        machine.check()
        for truth in (race.truth, *(each for each in race.forks if each.is_told)):
            _check_bucket(race, truth)
        if _is_finished(machine.truth):
            break
        race.now_ms += QUIET_HOURS * HOUR
    assert _is_finished(machine.truth), "objects wait for their deletion for ever"


def _is_finished(truth: Truth) -> bool:
    head = truth.heads[-1]
    is_waiting = head.unlinked or head.unlinked_pages
    return not is_waiting and not (truth.is_deleted and (head.has_rows or head.views))


def _check_bucket(race: Race, truth: Truth) -> None:
    """By a reader who comes fresh: everything committed above the log start, and nothing else."""
    if truth.is_deleted or not truth.heads:
        return
    bucket = RemoteLog(race.inner, topic_ids=truth.topic_ids).reader()
    start, end = bucket.offsets(truth.name)
    truth.check_read(bucket.records(truth.name, start) if start < end else (), start, end, truth.log_start)


@contextmanager
def _drawn_ids(race: Race) -> Iterator[None]:
    """Names of objects and commits come from the seed, so that a seed's story is the same every time."""
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
