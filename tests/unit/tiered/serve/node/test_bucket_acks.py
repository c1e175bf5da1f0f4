"""Appends to topics with ``append.acks=remote`` are acknowledged when a committed manifest holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from manager_world import NAME, NOW, TIERED, SwitchableStore, World

from local.errors import InvalidRequest
from local.format.record import Record
from local.names import TopicPartition
from local.records.batch import encode_batch
from tiered.manager.manager import LogManager
from tiered.manager.remote_acks import TIMEOUT_MS, held_upto
from tiered.node.upload_pause import pause_uploads
from tiered.serve.messages.base import Error
from tiered.serve.node.node_sink import NodeSink
from tiered.serve.record_sink import RefusedBatch

LIMIT_S = 60
REMOTE = {**TIERED, "local.retention.ms": "-2", "remote.copy.lag.ms": "1h", "append.acks": "remote"}
OTHER = TopicPartition("other", 0)


class Ack:
    """The notification of one append."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.cancel: Callable[[], None] = lambda: None
        self._is_given = threading.Event()

    def __call__(self, error: Exception | None) -> None:
        self.error = error
        self._is_given.set()

    @property
    def is_given(self) -> bool:
        return self._is_given.is_set()

    def wait(self) -> Exception | None:
        assert self._is_given.wait(LIMIT_S)
        return self.error


class Node:
    def __init__(self, manager: LogManager, sink: NodeSink, store: SwitchableStore, world: World) -> None:
        self.manager, self.sink, self.store, self.world, self.now_ms = manager, sink, store, world, NOW

    def append(self, name: TopicPartition = NAME) -> Ack:
        ack = Ack()
        batch = memoryview(bytearray(encode_batch([Record(b"k", b"v", NOW)] * 3)))
        self.sink.check_acks(name)
        found = self.sink.append(name, batch)
        self.sink.flush(name)
        ack.cancel = self.sink.when_in_bucket(name, found.next_offset, ack)
        return ack

    def code(self, name: TopicPartition = NAME) -> Error | None:
        try:
            self.sink.check_acks(name)
        except RefusedBatch as error:
            return error.error
        return None


@contextmanager
def node(**topics: dict[str, str]) -> Iterator[Node]:
    world = World()
    store = SwitchableStore(world.store, is_down=False)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        for name, settings in (topics or {"t": REMOTE}).items():
            manager.topics.create(name, 1, settings, now_ms=NOW)
        made: list[Node] = []
        with closing(NodeSink(manager, lambda: made[0].now_ms if made else NOW)) as sink:
            made.append(Node(manager, sink, store, world))
            yield made[0]


def test_an_append_is_acknowledged_when_the_bucket_holds_it() -> None:
    with node() as made:
        for end in (3, 6, 9):
            assert made.append().wait() is None
            assert held_upto(made.manager, NAME) >= end


def test_appends_that_wait_together_share_a_copy() -> None:
    with node() as made:
        with made.manager.partitions.maintenance_lock:  # no copy can run
            acks = [made.append() for _ in range(30)]
            assert not any(each.is_given for each in acks)
        assert [each.wait() for each in acks] == [None] * 30
        (snapshot,) = made.manager.snapshots(NOW)
        assert len(snapshot.remote) <= 3, "30 appends are in few segments"


def test_appends_wait_while_the_bucket_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.serve.node.bucket_acks.PAUSE_S", 0.001)
    with node() as made:
        assert made.append().wait() is None
        made.store.is_down = True
        late = made.append()
        while NAME not in made.manager.problems:
            assert not late.is_given
        assert made.code() is Error.NOT_ENOUGH_REPLICAS, "further appends are refused before their write"
        made.store.is_down = False
        assert late.wait() is None


def test_after_the_time_limit_an_append_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.serve.node.bucket_acks.PAUSE_S", 0.001)
    with node() as made:
        made.append().wait()
        made.store.is_down = True
        late = made.append()
        made.now_ms += TIMEOUT_MS
        error = late.wait()
        assert isinstance(error, RefusedBatch)
        assert error.error is Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_an_append_whose_request_ended_does_not_wait() -> None:
    with node() as made:
        made.append().wait()
        with made.manager.partitions.maintenance_lock:  # no copy can run
            cancelled, waiting = [made.append() for _ in range(20)], made.append()
            for each in cancelled:
                each.cancel()
            assert len(made.sink._bucket_acks._waiting) == 1
        assert waiting.wait() is None
        assert not any(each.is_given for each in cancelled)


def test_a_takeover_ends_the_wait_with_an_error() -> None:
    with node() as made:
        made.append().wait()
        with made.manager.partitions.maintenance_lock:
            ack = made.append()
            with made.world.open(disk=made.world.other_disk()):
                pass
        error = ack.wait()
        assert isinstance(error, RefusedBatch)
        assert error.error is Error.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_an_append_that_no_bucket_can_acknowledge_is_refused_before_its_write() -> None:
    plain = {"append.acks": "remote"}
    with node(t=REMOTE, other=plain, third={**TIERED}) as made:
        assert made.code() is None
        assert made.code(OTHER) is Error.NOT_ENOUGH_REPLICAS
        assert made.code(TopicPartition("third", 0)) is None
        assert not made.sink.is_acked_by_bucket(TopicPartition("third", 0))
        pause_uploads(made.manager.directories.places(), ["t"], now_ms=NOW, reason="test")
        assert made.code() is Error.NOT_ENOUGH_REPLICAS


def test_a_compacted_topic_cannot_ask_for_it() -> None:
    with node() as made, pytest.raises(InvalidRequest, match=r"append\.acks=remote cleanup\.policy=compact"):
        made.manager.topics.create("c", 1, {**REMOTE, "cleanup.policy": "compact"}, now_ms=NOW)


def test_the_end_of_the_node_leaves_waiting_appends_without_an_answer() -> None:
    with node() as made:
        made.append().wait()
        made.store.is_down = True
        ack = made.append()
    assert not ack.is_given
