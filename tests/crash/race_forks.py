"""A fork in a race: a process creates it, then managers and readers race for it too.

A fork has a truth of its own (`race_truth`). Its first records are the records of its source. From the return of a
successful creation on, no object that the fork names may be deleted, whatever happens to the source.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from disk_model import ModelDisk
from race_jobs import free, merge
from race_managers import Machine, config, manage
from race_readers import hold, read
from race_stage import Actor, GatedStore, Life, ProcessDied, Race
from race_truth import Truth

from local.errors import LogError
from local.names import TopicPartition
from remote.keys import parse_manifest_key, partition_prefix
from remote.manifest.catalog import list_partitions
from remote.store import Body, ObjectStore
from tiered.migrate.fork import PartitionFork, plan_fork, run_fork
from tiered.node.topic_registry import Topic, TopicRegistry

FORK = TopicPartition("f", 0)


def make_fork(actor: Actor, machines: list[Machine]) -> None:
    """A process that forks the topic, dies and runs again, until a call returns that the fork is whole."""
    race = actor.race
    while not race.is_ending:
        actor.frozen_until = race.steps + actor.rng.randrange(race.scene.steps // 5)
        actor.step("before a fork")
        store: ObjectStore = _SleepyStore(Life(actor))  # type: ignore[assignment]
        with suppress(LogError, ProcessDied):
            done = _fork_once(race, store)
            race.events.append(f"{actor.name} made a fork")
            _let_in(race, race.truth_of(done.fork.prefix), machines)
            return


class _SleepyStore(GatedStore):
    """A store whose process may sleep between announcing a fork and committing its manifest."""

    def put_if_absent(self, key: str, body: Body) -> None:
        if self.race.scene.forker_sleeps and parse_manifest_key(key.rpartition("/0/")[2]) is not None:
            self.actor.frozen_until = self.race.steps + self.actor.rng.randrange(self.race.scene.forker_sleeps)
            self.actor.step("asleep before a head")
        super().put_if_absent(key, body)


def _fork_once(race: Race, store: ObjectStore) -> PartitionFork:
    there = list_partitions(store)
    names = [name for name in there if name.prefix == race.truth.prefix]
    plan = plan_fork(store, names, FORK.topic, known=[name for name in there if name.topic == FORK.topic])
    prefix = plan.partitions[0].fork.prefix
    if not any(each.prefix == prefix for each in race.forks):
        begin(race, prefix)
    (done,) = run_fork(store, plan, now_ms=lambda: race.now_ms)
    truth = race.truth_of(prefix)
    truth.tell()
    missing = [key for key in truth.names_of(truth.manifests[-1]) if _full(truth, key) not in race.inner._objects]
    assert not missing, f"a fork was made that lacks objects: {missing[:2]}"
    return done


def begin(race: Race, prefix: str) -> Truth:
    """The truth of a fork before its creation has returned."""
    truth = Truth(race.inner, lambda: race.now_ms, race.scene)
    truth.source, truth.is_told = race.truth, False
    truth.begin(prefix, FORK)
    race.forks.append(truth)
    return truth


def _full(truth: Truth, key: str) -> str:
    return key[1:] if key.startswith("/") else truth.prefix + key


def _let_in(race: Race, truth: Truth, machines: list[Machine]) -> None:
    """Start the managers and readers of the fork; the first machine is for the final phase."""
    topic_id = truth.prefix.split("/")[0].removeprefix("f-")
    settings = {**race.scene.topic, **race.scene.fork_topic}
    topic = Topic(name=FORK.topic, topic_id=topic_id, partition_count=1, properties=settings, was_tiered=True)
    assert partition_prefix(topic.name, topic.topic_id, 0) == truth.prefix
    machines += [Machine(f"fork {name}", _disk_that_knows(topic), race.scene, truth) for name in ("last", "x", "y")]
    for machine in machines[1:]:
        race.spawn(machine.name, partial(manage, machine), weight=3)
    race.spawn("fork reader", partial(read, truth=truth))
    race.spawn("fork holder", partial(hold, truth=truth))
    if race.scene.has_guest:
        race.spawn("fork guest", partial(merge, truth=truth))
    if race.scene.has_freer:
        race.spawn("fork freer", partial(free, truth=truth))


def _disk_that_knows(topic: Topic) -> ModelDisk:
    disk = ModelDisk()
    root = config().data_dir
    disk.make_directory(root)
    disk.sync_directory(".")
    TopicRegistry([(disk, root)]).add(topic)
    return disk
