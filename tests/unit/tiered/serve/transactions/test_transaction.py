"""The state machine of a transactional id: every state with every call, and laws over random calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.names import TopicPartition
from tiered.serve.messages.base import Error
from tiered.serve.transactions.transaction import (
    EPOCH_MAX,
    IDLE,
    LAST_CLIENT_EPOCH,
    PREDECESSORS,
    Decision,
    ProducerOf,
    State,
    Transaction,
    abort_fenced,
    add_partitions,
    complete,
    end,
    fence,
    initialise,
    verify_partitions,
)

P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)
PID, EPOCH, NOW = 7, 5, 1000
STORED = (
    State.EMPTY,
    State.ONGOING,
    State.PREPARE_COMMIT,
    State.PREPARE_ABORT,
    State.COMPLETE_COMMIT,
    State.COMPLETE_ABORT,
)
FENCED, MAPPING, BUSY, WRONG = (
    Error.PRODUCER_FENCED,
    Error.INVALID_PRODUCER_ID_MAPPING,
    Error.CONCURRENT_TRANSACTIONS,
    Error.INVALID_TXN_STATE,
)


def known(state: State, epoch: int = EPOCH, **more: object) -> Transaction:
    partitions = frozenset() if state in IDLE else frozenset((P,))
    facts = {"partitions": partitions, "start_ms": 10, "updated_ms": 20, "previous_producer_id": PID, **more}
    return Transaction(
        transactional_id="id", producer_id=PID, producer_epoch=epoch, timeout_ms=100, state=state, **facts
    )


def producer(epoch: int = EPOCH, producer_id: int = PID) -> ProducerOf:
    return ProducerOf(transactional_id="id", producer_id=producer_id, producer_epoch=epoch)


def outcome(decision: Decision) -> Error | State:
    return decision if isinstance(decision, Error) else decision.state


def ended(state: State, epoch: int, *, commit: bool, version: int, **more: object) -> Decision:
    return end(
        known(state, **more),
        producer(epoch),
        commit=commit,
        client_version=version,
        now_ms=NOW,
        new_producer_id=lambda: 99,
    )


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (State.EMPTY, WRONG, WRONG),
        (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT),
        (State.PREPARE_COMMIT, BUSY, WRONG),
        (State.PREPARE_ABORT, WRONG, BUSY),
        (State.COMPLETE_COMMIT, Error.NONE, WRONG),
        (State.COMPLETE_ABORT, WRONG, Error.NONE),
    ],
)
def test_end_of_version_0(state: State, commit: Error | State, abort: Error | State) -> None:
    assert outcome(ended(state, EPOCH, commit=True, version=0)) == commit
    assert outcome(ended(state, EPOCH, commit=False, version=0)) == abort
    assert ended(state, EPOCH - 1, commit=True, version=0) is FENCED
    assert ended(state, EPOCH + 1, commit=True, version=0) is FENCED


@pytest.mark.parametrize(
    ("state", "epoch", "commit", "abort"),
    [
        (State.EMPTY, EPOCH, WRONG, State.PREPARE_ABORT),
        (State.EMPTY, EPOCH - 1, FENCED, FENCED),
        (State.ONGOING, EPOCH, State.PREPARE_COMMIT, State.PREPARE_ABORT),
        (State.ONGOING, EPOCH - 1, FENCED, FENCED),
        (State.ONGOING, EPOCH + 1, FENCED, FENCED),
        (State.PREPARE_COMMIT, EPOCH - 1, BUSY, WRONG),
        (State.PREPARE_COMMIT, EPOCH, FENCED, FENCED),
        (State.PREPARE_ABORT, EPOCH - 1, WRONG, BUSY),
        (State.PREPARE_ABORT, EPOCH, FENCED, FENCED),
        (State.COMPLETE_COMMIT, EPOCH - 1, Error.NONE, WRONG),
        (State.COMPLETE_COMMIT, EPOCH, WRONG, State.PREPARE_ABORT),
        (State.COMPLETE_COMMIT, EPOCH - 2, FENCED, FENCED),
        (State.COMPLETE_ABORT, EPOCH - 1, WRONG, Error.NONE),
        (State.COMPLETE_ABORT, EPOCH, WRONG, State.PREPARE_ABORT),
        (State.COMPLETE_ABORT, EPOCH + 1, FENCED, FENCED),
    ],
)
def test_end_of_version_2(state: State, epoch: int, commit: Error | State, abort: Error | State) -> None:
    assert outcome(ended(state, epoch, commit=True, version=2)) == commit
    assert outcome(ended(state, epoch, commit=False, version=2)) == abort


@pytest.mark.parametrize("version", [0, 2])
def test_end_by_another_producer_id_is_refused(version: int) -> None:
    for state in STORED:
        decided = end(
            known(state),
            producer(producer_id=PID + 1),
            commit=True,
            client_version=version,
            now_ms=NOW,
            new_producer_id=lambda: 99,
        )
        assert decided is MAPPING


def test_end_of_version_2_raises_the_epoch_and_keeps_the_start() -> None:
    prepared = ended(State.ONGOING, EPOCH, commit=True, version=2)
    assert isinstance(prepared, Transaction)
    assert (prepared.producer_epoch, prepared.last_producer_epoch, prepared.client_version) == (EPOCH + 1, EPOCH, 2)
    assert (prepared.partitions, prepared.start_ms, prepared.updated_ms) == (frozenset((P,)), 10, NOW)
    done = complete(prepared, now_ms=NOW + 1)
    assert (done.state, done.producer_epoch, done.partitions) == (State.COMPLETE_COMMIT, EPOCH + 1, frozenset())


def test_the_last_epoch_leads_to_a_new_producer_id_and_its_retry_finds_it() -> None:
    prepared = end(
        known(State.ONGOING, LAST_CLIENT_EPOCH),
        producer(LAST_CLIENT_EPOCH),
        commit=True,
        client_version=2,
        now_ms=NOW,
        new_producer_id=lambda: 99,
    )
    assert isinstance(prepared, Transaction)
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (PID, EPOCH_MAX, 99)
    done = complete(prepared, now_ms=NOW)
    assert (done.producer_id, done.producer_epoch, done.previous_producer_id) == (99, 0, PID)
    assert done.last_producer_epoch == LAST_CLIENT_EPOCH
    facts = {"client_version": 2, "now_ms": NOW, "new_producer_id": lambda: 100}
    assert end(done, producer(LAST_CLIENT_EPOCH), commit=True, **facts) is Error.NONE
    assert end(done, producer(LAST_CLIENT_EPOCH), commit=False, **facts) is WRONG
    assert end(done, producer(LAST_CLIENT_EPOCH - 1), commit=True, **facts) is MAPPING


@pytest.mark.parametrize(
    ("state", "added"),
    [
        (State.EMPTY, State.ONGOING),
        (State.ONGOING, State.ONGOING),
        (State.PREPARE_COMMIT, BUSY),
        (State.PREPARE_ABORT, BUSY),
        (State.COMPLETE_COMMIT, State.ONGOING),
        (State.COMPLETE_ABORT, State.ONGOING),
    ],
)
def test_add_partitions(state: State, added: Error | State) -> None:
    facts = {"now_ms": NOW, "client_version": 0}
    assert outcome(add_partitions(known(state), producer(), [Q], **facts)) == added
    assert add_partitions(known(state), producer(EPOCH - 1), [Q], **facts) is FENCED
    assert add_partitions(known(state), producer(producer_id=8), [Q], **facts) is MAPPING


def test_add_partitions_that_are_there_changes_nothing_and_others_join_them() -> None:
    facts = {"now_ms": NOW, "client_version": 2}
    assert add_partitions(known(State.ONGOING), producer(), [P], **facts) is Error.NONE
    added = add_partitions(known(State.ONGOING), producer(), [P, Q], **facts)
    assert isinstance(added, Transaction)
    assert (added.partitions, added.start_ms, added.updated_ms) == (frozenset((P, Q)), 10, NOW)
    first = add_partitions(known(State.EMPTY), producer(), [P], **facts)
    assert isinstance(first, Transaction)
    assert first.start_ms == NOW


def test_verify_names_the_partitions_outside_of_the_transaction() -> None:
    assert verify_partitions(known(State.ONGOING), producer(), [P, Q]) == {
        P: Error.NONE,
        Q: Error.TRANSACTION_ABORTABLE,
    }
    assert verify_partitions(known(State.PREPARE_ABORT), producer(), [P]) == {P: BUSY}
    assert verify_partitions(known(State.ONGOING), producer(EPOCH - 1), [P]) == {P: FENCED}
    assert verify_partitions(known(State.ONGOING), producer(producer_id=8), [P]) == {P: MAPPING}


def begun(transaction: Transaction, expected: tuple[int, int] | None = None) -> Decision:
    return initialise(transaction, timeout_ms=300, expected=expected, now_ms=NOW, new_producer_id=lambda: 99)


@pytest.mark.parametrize(
    ("state", "result"),
    [
        (State.EMPTY, State.EMPTY),
        (State.ONGOING, State.PREPARE_EPOCH_FENCE),
        (State.PREPARE_COMMIT, BUSY),
        (State.PREPARE_ABORT, BUSY),
        (State.COMPLETE_COMMIT, State.EMPTY),
        (State.COMPLETE_ABORT, State.EMPTY),
    ],
)
def test_initialise(state: State, result: Error | State) -> None:
    assert outcome(begun(known(state))) == result
    assert outcome(begun(known(state), (PID, EPOCH))) == result
    assert begun(known(state), (PID + 1, EPOCH)) is FENCED


@pytest.mark.parametrize(
    ("epoch", "last", "expected", "found"),
    [
        (EPOCH, -1, None, (PID, EPOCH + 1, -1)),
        (EPOCH, -1, (PID, EPOCH), (PID, EPOCH + 1, EPOCH)),
        (EPOCH, EPOCH - 1, (PID, EPOCH - 1), (PID, EPOCH, EPOCH - 1)),  # a retry
        (EPOCH, -1, (PID, EPOCH - 1), FENCED),
        (EPOCH, -1, (PID, EPOCH + 1), FENCED),
        (-1, -1, None, (PID, 0, -1)),
        (-1, -1, (3, 4), (PID, 0, -1)),  # the id expired, and the producer continues
        (LAST_CLIENT_EPOCH, -1, None, (99, 0, -1)),
        (LAST_CLIENT_EPOCH, -1, (PID, LAST_CLIENT_EPOCH), (99, 0, LAST_CLIENT_EPOCH)),
        (EPOCH_MAX, -1, None, (99, 0, -1)),
        (LAST_CLIENT_EPOCH, EPOCH, (PID, EPOCH), (PID, LAST_CLIENT_EPOCH, EPOCH)),
    ],
)
def test_initialise_gives_an_epoch(
    epoch: int, last: int, expected: tuple[int, int] | None, found: tuple[int, int, int] | Error
) -> None:
    decided = begun(replace(known(State.EMPTY, epoch), last_producer_epoch=last), expected)
    if isinstance(found, Error):
        assert decided is found
    else:
        assert isinstance(decided, Transaction)
        assert (decided.producer_id, decided.producer_epoch, decided.last_producer_epoch) == found
        assert (decided.timeout_ms, decided.start_ms, decided.partitions) == (300, -1, frozenset())


def test_a_retry_after_a_new_producer_id_finds_it() -> None:
    rotated = replace(known(State.EMPTY, 0), previous_producer_id=3, last_producer_epoch=LAST_CLIENT_EPOCH)
    decided = begun(rotated, (3, LAST_CLIENT_EPOCH))
    assert isinstance(decided, Transaction)
    assert (decided.producer_id, decided.producer_epoch) == (PID, 0)
    assert begun(rotated, (3, 1)) is FENCED


def test_the_abort_of_the_server_has_an_epoch_that_no_client_has() -> None:
    aborted = abort_fenced(fence(known(State.ONGOING)), now_ms=NOW)
    assert (aborted.state, aborted.producer_epoch, aborted.partitions) == (
        State.PREPARE_ABORT,
        EPOCH + 1,
        frozenset((P,)),
    )
    assert aborted.last_producer_epoch == EPOCH
    for epoch in (LAST_CLIENT_EPOCH, EPOCH_MAX):
        assert abort_fenced(fence(known(State.ONGOING, epoch)), now_ms=NOW).producer_epoch == EPOCH_MAX


def test_timeouts_and_expiry() -> None:
    assert known(State.ONGOING).has_timed_out(111)
    assert not known(State.ONGOING).has_timed_out(110)
    assert not known(State.PREPARE_ABORT).has_timed_out(10**9)
    assert known(State.EMPTY).has_expired(1020, 1000)
    assert not known(State.EMPTY).has_expired(1019, 1000)
    assert not known(State.ONGOING).has_expired(10**9, 1000)


def test_labels_are_kafkas() -> None:
    assert State.PREPARE_EPOCH_FENCE.label == "PrepareEpochFence"
    assert State.COMPLETE_ABORT.label == "CompleteAbort"
    assert set(PREDECESSORS) == set(State)


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["add", "commit", "abort", "init", "continue", "complete", "time out"]),
        st.sampled_from([0, 2]),
        st.integers(-1, 1),
    ),
    max_size=40,
)


@given(CALLS, st.sampled_from([0, 5, LAST_CLIENT_EPOCH - 3]))
def test_epochs_never_fall_and_a_decided_outcome_stays(calls: list[tuple[str, int, int]], first: int) -> None:
    """Laws: (producer id, epoch) rises, a PREPARE_* state leads to its COMPLETE_* state only, no assertion fails."""
    ids = iter(range(100, 10_000))
    now = known(State.EMPTY, first)
    for name, version, lag in calls:
        of = producer(max(0, now.producer_epoch + lag), now.producer_id)
        facts = {"now_ms": NOW, "new_producer_id": lambda: next(ids)}
        decided: Decision = Error.NONE
        match name:
            case "add":
                decided = add_partitions(now, of, [P, Q], now_ms=NOW, client_version=version)
            case "commit" | "abort":
                decided = end(now, of, commit=name == "commit", client_version=version, **facts)
            case "init" | "continue":
                expected = (of.producer_id, of.producer_epoch) if name == "continue" else None
                decided = initialise(now, timeout_ms=1, expected=expected, **facts)
                if outcome(decided) is State.PREPARE_EPOCH_FENCE:
                    assert isinstance(decided, Transaction)
                    decided = abort_fenced(decided, now_ms=NOW)
            case "time out" if now.state is State.ONGOING:
                decided = abort_fenced(fence(now), now_ms=NOW)
            case "complete" if now.state.is_prepared:
                decided = complete(now, now_ms=NOW)
        if isinstance(decided, Error):
            continue
        assert (decided.producer_id, decided.producer_epoch) >= (now.producer_id, now.producer_epoch)
        assert decided.producer_epoch <= EPOCH_MAX
        assert decided.state.is_prepared or decided.producer_epoch < EPOCH_MAX or not decided.is_commit
        if now.state.is_prepared:
            assert decided.state.name == now.state.name.replace("PREPARE", "COMPLETE")
        if decided.state is State.ONGOING and now.state is State.ONGOING:
            assert decided.partitions >= now.partitions
        now = decided
