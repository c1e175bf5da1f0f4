"""Producer state: duplicates, sequences, epochs, open transactions, and its snapshot."""

from __future__ import annotations

import pytest

from local.errors import Conflict, Corrupt, InvalidRequest, LogError, OutOfOrderSequence, ProducerFenced
from local.format.batch_header import BatchHeader
from local.format.record import Record
from local.index.txn_index import AbortedTransaction
from local.kernels import scan_batches
from local.log.producer_state import SEQUENCE_MAX, Producer, ProducerState, sequence_after, sequence_before
from local.records.batch import Marker, encode_batch, encode_marker, read_header, read_marker


def header(producer: int, epoch: int, sequence: int, count: int = 1, *, transactional: bool = False) -> BatchHeader:
    records = [Record(b"k", b"v", 1000 + at) for at in range(count)]
    found = read_header(
        encode_batch(
            records,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )
    )
    assert found is not None
    return found


def marker_header(producer: int, epoch: int, *, timestamp_ms: int = 2000) -> BatchHeader:
    body = encode_marker(
        base_offset=0, is_commit=True, timestamp_ms=timestamp_ms, producer_id=producer, producer_epoch=epoch
    )
    found = read_header(body)
    assert found is not None
    return found


ABORT, COMMIT = Marker(is_commit=False, coordinator_epoch=0), Marker(is_commit=True, coordinator_epoch=0)


def aborted(producer: int, first: int, last: int, stable: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id=producer, first_offset=first, last_offset=last, last_stable_offset=stable)


def state_after(*batches: tuple[BatchHeader, int]) -> ProducerState:
    state = ProducerState()
    for each, offset in batches:
        assert state.check(each) is None
        state.update(each, offset)
    return state


def test_a_retry_of_one_of_the_last_five_batches_returns_its_offsets() -> None:
    state = state_after(*((header(1, 0, at * 2, 2), 100 + at * 10) for at in range(6)))
    for at in range(1, 6):
        again = state.check(header(1, 0, at * 2, 2))
        assert again is not None
        assert (again.base_offset, again.next_offset) == (100 + at * 10, 102 + at * 10)
    with pytest.raises(OutOfOrderSequence, match="base_sequence=0 expected=12"):
        state.check(header(1, 0, 0, 2))  # only the last five batches are cached


@pytest.mark.parametrize(
    ("epoch", "sequence", "count", "error"),
    [
        (3, 10, 5, None),
        (3, 11, 5, OutOfOrderSequence),
        (3, 9, 5, OutOfOrderSequence),
        (3, 5, 4, OutOfOrderSequence),
        (4, 0, 1, None),
        (4, 10, 1, OutOfOrderSequence),
        (2, 10, 1, ProducerFenced),
        (2, 5, 5, ProducerFenced),
    ],
    ids=["next", "gap", "back", "other range", "new epoch", "new epoch not at 0", "old epoch", "old epoch again"],
)
def test_a_batch_continues_the_sequence_or_begins_a_new_epoch_at_zero(
    epoch: int, sequence: int, count: int, error: type[LogError] | None
) -> None:
    state = state_after((header(1, 3, 0, 5), 0), (header(1, 3, 5, 5), 5))
    if error is None:
        assert state.check(header(1, epoch, sequence, count)) is None
    else:
        with pytest.raises(error, match="producer_id=1"):
            state.check(header(1, epoch, sequence, count))


def test_an_unknown_producer_may_begin_with_any_sequence() -> None:
    assert ProducerState().check(header(1, 7, 12345)) is None


def test_sequences_wrap_from_the_largest_int_to_zero() -> None:
    state = state_after((header(1, 0, SEQUENCE_MAX - 1, 2), 0))
    assert state.check(header(1, 0, 0)) is None
    with pytest.raises(OutOfOrderSequence, match="expected=0"):
        state.check(header(1, 0, 1))
    wrapped = state_after((header(1, 0, SEQUENCE_MAX - 1, 4), 10))
    again = wrapped.check(header(1, 0, SEQUENCE_MAX - 1, 4))
    assert again is not None
    assert again.base_offset == 10
    assert wrapped.check(header(1, 0, 2)) is None
    assert sequence_after(SEQUENCE_MAX, 1) == 0
    assert sequence_before(1, 3) == SEQUENCE_MAX - 1


def test_a_non_transactional_batch_during_an_open_transaction_is_refused() -> None:
    state = state_after((header(1, 0, 0, transactional=True), 5))
    with pytest.raises(InvalidRequest, match="transaction_first_offset=5"):
        state.check(header(1, 0, 1))
    assert state.check(header(1, 0, 1, transactional=True)) is None
    assert state.check(header(2, 0, 1)) is None


def test_the_first_unstable_offset_is_the_base_of_the_oldest_open_transaction() -> None:
    state = state_after(*((header(each, 0, 0, transactional=True), each * 10) for each in (1, 2, 3)))
    assert state.first_unstable_offset == 10
    assert state.update(marker_header(2, 0), 40, ABORT) == aborted(2, 20, 40, 10)
    assert state.first_unstable_offset == 10
    assert state.update(marker_header(1, 0), 41, COMMIT) is None
    assert state.first_unstable_offset == 30
    assert state.update(marker_header(3, 0), 42, ABORT) == aborted(3, 30, 42, 43)
    assert state.first_unstable_offset is None


