"""The coordinator over a log in memory: effects in order, crashes after each one, failures, timeouts, expiry."""

from __future__ import annotations

import logging

import pytest
from fake_transactions import DISK_FULL, ID, OFFSETS, Crash, P, Q, World
from hypothesis import given
from hypothesis import strategies as st

from local.errors import ProducerFenced
from local.names import TopicPartition
from tiered.serve.messages.base import Error
from tiered.serve.record_sink import RefusedBatch
from tiered.serve.transactions import coordinator as module
from tiered.serve.transactions.coordinator import Check, EndMarker, ProducerIdentity, TransactionCoordinator
from tiered.serve.transactions.transaction import LAST_CLIENT_EPOCH, ProducerOf, State, Transaction
from tiered.serve.transactions.transaction_records import encode_key, encode_value

ALL = (P, Q, OFFSETS)
BUSY = Error.CONCURRENT_TRANSACTIONS


def begin(world: World, *, timeout_ms: int = 60_000) -> ProducerOf:
    """A transaction with a batch in each partition."""
    producer = world.producer(timeout_ms)
    assert world.coordinator.add_partitions(producer, ALL) is Error.NONE
    for partition in ALL:
        world.log.append_batch(partition, producer, "batch")
    return producer


def test_partitions_of_open_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTITIONS_MAX", len(ALL))
    world = World()
    first = begin(world)
    identity = world.coordinator.init_producer_id("other", 60_000)
    other = ProducerOf(
        transactional_id="other", producer_id=identity.producer_id, producer_epoch=identity.producer_epoch
    )
    for _ in range(2):
        assert world.coordinator.add_partitions(other, [P]) is Error.COORDINATOR_NOT_AVAILABLE, "clients repeat it"
        assert world.coordinator.add_partitions(first, ALL) is Error.NONE
        world.restart()
    assert world.coordinator.end(first, commit=True).error is Error.NONE
    assert world.coordinator.add_partitions(other, ALL) is Error.NONE, "the end of a transaction releases them"


def test_a_marker_with_an_id_that_no_producer_has_is_refused() -> None:
    world = World()
    error = Error.INVALID_PRODUCER_ID_MAPPING
    world.log.failures[P] = RefusedBatch("no producer", error=error)
    marker = EndMarker(producer_id=2**63 - 1, producer_epoch=0, coordinator_epoch=0, is_commit=True)
    assert world.coordinator.end_in_partition(P, marker) is error


def state_of(world: World) -> State:
    found = world.coordinator.describe(ID)
    assert isinstance(found, Transaction)
    return found.state


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_a_crash_after_each_effect_of_the_end_leaves_one_outcome(version: int, commit: bool) -> None:
    cuts = 0
    while True:
        world = World()
        producer = begin(world)
        world.log.cut_after = cuts
        try:
            answer = world.coordinator.end(producer, commit=commit, client_version=version)
            world.log.cut_after = None
        except Crash:
            world.restart()
            # Effect 3 was durable: the start has finished the transaction.
            assert state_of(world) is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT), f"cut after {cuts}"
            answer = None
        assert all(not each for each in world.log.open_batches.values()), f"a transaction is open, cut after {cuts}"
        assert all(each == {"batch": commit} for each in world.log.outcomes.values()), f"cut after {cuts}"
        world.restart()
        second = world.producer()
        assert world.coordinator.add_partitions(second, ALL) is Error.NONE, f"cut after {cuts}"
        cuts += 1
        if answer is not None:
            break
    assert cuts == 1 + 2 * len(ALL) + 1 + 1, "PREPARE, markers and their fsyncs, COMPLETE, and the run without a cut"


def test_a_crash_before_the_outcome_aborts_after_the_timeout() -> None:
    world = World()
    begin(world)
    world.restart()
    assert state_of(world) is State.ONGOING
    world.clock.now_ms += 60_000
    world.coordinator.tick()
    assert state_of(world) is State.ONGOING, "the timeout is not over"
    world.clock.now_ms += 10_000
    world.coordinator.tick()
    assert state_of(world) is State.COMPLETE_ABORT
    assert all(each == {"batch": False} for each in world.log.outcomes.values())


def test_a_crash_after_each_effect_of_an_abort_by_a_new_producer_leaves_one_outcome() -> None:
    for cuts in range(2 + 2 * len(ALL)):
        world = World()
        begin(world)
        world.log.cut_after = cuts
        with pytest.raises(Crash):
            world.coordinator.init_producer_id(ID, 1000)
        world.restart()
        assert state_of(world) is State.COMPLETE_ABORT, f"cut after {cuts}"
        assert all(each == {"batch": False} for each in world.log.outcomes.values()), f"cut after {cuts}"


