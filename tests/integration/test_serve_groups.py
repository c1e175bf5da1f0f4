"""Independent clients consume a node in groups: they share partitions, commit, rebalance, continue after a crash."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import group_calls as calls
import pytest
from group_consumers import CONSUMERS, GROUP, Confluent, Member, have_committed
from kafka_requests import KafkaSocket
from polled_group import (
    COUNT,
    PARTITIONS,
    expected,
    fill,
    node,
    poll_until,
    share_all,
)
from real_daemon import FOR_EVER, Daemon, Node

from tiered.manager.manager import LogManager
from tiered.serve.groups.offsets_records import (
    GroupKey,
    GroupValue,
    Key,
    OffsetValue,
    Value,
    decode_key,
    decode_value,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its way to read its own files
    import kafka

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SETTINGS = {"group.initial.rebalance.delay.ms": "100"}


@pytest.mark.parametrize("client", CONSUMERS)
def test_a_consumer_continues_at_its_committed_offset(tmp_path: Path, client: Callable[[str], Member]) -> None:
    with node(tmp_path, SETTINGS) as (manager, address):
        with closing(client(address)) as consumer:
            found = poll_until([consumer], lambda seen: len(seen) >= PARTITIONS * COUNT)
            assert set(found) == expected()
            consumer.commit()
        fill(manager, COUNT)
        with closing(client(address)) as consumer:
            found = poll_until([consumer], lambda seen: len(seen) >= PARTITIONS * COUNT)
            assert set(found) == expected(COUNT, 2 * COUNT)
            consumer.commit()
    with node(tmp_path, SETTINGS) as (manager, address):
        fill(manager, 2 * COUNT)
        with closing(client(address)) as consumer:
            found = poll_until([consumer], lambda seen: len(seen) >= PARTITIONS * COUNT)
            assert set(found) == expected(2 * COUNT, 3 * COUNT)


def test_a_leave_behind_a_waiting_join_is_done_although_its_client_closed_the_connection(tmp_path: Path) -> None:
    """librdkafka closes so when its join waits for another member. Lost, the group waits for the session timeout."""
    never = {"session_timeout": 300_000, "rebalance_timeout": 300_000, "protocols": calls.PROTOCOLS}
    with node(tmp_path, SETTINGS) as (_, address), ThreadPoolExecutor(2) as pool:
        server = calls.Server(address, pool)
        calls.wait_until_loaded(server)
        one = server.call(calls.JOIN, 9, **calls.joining(GROUP, **never)).member_id
        first = server.call(calls.JOIN, 9, **calls.joining(GROUP, one, **never))
        server.call(calls.SYNC, 5, **calls.syncing(GROUP, first))
        two = server.call(calls.JOIN, 9, **calls.joining(GROUP, **never)).member_id
        with closing(KafkaSocket(address)) as client:
            client.send(calls.JOIN, 9, calls.joining(GROUP, two, **never))
            client.send(calls.LEAVE, 5, calls.leaving(GROUP, 5, two))
        calls.until(
            lambda: server.call(calls.DESCRIBE, 5, groups=[GROUP]).groups[0].group_state == "PreparingRebalance"
        )
        server.call(calls.JOIN, 9, **calls.joining(GROUP, one, **never))
        calls.until(lambda: len(server.call(calls.DESCRIBE, 5, groups=[GROUP]).groups[0].members) == 1)


def test_three_kinds_of_clients_share_one_group(tmp_path: Path) -> None:
    with node(tmp_path, SETTINGS) as (manager, address), ExitStack() as stack:
        members: list[Member] = []
        received: list[bytes] = []
        for each in CONSUMERS:
            members.append(stack.enter_context(closing(each(address))))
            received += poll_until(members, lambda seen: share_all(members))
        fill(manager, COUNT)
        fresh = expected(COUNT, 2 * COUNT)
        received += poll_until(members, lambda seen: fresh <= set(received) | set(seen))
        assert set(received) == expected(0, 2 * COUNT)
        with closing(Confluent(address, is_member=False)) as reader:
            poll_until(members, lambda seen: have_committed(members, reader, 2 * COUNT))
        members.pop(0).close()
        poll_until(members, lambda seen: share_all(members))
        with closing(Confluent(address, **{"group.id": "unknown"})) as stranger:
            assert stranger.committed() == {}


def test_a_static_member_restarts_without_a_rebalance(tmp_path: Path) -> None:
    with node(tmp_path, SETTINGS) as (manager, address):
        for _ in range(2):
            with closing(Confluent(address, **{"group.instance.id": "one"})) as consumer:
                poll_until([consumer], lambda seen: share_all([consumer]))
        states = [each for each in decoded(manager).values() if isinstance(each, GroupValue)]
        assert [(each.generation, len(each.members)) for each in states] == [(1, 1)]


def is_empty(state: Value) -> bool:
    assert isinstance(state, GroupValue)
    return (state.generation, state.members) == (2, ())


def decoded(manager: LogManager) -> dict[Key, Value]:
    """The newest value of each key of ``__consumer_offsets``."""
    topic = manager.partitions.registry.find("__consumer_offsets")
    assert topic is not None
    found: dict[Key, Value] = {}
    for name in topic.partitions():
        for each in manager.reader().records(name, 0):
            key = decode_key(each.key)
            assert key is not None
            assert each.value is not None
            found[key] = decode_value(key, each.value)
    return found


def test_the_offsets_of_a_group_are_records_of_a_compacted_topic(tmp_path: Path) -> None:
    with node(tmp_path, SETTINGS) as (manager, address):
        with closing(Confluent(address)) as consumer:
            poll_until([consumer], lambda seen: len(seen) >= PARTITIONS * COUNT)
            consumer.commit()
        topic = manager.partitions.registry.find("__consumer_offsets")
        assert topic is not None
        assert (topic.partition_count, topic.properties["cleanup.policy"]) == (8, "compact")
        found = decoded(manager)
        offsets = {key.partition: each.offset for key, each in found.items() if isinstance(each, OffsetValue)}  # type: ignore[union-attr]
        assert offsets == dict.fromkeys(range(PARTITIONS), COUNT)
        assert is_empty(decoded(manager)[GroupKey(GROUP)])
        listed = kafka.KafkaConsumer(bootstrap_servers=address)
        try:
            assert listed.topics() == {"t"}, "an internal topic is not among the topics of a client"
        finally:
            listed.close()


def test_acknowledged_commits_survive_a_kill(tmp_path: Path) -> None:
    """A client commits one offset after another; the node is killed in between."""
    (tmp_path / "node").mkdir()
    home = Node(tmp_path / "node", None)
    home.fill(calls.TOPIC)
    acknowledged = -1
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            with Daemon(home, (*FOR_EVER, "--kafka", ":0")) as daemon:
                server = calls.Server(daemon.wait_for(lambda d=daemon: _address(d), "it serves Kafka clients"), pool)
                calls.until(lambda s=server: not s.call(calls.LIST, 0).error_code.value)
                fetched = server.call(calls.FETCH, 7, **calls.fetching(7, GROUP))
                found = fetched.topics[0].partitions[0].committed_offset
                assert acknowledged <= found <= acknowledged + 1, "an acknowledged commit was lost"
                acknowledged, enough = found, found + 20
                with suppress(OSError, AssertionError):
                    while True:
                        committed = server.call(calls.COMMIT, 8, **calls.committing(GROUP, acknowledged + 1))
                        assert not committed.topics[0].partitions[0].error_code.value, committed
                        acknowledged += 1
                        if acknowledged == enough:  # the kill comes at any point of a later commit
                            threading.Thread(target=daemon.process.kill).start()
                assert acknowledged >= enough
    assert acknowledged >= 59


def _address(daemon: Daemon) -> str | None:
    found = re.search(r"serving Kafka clients at (\S+:\d+)", daemon.words)
    return found[1] if found else None
