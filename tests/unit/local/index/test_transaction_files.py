"""Transaction index and producer snapshot: golden bytes, lookups, damage."""

from __future__ import annotations

import pytest

from local.errors import Corrupt
from local.index import txn_index
from local.index.txn_index import AbortedTransaction
from local.log.producer_state import ProducerEntry, decode_snapshot, encode_snapshot


def _aborted(producer: int, first: int, last: int, stable: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id=producer, first_offset=first, last_offset=last, last_stable_offset=stable)


PRODUCER = ProducerEntry(
    producer_id=9,
    producer_epoch=3,
    last_sequence=41,
    last_offset=101,
    offset_delta=1,
    timestamp_ms=1_700_000_000_005,
    coordinator_epoch=4,
    transaction_first_offset=-1,
)


def test_the_bytes_of_an_aborted_transaction_equal_kafkas() -> None:
    expected = "00000000000000000009000000000000006400000000000000660000000000000067"
    assert _aborted(9, 100, 102, 103).pack().hex() == expected
    assert txn_index.entries(bytes.fromhex(expected)) == [_aborted(9, 100, 102, 103)]


def test_a_torn_entry_is_ignored_and_a_later_version_is_refused() -> None:
    data = txn_index.encode([_aborted(1, 0, 5, 6), _aborted(2, 3, 9, 10)])
    assert txn_index.entries(data[:-1]) == [_aborted(1, 0, 5, 6)]
    with pytest.raises(Corrupt, match="its version is unknown"):
        txn_index.entries(b"\0\1" + data[2:])


@pytest.mark.parametrize(
    "entries",
    [[_aborted(1, 0, 5, 6), _aborted(2, 0, 5, 6)], [_aborted(1, 0, 3, 6)], [_aborted(1, 9, 8, 6)]],
    ids=["repeats", "below the base", "ends before it begins"],
)
def test_transaction_index_entries_with_offsets_out_of_order_are_corrupt(entries: list[AbortedTransaction]) -> None:
    with pytest.raises(Corrupt, match=r"path=x\.txnindex"):
        txn_index.check(txn_index.encode(entries), 4, path="x.txnindex")


def test_a_read_lists_exactly_the_aborted_transactions_that_overlap_its_range() -> None:
    aborted = [_aborted(1, 10, 19, 10), _aborted(2, 15, 29, 15), _aborted(3, 40, 49, 50)]
    assert txn_index.overlapping(aborted, 20, 30) == ([aborted[1]], True)
    assert txn_index.overlapping(aborted, 0, 12) == ([aborted[0]], True)
    assert txn_index.overlapping(aborted, 45, 60) == ([aborted[2]], False)
    assert txn_index.overlapping(aborted, 50, 60) == ([], False)


def test_truncation_removes_entries_whose_marker_is_at_or_above_the_offset() -> None:
    aborted = [_aborted(1, 10, 19, 10), _aborted(2, 15, 29, 15)]
    assert txn_index.truncate(txn_index.encode(aborted), 29) == txn_index.encode(aborted[:1])
    assert txn_index.truncate(txn_index.encode(aborted), 30) == txn_index.encode(aborted)


def test_the_bytes_of_a_producer_snapshot_equal_kafkas() -> None:
    data = encode_snapshot([PRODUCER])
    assert len(data) == 56
    assert data[:2].hex() == "0001"
    assert data[6:].hex() == (
        "0000000100000000000000090003000000290000000000000065000000010000018bcfe5680500000004ffffffffffffffff"
    )
    assert decode_snapshot(data) == [PRODUCER]
    assert decode_snapshot(encode_snapshot([])) == []


def test_a_snapshot_with_any_changed_or_missing_byte_is_corrupt() -> None:
    data = encode_snapshot([PRODUCER, PRODUCER])
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(Corrupt, match=r"path=y\.snapshot"):
            decode_snapshot(damaged, path="y.snapshot")
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            decode_snapshot(data[:length])