def test_the_last_epoch_survives_a_crash_with_its_next_producer_id() -> None:
    for cuts in range(2 + 2 * len(ALL)):
        world = World()
        value = Transaction(
            transactional_id=ID, producer_id=5, producer_epoch=LAST_CLIENT_EPOCH, timeout_ms=1000, updated_ms=10**6
        )
        world.log.append(ID, encode_key(ID), encode_value(value), is_durable=True)
        world.restart()
        producer = ProducerOf(transactional_id=ID, producer_id=5, producer_epoch=LAST_CLIENT_EPOCH)
        assert world.coordinator.add_partitions(producer, ALL) is Error.NONE
        world.log.cut_after = cuts
        with pytest.raises(Crash):
            world.coordinator.end(producer, commit=True, client_version=2)
        world.restart()
        again = world.coordinator.end(producer, commit=True, client_version=2)
        assert again == ProducerIdentity(error=Error.NONE, producer_id=1001, producer_epoch=0), f"cut after {cuts}"


def test_the_markers_have_the_epoch_of_the_version() -> None:
    world = World()
    producer = begin(world)
    assert world.coordinator.end(producer, commit=True) == ProducerIdentity(error=Error.NONE)
    (marker,) = world.log.markers[P]
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.is_commit) == (1001, 0, 3, True)
    assert world.coordinator.add_partitions(producer, [Q]) is Error.NONE
    ended = world.coordinator.end(producer, commit=False, client_version=2)
    assert ended == ProducerIdentity(error=Error.NONE, producer_id=1001, producer_epoch=1)
    assert (world.log.markers[Q][1].producer_epoch, world.log.markers[Q][1].is_commit) == (1, False)
    assert world.coordinator.end(producer, commit=False, client_version=2) == ended, "a repeated call"


