"""`consume --group`: what members print and commit, with and without a running node."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from test_command_node import home as home
from test_command_node import prepared as prepared
from test_command_node import running

from local import kernels
from local.errors import Conflict, Unavailable
from local.format.columns import Columns
from local.format.record import Record
from local.names import TopicPartition
from local.records.batch import encode_batch, encode_marker
from local.records.isolation import Isolation, without_aborted
from tiered.cli.main import invoke
from tiered.cli.session import Session, now_ms
from tiered.manager.manager import LogManager
from tiered.serve.commands.client import Client
from tiered.serve.groups.consumer import reservation
from tiered.serve.messages.base import Api
from tiered.serve.messages.fetch import AbortedTransaction as FetchedTransaction
from tiered.serve.messages.groups import DeleteGroupsRequest, JoinGroupRequest, JoinGroupRequestProtocol
from tiered.serve.node import group_calls, group_member
from tiered.serve.node.command_node import Node
from tiered.serve.node.directory_groups import groups_of_directory
from tiered.serve.node.group_member import GroupMember, Wish, aborted_in, consume_group

EARLIEST, LATEST = -2, -1
ALL = {TopicPartition("other", at) for at in range(2)}


@pytest.fixture(autouse=True)
def _without_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_member, "WAIT_MS", 0)
    monkeypatch.setenv("TIERED_GROUP_INITIAL_REBALANCE_DELAY_MS", "0")


class Signal:
    """A stop that no signal sets; a wait takes no time, and calls `idle`."""

    def __init__(self, idle: Callable[[], object] = lambda: None) -> None:
        self.is_set, self.idle = False, idle

    def wait(self, timeout_s: float) -> None:
        self.idle()


def wish(group: str = "g", topics: Sequence[str] = ("other",), start: int = EARLIEST, **more: object) -> Wish:
    given = {"isolation": Isolation.READ_UNCOMMITTED, "count": None, "follows": False, **more}
    return Wish(group, topics, start=start, **given)  # type: ignore[arg-type]


@contextmanager
def connected(home: Path) -> Iterator[Node]:
    with Session(directory=str(home), is_quiet=True).node() as node:
        yield node


class Output(io.BytesIO):
    """Lines of `shown`; `events` has each write and flush."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def write(self, data: object) -> int:
        self.events.append("print")
        return super().write(data)  # type: ignore[arg-type]

    def flush(self) -> None:
        self.events.append("flush")

    @property
    def seen(self) -> list[tuple[TopicPartition, int]]:
        lines = [line.split() for line in self.getvalue().decode().splitlines()]
        return [(TopicPartition(topic, int(number)), int(offset)) for topic, number, offset in lines]


def shown(name: TopicPartition, columns: Columns) -> bytes:
    return "".join(f"{name.topic} {name.partition} {offset}\n" for offset in columns.offsets.tolist()).encode()


def consumed(node: Node, asked: Wish, warn: Callable[[str], None] | None = None) -> list[tuple[TopicPartition, int]]:
    out = Output()
    consume_group(node, asked, shown, out, Signal(), warn or fail)
    return out.seen


def fail(text: str) -> None:
    raise AssertionError(text)


def committed(node: Node, group: str = "g") -> dict[TopicPartition, int]:
    return group_calls.committed_offsets(node.client, group)


def append(manager: LogManager, number: int, topic: str = "other") -> None:
    for name in manager.topics.get(topic).partitions():
        records = [Record(None, b"%d" % at, now_ms()) for at in range(number)]
        manager.append(topic, records, name.partition, now_ms=now_ms())


