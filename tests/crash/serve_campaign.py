"""Kafka clients, commands and Kafka's own tools at one node at once, while the node and its replicas are killed.

    python tests/crash/serve_campaign.py [--seeds 1] [--first-seed 0] [--minutes 1] [--rate 150] [--without-java]
    python tests/crash/serve_campaign.py --planted

1. `tiered run --kafka` serves a directory whose bucket is on an S3 server of loopback. Segments are small; topics are
   plain, compacted, short-lived, trimmed, and acknowledged by the bucket. Two `tiered serve` processes are replicas.
2. librdkafka, aiokafka, kafka-python and Java's verifiable tools produce, consume in one group that rebalances all the
   time, commit, and run transactions of which some abort. Commands and Kafka's tools administer the node.
3. The node or a replica is killed at drawn moments and started again; each fourth seed runs without kills.
4. At the end each acknowledged effect is looked for (`serve_truth.py`).

With `--planted` the node breaks four promises (`serve_plants.py`), and the race must report each of them.

A broken promise is printed, and the exit code is 1. A seed draws the same kills, commands and lives of members again;
the order in which processes work is not repeated.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.parent / each) for each in ("unit/support", "interop")), str(HERE.parents[1])]

import serve_plants  # noqa: E402
from kafka_artifacts import Kafka, KafkaMissing, find_kafka  # noqa: E402
from racing_clients import (  # noqa: E402
    GROUP,
    MEMBERS,
    PRODUCERS,
    Groups,
    Pipeline,
    ReplicaReader,
    Sent,
    by_aiokafka,
    by_kafka_python,
    by_librdkafka,
    keep_joining,
    watch,
)
from serve_commands import JAVA_GROUP, Commands, Java, Trimmed  # noqa: E402
from serve_truth import check_all, check_commands  # noqa: E402
from serve_world import LIMIT_S, PARTITIONS, PROGRAM, RETENTION_MS, Race, Worker, World, now_ms  # noqa: E402

from tiered.demo.s3_endpoint import S3Endpoint  # noqa: E402

RSS_MAX_MB = 600.0  # of the node
# A race without kills, which soon draws a command that appends, one that deletes records, and aborts.
PLANTED_SEED = 1100
PLANTED = ("offsets committed", "commands", "transactions aborted")
PLAIN = [f"p-{client}" for client in PRODUCERS]
TOPICS: dict[str, dict[str, str]] = {
    **{topic: {} for topic in PLAIN},
    **{f"out-{client}": {} for client in ("librdkafka", "aiokafka")},
    "latest": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"},
    "short": {"retention.ms": str(RETENTION_MS)},
    "trimmed": {},
    "remote": {"append.acks": "remote", "remote.copy.lag.ms": "1h", "local.retention.ms": "-1"},
    "lines": {},
    "verified": {},
}


def race_once(
    seed: int,
    seconds: float,
    home: Path,
    *,
    rate: float = 150,
    java: Kafka | None = None,
    program: Sequence[str] = PROGRAM,
    is_enough: Callable[[Race, World], bool] = lambda race, world: True,
) -> Race:
    """Run one race in a new directory; `Race.wrong` has the broken promises. `program` runs the node.

    The race takes `seconds`, and longer until `is_enough`.
    """
    race = Race(seed, seconds)
    rng = race.random("settings")
    with ExitStack() as stack:
        endpoint = stack.enter_context(S3Endpoint())
        segment = rng.choice(("24KiB", "64KiB", "256KiB"))
        world = World(race, home, endpoint, segment=segment, program=program)
        stack.callback(world.close)
        with world.home.manager() as manager:
            for topic, settings in TOPICS.items():
                manager.topics.create(topic, PARTITIONS, settings, now_ms=now_ms())
        for each in (world.node, *world.replicas):
            each.start()
        _run(race, world, home, rate, java, stack, partial(is_enough, race, world))
    return race


def _run(
    race: Race,
    world: World,
    home: Path,
    rate: float,
    kafka: Kafka | None,
    stack: ExitStack,
    is_enough: Callable[[], bool],
) -> None:
    address = world.node.address
    sent = {topic: Sent(race, topic, rate) for topic in PLAIN}
    sent |= {name: Sent(race, name, rate / 3) for name in ("short", "trimmed")}
    sent |= {"latest": Sent(race, "latest", rate, keys=40), "remote": Sent(race, "remote", 5)}
    groups, trimmed = Groups(race), Trimmed(sent["trimmed"])
    pipelines = [Pipeline(race, "librdkafka", "p-librdkafka"), Pipeline(race, "aiokafka", "p-aiokafka")]
    commands, reader = Commands(world, trimmed), ReplicaReader(race, "p-aiokafka", world.replicas)
    java = Java(kafka, world, trimmed, groups, home) if kafka is not None else None
    places = [(GROUP, topic, at) for topic in PLAIN for at in range(PARTITIONS)]
    places += [(each.group, each.source, at) for each in pipelines for at in range(PARTITIONS)]
    works: dict[str, Callable[[], None]] = {
        **{f"producer of p-{name}": (lambda n=name: PRODUCERS[n](sent[f"p-{n}"], address)) for name in PRODUCERS},  # type: ignore[misc]
        "producer of latest": lambda: by_librdkafka(sent["latest"], address),
        "producer of short": lambda: by_aiokafka(sent["short"], address),
        "producer of trimmed": lambda: by_kafka_python(sent["trimmed"], address),
        "producer of remote": lambda: by_librdkafka(sent["remote"], address),
        **{f"pipeline of {each.client}": (lambda p=each: p.work(address)) for each in pipelines},  # type: ignore[misc]
        "watcher": lambda: watch(groups, list(sent.values()), address, places),
        "commands": commands.work,
        "reader of replicas": reader.work,
    }
    for number, client in enumerate((*MEMBERS, "librdkafka")):
        name = f"member {number} by {client}"
        works[name] = lambda c=client, n=number: keep_joining(groups, c, n, PLAIN, address)  # type: ignore[misc]
    if java is not None:
        stack.callback(java.close)
        works["Java tools"] = java.work
        places += [(JAVA_GROUP, "p-kafka-python", at) for at in range(PARTITIONS)]
    measuring = Worker(race, "memory", world.measure)
    workers = [Worker(race, name, work) for name, work in works.items()]
    kills = None
    if race.seed % 4:
        shortest = max(2.0, race.seconds / 40)
        kills = Worker(race, "kills", lambda: world.kill_now_and_then((shortest, shortest * 3)))
    time.sleep(race.seconds)
    due_s = time.monotonic() + LIMIT_S
    while not is_enough() and time.monotonic() < due_s:
        time.sleep(0.1)
    race.stop.set()
    for each in (kills, *workers, measuring):
        if each is not None:
            each.end()
    _finish(race, world, sent, groups, pipelines, commands, java, trimmed, reader)


def _finish(
    race: Race,
    world: World,
    sent: dict[str, Sent],
    groups: Groups,
    pipelines: list[Pipeline],
    commands: Commands,
    java: Java | None,
    trimmed: Trimmed,
    reader: ReplicaReader,
) -> None:
    if java is not None:
        java.end()
        java.read()
    due_s = time.monotonic() + LIMIT_S
    while (health := world.health())[0] != 200 and time.monotonic() < due_s:
        time.sleep(0.2)
    if health[0] != 200:
        race.broken(f"the node is not healthy at the end: {health}")
    if code := world.node.end(signal.SIGTERM):
        race.broken(f"the node ended with {code}: {world.node.log.read_text()[-1500:]}")
    for words in (("resume",), ("run", "--once")):
        done = world.tiered(*words, timeout_s=600)
        if done.returncode:
            race.broken(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-1500:]}")
    ends = check_all(world, sent, groups, pipelines, commands, java, trimmed)
    own = [ends[name] for name in sorted(ends) if name.topic == reader.topic]
    while reader.at < own and time.monotonic() < due_s + LIMIT_S:
        reader.read(lambda: reader.at >= own)
    if reader.at != own:
        race.broken(f"a reader of the replicas came to {reader.at}, the bucket has {own}")
    check_commands(race, world)
    for each in (world.node, *world.replicas):
        said = each.log.read_text()
        if "Traceback" in said or "internal error" in said:
            race.broken(f"a traceback in {each.log.name}: {said[max(0, said.find('Traceback') - 500) :][:3000]}")
        race.count(f"error lines of {each.log.stem}", said.count(" ERROR "))
    race.counts["rss MB, max"] = int(world.node.rss_max_mb)
    race.counts["rss MB of replicas, max"] = int(max(each.rss_max_mb for each in world.replicas))
    if world.node.rss_max_mb > RSS_MAX_MB:
        race.broken(f"the node used {world.node.rss_max_mb:.0f} MB")


def race_with_plants(home: Path) -> int:
    """Race with a node of planted bugs; 1 if one of them is not reported."""

    def is_enough(race: Race, world: World) -> bool:
        said = world.node.log.read_text()
        return all(each in said for each in serve_plants.REPORTS) and all(race.counts[each] for each in PLANTED)

    race = race_once(PLANTED_SEED, 6, home, rate=60, program=(serve_plants.__file__,), is_enough=is_enough)
    missed = 0
    for plant, report in serve_plants.REPORTS.items():
        found = next((each for each in race.wrong if each.startswith(report)), None)
        missed += found is None
        print(f"{plant}: {found or 'NOT REPORTED'}")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--rate", type=float, default=150, help="records a second of a producer")
    parser.add_argument("--without-java", action="store_true")
    parser.add_argument("--home", type=Path, help="a new directory that is kept; default: one that is not")
    parser.add_argument("--planted", action="store_true", help="expect reports of a node with planted bugs")
    given = parser.parse_args()
    if given.planted:
        with tempfile.TemporaryDirectory() as place:
            return race_with_plants((given.home or Path(place)) / "planted")
    java, broken = None, 0
    if not given.without_java:
        try:
            java = find_kafka()
        except KafkaMissing as error:
            print(f"without Java's tools: {error}")
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        begun_s = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            home = (given.home or Path(place)) / f"seed-{seed}"
            race = race_once(seed, given.minutes * 60, home, rate=given.rate, java=java)
        broken += len(race.wrong)
        for text in race.wrong:
            print(f"BROKEN, seed {seed}: {text}")
        facts = ", ".join(f"{name} {race.counts[name]:,}" for name in sorted(race.counts))
        print(f"seed {seed}, {time.monotonic() - begun_s:.0f} s: {facts}", flush=True)
    print("all promises kept" if not broken else f"{broken} broken promises")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