def test_a_failed_marker_is_repeated_and_the_next_transaction_waits(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    producer = begin(world)
    world.log.failures[Q] = DISK_FULL
    with caplog.at_level(logging.WARNING):
        assert world.coordinator.end(producer, commit=True).error is Error.NONE, "the outcome is durable"
    assert "cannot finish a transaction yet" in caplog.text
    described = world.coordinator.describe(ID)
    assert isinstance(described, Transaction)
    assert (described.state, described.partitions) == (State.PREPARE_COMMIT, frozenset((Q,)))
    assert world.coordinator.add_partitions(producer, [P]) is BUSY
    assert world.coordinator.init_producer_id(ID, 1000).error is BUSY
    world.log.failures.clear()
    world.coordinator.tick()
    assert state_of(world) is State.COMPLETE_COMMIT
    assert all(each == {"batch": True} for each in world.log.outcomes.values())
    assert len(world.log.markers[P]) == 1, "a written marker is not repeated without a crash"


def test_version_2_answers_with_the_next_epoch_although_a_marker_failed() -> None:
    world = World()
    producer = begin(world)
    world.log.failures[Q] = DISK_FULL
    ended = world.coordinator.end(producer, commit=True, client_version=2)
    assert ended == ProducerIdentity(error=Error.NONE, producer_id=1001, producer_epoch=1)
    assert world.coordinator.end(producer, commit=True, client_version=2).error is BUSY


def test_a_deleted_partition_and_a_newer_epoch_end_without_a_marker() -> None:
    world = World()
    producer = begin(world)
    assert world.coordinator.add_partitions(producer, [TopicPartition("deleted", 0)]) is Error.NONE
    world.log.failures[Q] = ProducerFenced("newer")
    assert world.coordinator.end(producer, commit=True).error is Error.NONE
    assert state_of(world) is State.COMPLETE_COMMIT


def test_a_failed_record_changes_nothing() -> None:
    world = World()
    producer = begin(world)
    world.log.append_error = DISK_FULL
    assert world.coordinator.end(producer, commit=True).error is Error.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.add_partitions(producer, [TopicPartition("new", 0)]) is Error.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.init_producer_id("new", 1000).error is Error.COORDINATOR_NOT_AVAILABLE
    assert state_of(world) is State.ONGOING
    world.log.append_error = None
    assert world.coordinator.end(producer, commit=True).error is Error.NONE
    assert state_of(world) is State.COMPLETE_COMMIT


def test_a_call_during_another_one_is_refused() -> None:
    world = World()
    producer = begin(world)
    found: list[object] = []

    def other_calls() -> None:
        world.log.on_append = lambda: None
        found.append(world.coordinator.end(producer, commit=False).error)
        found.append(world.coordinator.add_partitions(producer, [P]))
        found.append(world.coordinator.init_producer_id(ID, 1000).error)
        world.coordinator.tick()
        with world.coordinator.appending(producer, [P], Check.VERIFY_ABORTABLE) as verdicts:
            found.append(verdicts[P])

    world.log.on_append = other_calls
    assert world.coordinator.end(producer, commit=True).error is Error.NONE
    assert found == [BUSY] * 4
    assert all(each == {"batch": True} for each in world.log.outcomes.values())


@pytest.mark.parametrize("version", [0, 2])
def test_an_append_with_a_ticket_holds_up_every_end(version: int) -> None:
    world = World()
    producer = begin(world)
    new = TopicPartition("new", 0)
    with world.coordinator.appending(producer, [P, new], Check.VERIFY) as verdicts:
        assert verdicts == {P: Error.NONE, new: Error.INVALID_TXN_STATE}
        assert world.coordinator.end(producer, commit=True, client_version=version).error is BUSY
        assert world.coordinator.init_producer_id(ID, 1000).error is BUSY
        world.clock.now_ms += 70_001
        world.coordinator.tick()
        assert world.coordinator.add_partitions(producer, [Q]) is Error.NONE
        world.log.append_batch(P, producer, "late")
    assert world.coordinator.end(producer, commit=True, client_version=version).error is Error.NONE
    assert world.log.outcomes[P] == {"batch": True, "late": True}


def test_the_log_refuses_a_late_batch_of_version_2() -> None:
    world = World()
    producer = begin(world)
    assert world.coordinator.end(producer, commit=True, client_version=2).error is Error.NONE
    with pytest.raises(ProducerFenced):
        world.log.append_batch(P, producer, "late")


@pytest.mark.parametrize(
    ("check", "version_0", "fenced"),
    [
        (Check.VERIFY, Error.INVALID_TXN_STATE, Error.INVALID_PRODUCER_EPOCH),
        (Check.VERIFY_ABORTABLE, Error.TRANSACTION_ABORTABLE, Error.INVALID_PRODUCER_EPOCH),
        (Check.ADD, Error.NONE, Error.INVALID_PRODUCER_EPOCH),
    ],
)
def test_verdicts_on_appends(check: Check, version_0: Error, fenced: Error) -> None:
    world = World()
    old = world.producer()
    producer = world.producer()
    with world.coordinator.appending(producer, [P], check) as verdicts:
        assert verdicts == {P: version_0}
    with world.coordinator.appending(old, [P], check) as verdicts:
        assert verdicts == {P: fenced}
    unknown = ProducerOf(transactional_id="unknown", producer_id=1, producer_epoch=0)
    with world.coordinator.appending(unknown, [P], check) as verdicts:
        assert verdicts == {P: Error.INVALID_PRODUCER_ID_MAPPING}
    assert state_of(world) is (State.ONGOING if check is Check.ADD else State.EMPTY)


def test_requests_with_invalid_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    init = world.coordinator.init_producer_id
    assert init("", 1000).error is Error.INVALID_REQUEST
    assert init("x" * 1025, 1000).error is Error.INVALID_REQUEST
    for timeout_ms in (0, -1, 900_001):
        assert init(ID, timeout_ms).error is Error.INVALID_TRANSACTION_TIMEOUT
    assert init(ID, 900_000).error is Error.NONE
    monkeypatch.setattr(module, "IDS_MAX", 1)
    assert init("another", 1000).error is Error.POLICY_VIOLATION
    assert init(ID, 1000).error is Error.NONE
    nameless = ProducerOf(transactional_id="", producer_id=1, producer_epoch=0)
    assert world.coordinator.add_partitions(nameless, [P]) is Error.INVALID_REQUEST
    assert world.coordinator.end(nameless, commit=True).error is Error.INVALID_REQUEST
    assert world.coordinator.describe("") is Error.INVALID_REQUEST


def test_without_its_records_the_coordinator_answers_that_it_loads(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    begin(world)
    loading = Error.COORDINATOR_LOAD_IN_PROGRESS
    world.log.read_error = DISK_FULL
    made = TransactionCoordinator(world.log, new_producer_id=world.new_producer_id, clock_ms=world.clock)
    assert not made.load()
    assert "cannot read the states of transactions" in caplog.text
    assert made.init_producer_id(ID, 1000).error is loading
    assert made.transactions() is loading
    assert made.describe(ID) is loading
    producer = ProducerOf(transactional_id=ID, producer_id=1001, producer_epoch=0)
    assert made.add_partitions(producer, [P]) is loading
    assert made.verify_partitions(producer, [P]) == {P: loading}
    world.log.read_error = None
    made.tick()
    assert made.add_partitions(producer, [P]) is Error.NONE


def test_expired_ids_are_removed_durably_and_open_ones_stay() -> None:
    world = World()
    idle = world.producer(transactional_id="idle")
    begin(world)
    world.clock.now_ms += 604_800_000
    world.coordinator.tick()
    assert world.coordinator.describe("idle") is Error.TRANSACTIONAL_ID_NOT_FOUND
    assert state_of(world) is State.COMPLETE_ABORT, "aborted after its timeout, and updated by it"
    assert world.coordinator.add_partitions(idle, [P]) is Error.INVALID_PRODUCER_ID_MAPPING
    world.restart()
    assert world.coordinator.describe("idle") is Error.TRANSACTIONAL_ID_NOT_FOUND
    continued = world.coordinator.init_producer_id("idle", 1000, (idle.producer_id, idle.producer_epoch))
    assert (continued.error, continued.producer_epoch) == (Error.NONE, 0)
    assert continued.producer_id > idle.producer_id


def test_a_failed_tombstone_keeps_the_id() -> None:
    world = World()
    world.producer()
    world.clock.now_ms += 604_800_000
    world.log.append_error = DISK_FULL
    world.coordinator.tick()
    assert state_of(world) is State.EMPTY


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "batch", "commit", "abort"]), st.integers(0, 3)),
        st.tuples(st.sampled_from(["init", "time out", "crash", "cut", "fail", "repair", "tick"]), st.integers(0, 6)),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([0, 2]))
