"""kill -9 of a node, which is its groups' coordinator, in the middle of rebalances and commits of their members.

The members are clients that are not ours. No acknowledged commit is lost or moves back, each record below a committed
offset reached a member, and the members go on after each restart without help.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import group_calls as calls
import pytest
from racing_clients import GROUP, MEMBERS, Groups, keep_joining, value, watch
from real_daemon import LIMIT_S, Node
from run_profile import KILLS
from serve_world import PARTITIONS, Process, Race, Worker, now_ms

from local.format.record import Record
from tiered.manager.manager import LogManager

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # kafka-python and aiokafka leave failed connections open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TOPIC, COUNT = "orders", 2000
NEVER = {"session_timeout": 300_000, "rebalance_timeout": 300_000, "protocols": calls.PROTOCOLS}


@pytest.fixture
def race() -> Race:
    return Race(1, 0)


@pytest.fixture
def node(tmp_path: Path, race: Race) -> Iterator[Process]:
    (tmp_path / "node").mkdir()
    home = Node(tmp_path / "node", None)
    home.defaults |= {"segment.bytes": "64KiB", "offsets.topic.segment.bytes": "4KiB"}
    home.defaults["group.initial.rebalance.delay.ms"] = "100"
    home.configure()
    with home.manager() as manager:
        fill(manager)
    process = Process(
        race,
        tmp_path / "node.log",
        lambda port: ("-C", str(home.home), "run", "--interval", "100ms", "--kafka", f":{port}"),
    )
    try:
        process.start()
        yield process
    finally:
        process.close()


def fill(manager: LogManager) -> None:
    manager.topics.create(TOPIC, PARTITIONS, {"retention.ms": "-1"}, now_ms=now_ms())
    for partition in range(PARTITIONS):
        records = [Record(None, value(at), now_ms()) for at in range(COUNT)]
        manager.append(TOPIC, records, partition, now_ms=now_ms())


def killed(node: Process) -> None:
    node.end(9)
    node.start()


def until(claim: Callable[[], object], what: str) -> None:
    due_s = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < due_s, what
        time.sleep(0.02)


def test_members_go_on_after_kills_in_the_middle_of_rebalances_and_commits(race: Race, node: Process) -> None:
    groups = Groups(race)
    places = [(GROUP, TOPIC, number) for number in range(PARTITIONS)]
    with ThreadPoolExecutor(2) as pool:
        server = calls.Server(node.address, pool)

        def state() -> str:
            with suppress(OSError, AssertionError):
                return str(server.call(calls.DESCRIBE, 5, groups=[GROUP]).groups[0].group_state)
            return ""

        workers = [
            Worker(race, client, lambda c=client: keep_joining(groups, c, 0, [TOPIC], node.address, (1, 3)))  # type: ignore[misc]
            for client in MEMBERS
        ]
        workers.append(Worker(race, "watcher", lambda: watch(groups, [], node.address, places)))
        for kill in range(KILLS):
            if kill % 2:
                commits = race.counts["offsets committed"]
                until(lambda: race.counts["offsets committed"] > commits, "the next commit")  # noqa: B023
            else:
                until(lambda: state() == "PreparingRebalance", "the next rebalance")
            killed(node)
        done = dict.fromkeys(places, COUNT)
        until(lambda: groups.committed == done or race.wrong, "all records are consumed")
        race.stop.set()
        for each in workers:
            each.end()
        assert race.wrong == []
        for place in places:
            assert groups.received[place] == set(range(COUNT))
        found = server.call(calls.FETCH, 7, **calls.fetching(7, GROUP, [{"name": TOPIC, "partition_indexes": [0, 1]}]))
        assert [each.committed_offset for each in found.topics[0].partitions] == [COUNT, COUNT]


@pytest.mark.parametrize("stage", ["joining", "syncing", "stable"])
def test_a_group_whose_coordinator_is_killed_is_formed_again_at_once(node: Process, stage: str) -> None:
    """The session time is five minutes: a member that the node would wait for makes this test fail."""
    with ThreadPoolExecutor(4) as pool:
        server = calls.Server(node.address, pool)
        calls.wait_until_loaded(server)
        one = server.call(calls.JOIN, 9, **calls.joining(GROUP, **NEVER)).member_id
        first = server.call(calls.JOIN, 9, **calls.joining(GROUP, one, **NEVER))
        if stage != "syncing":
            server.call(calls.SYNC, 5, **calls.syncing(GROUP, first))
            committed = server.call(calls.COMMIT, 8, **calls.committing(GROUP, 5, one, first.generation_id))
            assert not committed.topics[0].partitions[0].error_code.value
        if stage == "joining":
            two = server.call(calls.JOIN, 9, **calls.joining(GROUP, **NEVER)).member_id
            server.start(calls.JOIN, 9, **calls.joining(GROUP, two, **NEVER))
            calls.until(
                lambda: server.call(calls.DESCRIBE, 5, groups=[GROUP]).groups[0].group_state == "PreparingRebalance"
            )
        killed(node)
        server = calls.Server(node.address, pool)
        calls.wait_until_loaded(server)
        if stage == "syncing":  # Kafka stores a group after its sync: this member begins anew
            lost = server.call(calls.JOIN, 9, **calls.joining(GROUP, one, **NEVER))
            assert lost.error_code.value == 25
            one = server.call(calls.JOIN, 9, **calls.joining(GROUP, **NEVER)).member_id
        again = server.call(calls.JOIN, 9, **calls.joining(GROUP, one, **NEVER))
        assert not again.error_code.value
        assert [each.member_id for each in again.members] == [one]
        assert not server.call(calls.SYNC, 5, **calls.syncing(GROUP, again)).error_code.value
        if stage != "syncing":
            found = server.call(calls.FETCH, 7, **calls.fetching(7, GROUP))
            assert found.topics[0].partitions[0].committed_offset == 5