def test_a_marker_without_open_transaction_aborts_nothing_and_updates_the_epochs() -> None:
    state = ProducerState()
    assert state.update(marker_header(1, 4), 0, Marker(is_commit=False, coordinator_epoch=9)) is None
    with pytest.raises(OutOfOrderSequence, match="expected=0"):
        state.check(header(1, 4, 1))
    with pytest.raises(ProducerFenced, match="the producer epoch is too old"):
        state.check_marker(1, 3, 9)
    with pytest.raises(ProducerFenced, match="newest_coordinator_epoch=9"):
        state.check_marker(1, 4, 8)
    state.check_marker(1, 4, 9)
    state.check_marker(1, 5, 10)


def test_a_fenced_producer_is_a_conflict_and_a_wrong_sequence_an_invalid_request() -> None:
    assert issubclass(ProducerFenced, Conflict)
    assert not issubclass(ProducerFenced, InvalidRequest)
    assert issubclass(OutOfOrderSequence, InvalidRequest)


def test_only_inactive_producers_without_open_transaction_expire() -> None:
    state = state_after((header(1, 0, 0), 0), (header(2, 0, 0, transactional=True), 1), (header(3, 0, 0, 500), 2))
    assert state.expire(1000 + 99, 100) == 0
    assert state.expire(1000 + 100, 100) == 1
    assert [entry.producer_id for entry in state.entries()] == [2, 3]
    assert state.expire(10**9, 100) == 1
    assert len(state) == 1
    assert state.first_unstable_offset == 1


def test_a_snapshot_keeps_the_last_batch_and_the_open_transaction() -> None:
    state = state_after(
        (header(2, 1, 0, 3, transactional=True), 50), (header(1, 0, 0, 2), 60), (header(1, 0, 2, 2), 62)
    )
    state.update(marker_header(4, 7, timestamp_ms=9), 64, Marker(is_commit=True, coordinator_epoch=5))
    again = ProducerState(state.entries())
    assert again.entries() == state.entries()
    assert again.first_unstable_offset == 50
    known = again.check(header(1, 0, 2, 2))
    assert known is not None
    assert known.base_offset == 62
    with pytest.raises(OutOfOrderSequence):
        again.check(header(1, 0, 0, 2))
    with pytest.raises(ProducerFenced):
        again.check_marker(4, 7, 4)
    assert again.update(marker_header(2, 1), 70, ABORT) == aborted(2, 50, 70, 71)


def test_a_replay_of_batches_gives_the_same_state() -> None:
    batches = [
        encode_batch([Record(b"a", b"1", 5)] * 3, base_offset=0),
        encode_batch([Record(b"a", b"1", 5)] * 2, base_offset=3, producer_id=1, producer_epoch=0, base_sequence=0),
        encode_batch(
            [Record(b"a", b"1", 6)], base_offset=5, producer_id=2, producer_epoch=0, base_sequence=0,
            is_transactional=True,
        ),
        encode_marker(base_offset=6, is_commit=False, timestamp_ms=7, producer_id=2, producer_epoch=0),
    ]  # fmt: skip
    data = memoryview(b"".join(batches))
    state = ProducerState()
    assert state.replay(data, scan_batches(data)) == [aborted(2, 5, 6, 7)]
    late = ProducerState()
    assert late.replay(data, scan_batches(data), from_offset=6) == []
    assert [entry.producer_id for entry in state.entries()] == [1, 2]
    assert state.entries()[0].last_offset == 4
    assert state.first_unstable_offset is None


@pytest.mark.parametrize("numbers", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0, 2**15, 0), (0, 0, 2**31), (2**63, 0, 0)])
def test_a_producer_with_a_field_out_of_range_is_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequest, match="invalid producer"):
        Producer(producer_id=numbers[0], producer_epoch=numbers[1], base_sequence=numbers[2])


def test_a_marker_is_decoded_from_the_record_of_its_control_batch() -> None:
    body = encode_marker(
        base_offset=9, is_commit=True, timestamp_ms=5, producer_id=3, producer_epoch=1, coordinator_epoch=77
    )
    assert read_marker(b"xx" + body, 2) == Marker(is_commit=True, coordinator_epoch=77)


@pytest.mark.parametrize(
    ("key", "value", "answer"),
    [
        (b"\0\0\0\2", b"\0" * 6, None),
        (b"\0\1\0\1\0", b"\0\1\0\0\0\5\0", Marker(is_commit=True, coordinator_epoch=5)),
        (b"\0\0\0", b"\0" * 6, Corrupt),
        (None, b"\0" * 6, Corrupt),
        (b"\0\0\0\1", b"\0" * 5, Corrupt),
        (b"\0\0\0\1", None, Corrupt),
    ],
    ids=["leader change", "longer ones", "short key", "no key", "short value", "no value"],
)
def test_a_control_record_of_another_type_is_ignored_and_a_short_one_is_corrupt(
    key: bytes | None, value: bytes | None, answer: object
) -> None:
    batch = encode_batch([(key, value, 5)])
    if answer is Corrupt:
        with pytest.raises(Corrupt, match="too short"):
            read_marker(batch)
    else:
        assert read_marker(batch) == answer