def test_random_calls_and_crashes_keep_every_transaction_whole(steps: list[tuple[str, int]], version: int) -> None:
    """Each batch belongs to a transaction; all its batches have one outcome, that of an acknowledged end.

    Old producers call too: `producers` has all that were ever given, the number of a step selects from the newest.
    """
    world = World()
    producers = [world.producer()]
    batches: dict[tuple[int, int, int], list[tuple[TopicPartition, str]]] = {}  # by (producer, number of its ends)
    ends: dict[tuple[int, int], int] = {}
    acknowledged: dict[str, bool] = {}
    for at, (verb, number) in enumerate(steps):
        chosen = producers[-1 - number % len(producers)]
        name = (chosen.producer_id, chosen.producer_epoch)
        try:
            match verb:
                case "add":
                    world.coordinator.add_partitions(chosen, ALL[: 1 + number % 3])
                case "batch":
                    partition = ALL[number % 3]
                    check = Check.ADD if version else Check.VERIFY
                    with world.coordinator.appending(chosen, [partition], check) as verdicts:
                        if verdicts[partition] is Error.NONE:
                            world.log.append_batch(partition, chosen, f"batch {at}")
                            batches.setdefault((*name, ends.get(name, 0)), []).append((partition, f"batch {at}"))
                case "commit" | "abort":
                    answer = world.coordinator.end(chosen, commit=verb == "commit", client_version=version)
                    if answer.error is Error.NONE:
                        for _, batch in batches.get((*name, ends.get(name, 0)), ()):
                            acknowledged.setdefault(batch, verb == "commit")
                        if version:
                            continued = ProducerOf(
                                transactional_id=ID,
                                producer_id=answer.producer_id,
                                producer_epoch=answer.producer_epoch,
                            )
                            producers += [continued] if continued not in producers else []
                        else:
                            ends[name] = ends.get(name, 0) + 1
                case "init":
                    found = world.coordinator.init_producer_id(ID, 60_000)
                    if found.error is Error.NONE:
                        new = (found.producer_id, found.producer_epoch)
                        producers.append(ProducerOf(transactional_id=ID, producer_id=new[0], producer_epoch=new[1]))
                case "time out":
                    world.clock.now_ms += 70_001
                    world.coordinator.tick()
                case "crash":
                    world.restart()
                case "cut":
                    world.log.cut_after = number
                case "fail":
                    world.log.failures[ALL[number % 3]] = DISK_FULL
                case "repair":
                    world.log.failures.clear()
                case "tick":
                    world.coordinator.tick()
        except Crash:
            world.restart()
    world.log.failures.clear()
    world.restart()
    world.clock.now_ms += 70_001
    world.coordinator.tick()
    assert all(not each for each in world.log.open_batches.values()), "a transaction stays open"
    outcomes = {batch: outcome for each in world.log.outcomes.values() for batch, outcome in each.items()}
    for batch, outcome in acknowledged.items():
        assert outcomes[batch] is outcome, f"{batch} has another outcome than was acknowledged"
    if version:  # in version 0 a crash hides the end, so the batches of two transactions have one name here
        for whole in batches.values():
            assert len({outcomes[batch] for _, batch in whole}) == 1, f"a transaction is half visible: {whole}"
