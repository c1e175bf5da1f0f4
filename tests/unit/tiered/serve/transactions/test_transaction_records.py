"""The records of ``__transaction_state``: golden bytes, every field there and back, and damaged bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.errors import Corrupt
from local.names import TopicPartition
from tiered.serve.groups.coordinator_records import decode_transaction_record
from tiered.serve.transactions.transaction import State, Transaction
from tiered.serve.transactions.transaction_records import decode_key, decode_value, encode_key, encode_value

EMPTY = Transaction(transactional_id="id", producer_id=7, producer_epoch=0, timeout_ms=60_000, updated_ms=1000)
COMMITTING = Transaction(
    transactional_id="id",
    producer_id=7,
    producer_epoch=3,
    timeout_ms=60_000,
    state=State.PREPARE_COMMIT,
    partitions=frozenset((TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 2))),
    start_ms=900,
    updated_ms=1000,
    previous_producer_id=7,
    next_producer_id=8,
    client_version=2,
)
TIMES = (1000).to_bytes(8, "big")


def test_golden_bytes() -> None:
    assert encode_key("id") == b"\0\0\0\2id"
    head = b"\0\1" + (7).to_bytes(8, "big")
    assert encode_value(EMPTY) == head + b"\0\0\0\0\xea\x60\0\0" + TIMES + b"\xff" * 8 + b"\0"
    topics = b"\3\2a\3\0\0\0\0\0\0\0\1\0\2b\2\0\0\0\2\0"
    tags = b"\2\1\x08" + (8).to_bytes(8, "big") + b"\2\2\0\2"
    assert encode_value(COMMITTING) == (head + b"\0\3\0\0\xea\x60\2" + topics + TIMES + (900).to_bytes(8, "big") + tags)


def test_a_value_of_version_0_is_read() -> None:
    value = b"\0\0" + (7).to_bytes(8, "big") + b"\0\3\0\0\0\x64\1" + b"\0\0\0\1\0\1a\0\0\0\1\0\0\0\5" + TIMES + TIMES
    found = decode_value("id", value)
    assert (found.state, found.partitions) == (State.ONGOING, frozenset((TopicPartition("a", 5),)))
    assert (found.timeout_ms, found.client_version, found.next_producer_id) == (100, 0, -1)


def test_a_value_without_topics_of_version_0_is_read() -> None:
    value = b"\0\0" + (7).to_bytes(8, "big") + b"\0\3\0\0\0\x64\0" + b"\xff\xff\xff\xff" + TIMES + TIMES
    assert decode_value("id", value).partitions == frozenset()


def test_the_command_that_dumps_records_reads_them() -> None:
    key, value = decode_transaction_record(encode_key("id"), encode_value(COMMITTING))
    assert key["data"] == {"transactionalId": "id"}
    assert value is not None
    assert value["version"] == 1
    assert value["data"] == {
        "producerId": 7,
        "producerEpoch": 3,
        "transactionTimeoutMs": 60_000,
        "transactionStatus": "PrepareCommit",
        "transactionPartitions": [{"topic": "a", "partitionIds": [0, 1]}, {"topic": "b", "partitionIds": [2]}],
        "transactionLastUpdateTimestampMs": 1000,
        "transactionStartTimestampMs": 900,
        "nextProducerId": 8,
        "clientTransactionVersion": 2,
    }


def test_a_key_of_another_type_is_no_transactional_id() -> None:
    assert decode_key(b"\0\1whatever") is None
    assert decode_key(encode_key("é")) == "é"


LONGS, SHORTS = st.integers(0, 2**63 - 1), st.integers(-1, 2**15 - 1)
PARTITIONS = st.builds(TopicPartition, st.text("abc", min_size=1, max_size=200), st.integers(0, 2**31 - 1))


@given(
    st.builds(
        Transaction,
        transactional_id=st.just("id"),
        producer_id=LONGS,
        producer_epoch=SHORTS,
        timeout_ms=st.integers(0, 2**31 - 1),
        state=st.sampled_from(State),
        partitions=st.frozensets(PARTITIONS, max_size=5),
        start_ms=LONGS,
        updated_ms=LONGS,
        next_producer_id=LONGS,
        client_version=st.sampled_from([0, 2]),
    )
)
def test_a_value_is_read_as_it_was_written(transaction: Transaction) -> None:
    found = decode_value("id", encode_value(transaction))
    if transaction.state is State.EMPTY:
        assert found.partitions == frozenset()
        found = decode_value("id", encode_value(found))
    else:
        assert found == transaction
    assert (found.producer_id, found.start_ms, found.updated_ms) == (
        transaction.producer_id,
        transaction.start_ms,
        transaction.updated_ms,
    )


@given(st.integers(0, 100), st.binary(min_size=0, max_size=3))
def test_damaged_values_are_read_or_corrupt(at: int, damage: bytes) -> None:
    data = encode_value(COMMITTING)
    for damaged in (data[:at], data[:at] + damage + data[at + len(damage) :], data + damage):
        try:
            decode_value("id", damaged)
        except Corrupt:
            continue


@pytest.mark.parametrize("value", [b"\0\2", b"\xff\xff", b"", encode_value(EMPTY)[:-1], encode_value(EMPTY) + b"x"])
def test_unknown_versions_and_truncated_values_are_corrupt(value: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_value("id", value)


def test_an_unknown_state_is_corrupt() -> None:
    data = bytearray(encode_value(EMPTY))
    data[16] = 8
    with pytest.raises(Corrupt, match="state is unknown"):
        decode_value("id", bytes(data))