@pytest.mark.parametrize("is_beside", [True, False])
def test_a_group_continues_at_its_committed_offsets(
    is_beside: bool, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def read(*more: str) -> list[str]:
        capfd.readouterr()
        assert invoke(["consume", "plain", "--group", "g", "-f", "%o\\n", *more]) == 0
        return capfd.readouterr().out.split()

    with running(home) if is_beside else nullcontext():
        assert read("--from", "start", "-n", "7") == [str(at) for at in range(7)]
        assert read("--from", "start", "-n", "3") == ["7", "8", "9"], "a committed offset counts more than --from"
        assert read("-n", "0") == []
        assert read() == [str(at) for at in range(10, 60)]
        assert read() == []
        assert invoke(["group", "describe", "g", "-o", "json"]) == 0
        found = json.loads(capfd.readouterr().out)
        assert (found["members"], found["state"], found["offsets"][0]["lag"]) == (0, "Empty", 0)


def test_a_new_group_begins_at_the_end_and_its_next_member_continues_there(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(home):
        assert invoke(["consume", "plain", "--group", "g", "-f", "%o\\n"]) == 0
        assert capfd.readouterr().out == ""
        assert invoke(["-q", "append", "plain", "lines"]) == 0
        capfd.readouterr()
        assert invoke(["consume", "plain", "--group", "g", "-o", "jsonl"]) == 0
        found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [each["offset"] for each in found] == list(range(60, 120))
    assert {(each["topic"], each["partition"]) for each in found} == {("plain", 0)}


def test_topics_of_a_group_are_read_together(home: Path) -> None:
    with running(home) as manager, connected(home) as node:
        append(manager, 5)
        seen = consumed(node, wish(topics=["plain", "other"]))
        assert len(seen) == len(set(seen)) == 70
        assert committed(node) == {TopicPartition("plain", 0): 60, **dict.fromkeys(ALL, 5)}


def joined(node: Node, warn: Callable[[str], None] | None = None) -> GroupMember:
    """A member whose every turn sends a heartbeat, and commits."""
    clock = itertools.count(0.0, 10.0).__next__
    return GroupMember(node, wish(follows=True), Signal(), warn or fail, clock=clock)


def test_two_members_share_the_partitions_and_the_rest_continues_when_one_leaves(home: Path) -> None:
    with running(home) as manager, connected(home) as node, connected(home) as other:
        append(manager, 5)
        first, second = joined(node), joined(other)
        one, two = Output(), Output()

        def turns(count: int) -> None:
            for _ in range(count):
                first.turn(shown, one)
                second.turn(shown, two)

        first.turn(shown, one)
        assert first.partitions == ALL
        with Session(directory=str(home)).manager(read_only=True) as beside:
            for each in (beside, manager):  # a page of another process, and one of the node itself
                (group,) = groups_of_directory(each, now_ms())
                assert (group.lag, group.members) == (0, 1)
                assert {owner.client_id for owner in group.owners.values()} == {"tiered"}
                assert group.owners.keys() == ALL
        turns(4)
        assert first.partitions | second.partitions == ALL
        assert (len(first.partitions), len(second.partitions)) == (1, 1)
        append(manager, 5)
        turns(3)
        everything = one.seen + two.seen
        assert len(everything) == len(set(everything)) == 20, "a share begins at the offsets that the other committed"
        assert {name for name, _ in two.seen} == second.partitions
        first.leave()
        for _ in range(3):
            second.turn(shown, two)
        assert second.partitions == ALL
        second.leave()


def test_offsets_are_committed_after_the_flush_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(home) as manager, connected(home) as node, connected(home) as other:
        append(manager, 5)
        out, commit = Output(), group_calls.commit_offsets

        def noted(*given: object) -> None:
            out.events.append("commit")
            commit(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(group_calls, "commit_offsets", noted)
        consume_group(node, wish(), shown, out, Signal(), fail)
        assert len(out.seen) == 10
        assert "commit" in out.events[out.events.index("print") :]
        before = [each for each, after in itertools.pairwise(out.events) if after == "commit"]
        assert set(before) == {"flush"}

        def broken() -> None:
            raise BrokenPipeError

        append(manager, 5)
        monkeypatch.setattr(out, "flush", broken)
        with pytest.raises(BrokenPipeError):
            consume_group(node, wish(), shown, out, Signal(), fail)
        assert committed(other) == dict.fromkeys(ALL, 5)
        assert group_calls.describe_group(other.client, "g").members == 0


def test_a_removed_member_joins_again_and_prints_from_the_committed_offsets(home: Path) -> None:
    with running(home) as manager, connected(home) as node:
        append(manager, 5)
        said: list[str] = []
        member, out = joined(node, said.append), Output()
        member.turn(shown, out)
        assert len(out.seen) == 10
        member.leave()  # as if the node had removed it
        member.turn(shown, out)
        member.turn(shown, out)
        assert "joins again" in said[0]
        assert member.partitions == ALL
        assert len(out.seen) == 10, "the turn before committed all of them"
        member.leave()


@pytest.mark.parametrize(("start", "expected"), [(EARLIEST, list(range(30, 60))), (LATEST, [])])
def test_an_expired_offset_is_reset_as_the_start_says(start: int, expected: list[int], home: Path) -> None:
    name = TopicPartition("plain", 0)
    with running(home) as manager, connected(home) as node:
        group_calls.commit_offsets(node.client, "g", {name: 0})
        manager.maintenance.delete_records({name: 30}, now_ms=now_ms())
        said: list[str] = []
        seen = consumed(node, wish("g", ["plain"], start), said.append)
        assert ([offset for _, offset in seen], len(said)) == (expected, 1)
        assert "offset 0 is not in the log" in said[0]
        assert committed(node) == {name: 60}


def test_a_partition_ends_although_its_last_offsets_have_no_records(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(home) as manager, connected(home) as node:
        append(manager, 5)
        monkeypatch.setattr(GroupMember, "_find", lambda self, names, spec: dict.fromkeys(names, 0 if spec < -1 else 9))
        assert len(consumed(node, wish())) == 10
        assert committed(node) == dict.fromkeys(ALL, 9)


def test_following_needs_a_running_node(home: Path) -> None:
    with connected(home) as node, pytest.raises(Unavailable, match="start 'tiered run'"):
        consumed(node, wish(follows=True))
    assert invoke(["consume", "other", "--group", "g", "--follow"]) == 6


def test_a_group_of_the_classic_protocol_is_refused_with_the_next_step(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(home), connected(home) as node, connected(home) as other:
        joining = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=300_000,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),),
        )
        found = other.client.call(Api.JOIN_GROUP, joining)
        other.client.call(Api.JOIN_GROUP, replace(joining, member_id=found.member_id))
        with pytest.raises(Conflict, match=r"group\.protocol=consumer"):
            consumed(node, wish())


@pytest.mark.parametrize(
    "words",
    [
        "consume plain other",
        "consume plain/0 --group g",
        "consume plain --group g --from 7",
        "consume plain --group g --from -7",
        "consume plain --group g --local",
        "consume plain --group g --read-compacted",
        "consume plain --group g --remote file:///tmp/nothing",
    ],
)
def test_options_that_contradict_a_group_are_refused(words: str, home: Path) -> None:
    assert invoke(words.split()) == 2


def test_a_member_that_was_removed_before_it_gives_a_partition_up_takes_none(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(home) as manager, connected(home) as node, connected(home) as other:
        said: list[str] = []
        first, second, out = joined(node, said.append), joined(other), Output()
        first.turn(shown, out)
        second.turn(shown, out)

        def refused(*_: object) -> None:
            raise Conflict("removed")

        append(manager, 5)
        with monkeypatch.context() as patch:
            patch.setattr(group_calls, "commit_offsets", refused)
            first.turn(shown, out)
        assert len(said) == 1
        assert first.partitions == set()
        first.leave()
        second.leave()


def test_a_member_whose_last_commit_was_refused_ends_with_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(home) as manager, connected(home) as node:
        append(manager, 5)
        commit, said = group_calls.commit_offsets, list[str]()

        def refused_at_five(client: Client, group: str, offsets: Mapping[TopicPartition, int], *more: object) -> None:
            if 5 in offsets.values():
                raise Conflict("removed")
            commit(client, group, offsets, *more)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(group_calls, "commit_offsets", refused_at_five)
            with pytest.raises(Conflict, match="the next command prints records again: group=g partitions=2"):
                consumed(node, wish(count=10), said.append)
        assert committed(node) == dict.fromkeys(ALL, 0)
        assert len(consumed(node, wish(count=10))) == 10, "printed and committed again"
        assert committed(node) == dict.fromkeys(ALL, 5)


def test_an_aborted_transaction_ends_at_the_next_marker_of_its_producer() -> None:
    records = [(None, b"v", 0)]
    ids = {"producer_id": 7, "producer_epoch": 0}
    data = b"".join(
        [
            encode_batch(records, base_offset=0, base_sequence=0, is_transactional=True, **ids),
            encode_batch(records, base_offset=1, base_sequence=0, is_transactional=True, producer_id=8),
            encode_marker(base_offset=2, is_commit=False, timestamp_ms=0, **ids),
            encode_batch(records, base_offset=3, base_sequence=1, is_transactional=True, **ids),
            encode_marker(base_offset=4, is_commit=True, timestamp_ms=0, **ids),
            encode_batch(records, base_offset=5),
        ]
    )
    fetched = [FetchedTransaction(producer_id=each, first_offset=at) for each, at in ((7, 0), (8, 1))]
    columns = kernels.decode_columns(data)
    found = without_aborted(columns, aborted_in(columns.table, fetched))
    assert found.offsets.tolist() == [3, 5], "the transaction of producer 8 has its marker after these batches"


def test_an_unknown_topic_is_not_found(home: Path) -> None:
    assert invoke(["consume", "nope", "--group", "g"]) == 1


def test_a_member_waits_for_the_assignment_of_a_group_that_pauses(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "WORK_PER_MS", 0.02)
    with running(home) as manager, connected(home) as node:
        for _ in range(2):
            append(manager, 5)
            assert len(consumed(node, wish())) == 10


def test_a_partition_beyond_a_full_response_is_read_without_a_wait(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_member, "FETCH_BYTES", 1)
    with running(home) as manager, connected(home) as node:
        append(manager, 1)
        member, out = GroupMember(node, wish(), Signal(lambda: fail("waited")), fail), Output()
        member.turn(shown, out)
        member.turn(shown, out)
        assert {name for name, _ in out.seen} == ALL
        member.leave()


def test_the_offset_where_a_new_group_begins_is_committed_before_its_first_record(home: Path) -> None:
    with running(home) as manager, connected(home) as node, connected(home) as other:
        append(manager, 5)

        def broken(name: TopicPartition, columns: Columns) -> bytes:
            raise BrokenPipeError

        member = GroupMember(node, wish(start=LATEST, follows=True), Signal(), fail)
        member._beat()
        append(manager, 5)
        with pytest.raises(BrokenPipeError):
            member.turn(broken, Output())
        member.leave()
        assert len(consumed(other, wish(start=LATEST))) == 10


def test_a_topic_that_is_created_again_is_read_from_its_start(home: Path) -> None:
    with running(home) as manager, connected(home) as node:
        append(manager, 5)
        member, out = joined(node), Output()
        member.turn(shown, out)
        assert invoke(["-q", "topic", "delete", "other", "--yes"]) == 0
        assert invoke(["-q", "topic", "create", "other", "-p", "2"]) == 0
        append(manager, 8)
        for _ in range(6):
            member.turn(shown, out)
        assert len(out.seen) == 10 + 16
        member.leave()


def test_a_member_of_a_group_that_was_deleted_joins_again(home: Path) -> None:
    with running(home) as manager, connected(home) as node, connected(home) as other:
        append(manager, 5)
        said: list[str] = []
        member, out = joined(node, said.append), Output()
        member.turn(shown, out)
        member.leave()  # as if the node had removed it
        other.client.call(Api.DELETE_GROUPS, DeleteGroupsRequest(groups_names=("g",)))
        member.turn(shown, out)
        assert member.partitions == ALL
        assert "joins again" in said[0]
        member.leave()
