"""Batches of aborted transactions, compared with Kafka's consumer, which finds the markers in the stream."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local import kernels
from local.format.record import Record
from local.index.txn_index import AbortedTransaction
from local.records.batch import encode_batch, encode_marker
from local.records.isolation import aborted_batches, without_aborted


class Stream(NamedTuple):
    """Bytes of interleaved transactions, the aborted ones, and the offsets that read_committed shows."""

    data: bytes
    aborted: list[AbortedTransaction]
    visible: list[int]


PRODUCERS = 3
STEPS = st.lists(
    st.tuples(st.sampled_from(["plain", "idempotent", "begin", "commit", "abort"]), st.integers(0, PRODUCERS - 1)),
    max_size=40,
)


def _stream(steps: list[tuple[str, int]]) -> Stream:
    parts: list[bytes] = []
    aborted: list[AbortedTransaction] = []
    visible: list[int] = []
    opened: dict[int, list[int]] = {}
    offset = 0
    for what, producer in steps:
        if what in ("commit", "abort"):
            if producer not in opened:
                continue
            marker = encode_marker(
                base_offset=offset, is_commit=what == "commit", timestamp_ms=1, producer_id=producer, producer_epoch=0
            )
            parts.append(marker)
            mine = opened.pop(producer)
            if what == "commit":
                visible += mine
            else:
                aborted.append(
                    AbortedTransaction(
                        producer_id=producer, first_offset=mine[0], last_offset=offset, last_stable_offset=offset + 1
                    )
                )
            offset += 1
            continue
        if what == "idempotent" and producer in opened:
            continue
        records = [Record(b"k", b"%d" % at, 1) for at in range(2)]
        is_transactional = what == "begin"
        parts.append(
            encode_batch(
                records,
                base_offset=offset,
                producer_id=-1 if what == "plain" else producer,
                producer_epoch=-1 if what == "plain" else 0,
                base_sequence=-1 if what == "plain" else 0,
                is_transactional=is_transactional,
            )
        )
        (opened.setdefault(producer, []) if is_transactional else visible).extend([offset, offset + 1])
        offset += 2
    undecided = min((offsets[0] for offsets in opened.values()), default=offset)
    return Stream(b"".join(parts), aborted, sorted(each for each in visible if each < undecided))


def _as_kafkas_consumer(data: bytes, aborted: list[AbortedTransaction]) -> list[int]:
    """As `CompletedFetch`: a producer enters a set at its transaction's first offset and leaves it at its abort
    marker."""
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    gone: set[int] = set()
    seen: list[int] = []
    table = kernels.scan_batches(data)
    for row in range(len(table)):
        header = table.row(row)
        batch = data[int(table.positions[row]) : int(table.positions[row]) + header.size_bytes]
        while waiting and waiting[0].first_offset <= header.last_offset:
            gone.add(waiting.pop(0).producer_id)
        columns = kernels.decode_columns(batch, include_control=True)
        if header.is_control:
            if columns.key(0) == b"\0\0\0\0":
                gone.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in gone):
            seen += columns.offsets.tolist()
    return seen


@given(STEPS)
def test_read_committed_shows_the_same_records_as_kafkas_consumer(steps: list[tuple[str, int]]) -> None:
    stream = _stream(steps)
    kept = without_aborted(kernels.decode_columns(stream.data), stream.aborted).offsets.tolist()
    assert kept == _as_kafkas_consumer(stream.data, stream.aborted)
    assert [offset for offset in kept if offset in set(stream.visible)] == stream.visible


@given(STEPS, st.integers(0, 40))
def test_a_read_that_begins_inside_a_transaction_omits_the_same_records(
    steps: list[tuple[str, int]], skipped: int
) -> None:
    stream = _stream(steps)
    table = kernels.scan_batches(stream.data)
    at = int(table.positions[skipped]) if skipped < len(table) else len(stream.data)
    whole = without_aborted(kernels.decode_columns(stream.data), stream.aborted).offsets.tolist()
    rest = kernels.decode_columns(stream.data[at:])
    first = int(rest.table.base_offsets[0]) if len(rest.table) else 1 << 40
    assert without_aborted(rest, stream.aborted).offsets.tolist() == [each for each in whole if each >= first]


@pytest.mark.parametrize(
    ("producer", "first", "last", "expected"),
    [
        (7, 0, 4, [True, True, False]),
        (7, 2, 4, [False, True, False]),
        (7, 0, 2, [True, False, False]),
        (8, 0, 4, [False, False, False]),
        (7, 40, 50, [False, False, False]),
    ],
    ids=["whole", "from its first offset", "up to its marker", "another producer", "elsewhere"],
)
def test_a_batch_is_aborted_from_the_first_offset_to_the_marker(
    producer: int, first: int, last: int, expected: list[bool]
) -> None:
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    two = [Record(b"k", b"v", 1)] * 2
    data = b"".join(
        [
            encode_batch(two, base_offset=0, **fields),  # type: ignore[arg-type]
            encode_batch(two, base_offset=2, **fields),  # type: ignore[arg-type]
            encode_marker(base_offset=4, is_commit=False, timestamp_ms=1, producer_id=7, producer_epoch=0),
        ]
    )
    entry = AbortedTransaction(producer_id=producer, first_offset=first, last_offset=last, last_stable_offset=last + 1)
    assert aborted_batches(kernels.scan_batches(data), [entry]).tolist() == expected


def test_batches_outside_transactions_never_count_as_aborted() -> None:
    data = encode_batch([Record(b"k", b"v", 1)], producer_id=7, producer_epoch=0, base_sequence=0)
    entry = AbortedTransaction(producer_id=7, first_offset=0, last_offset=9, last_stable_offset=10)
    assert not aborted_batches(kernels.scan_batches(data), [entry]).any()
