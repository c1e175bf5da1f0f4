"""What a log knows of the producers that write to it: sequences, epochs, open transactions. No disk, no lock.

Of every producer the last five batches are remembered, so that a retry is answered with the offsets it was given
before. Of every open transaction the first offset is: the earliest of them is `first_unstable_offset`, and nothing at
or above it is decided yet. The state is a function of the batches below an offset, in their order; a snapshot file
(`local.log.producer_snapshot`) holds it, less all but each producer's last batch.

What a batch has to be, before it is written (`ProducerState.check`), in this order:

| the batch | answer |
|---|---|
| the same epoch, first and last sequence as a remembered one | a duplicate: that one's offsets |
| of a producer that is not known | taken, whatever its sequence |
| an epoch below the producer's | ProducerFenced |
| an epoch above it | taken when its sequence is 0, OutOfOrderSequence else |
| a sequence that does not follow the last one (0 follows 2^31-1) | OutOfOrderSequence |
| not transactional while the producer's transaction is open | InvalidRequest |

A marker (`check_marker`) is refused for an epoch or a coordinator epoch below what the log has seen. What is in the log
already is never judged again: `update` and `replay` take every batch as it is, as Kafka does for replicated ones.
Source: kafka `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from local.errors import InvalidRequest, NotFound, OutOfOrderSequence, ProducerFenced
from local.format.batch_header import BatchHeader
from local.index.txn_index import AbortedTransaction
from local.log.producer_snapshot import ProducerEntry
from local.records.batch import Marker, read_marker

if TYPE_CHECKING:
    from local.format.columns import BatchTable

SEQUENCE_MAX = 2**31 - 1
RETAINED_BATCHES = 5  # kafka ProducerStateEntry.NUM_BATCHES_TO_RETAIN: what a client may have in flight
EXPIRATION_INTERVAL_MS = 600_000  # producer.id.expiration.check.interval.ms
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """Who appends, for an append that can be repeated safely: `base_sequence` numbers its first record.

    Raises InvalidRequest for a number outside its field.
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool = False

    def __post_init__(self) -> None:
        fields = ((self.producer_id, 2**63 - 1), (self.producer_epoch, 2**15 - 1), (self.base_sequence, SEQUENCE_MAX))
        if not all(0 <= number <= highest for number, highest in fields):
            raise InvalidRequest("naming a producer, a number is negative or leaves its field", producer=self)


class RememberedBatch(NamedTuple):
    """One of a producer's last batches. `last_offset` is inclusive."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return sequence_before(self.last_sequence, self.offset_delta)

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1


@dataclass(slots=True)
class _Known:
    """One producer. `batches` all have its epoch."""

    epoch: int
    coordinator_epoch: int = NONE
    timestamp_ms: int = NONE
    transaction_first_offset: int | None = None
    batches: deque[RememberedBatch] = field(default_factory=lambda: deque(maxlen=RETAINED_BATCHES))

    def move_to_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class ProducerState:
    """See the module text. `first_unstable_offset`: where the earliest open transaction began; None without one.

    One writer at a time; `first_unstable_offset` may be read by any thread.
    """

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        """The state that a snapshot's `entries` describe."""
        self.first_unstable_offset: int | None = None
        self._known: dict[int, _Known] = {}
        self._open: dict[int, int] = {}  # first offset to producer id, ascending: transactions begin in offset order
        for entry in entries:
            self._known[entry.producer_id] = _from_entry(entry)
        began = ((known.transaction_first_offset, producer) for producer, known in self._known.items())
        for first_offset, producer in sorted((first, producer) for first, producer in began if first is not None):
            self._open[first_offset] = producer
        self._find_first_unstable()

    def __len__(self) -> int:
        """How many producers are known."""
        return len(self._known)

    def entries(self) -> list[ProducerEntry]:
        """What a snapshot holds of this, by producer id."""
        return [_to_entry(producer, known) for producer, known in sorted(self._known.items())]

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """The batch that `header` repeats, None when it is new and may be appended (table in the module text).

        Raises ProducerFenced, OutOfOrderSequence, InvalidRequest; nothing changes.
        """
        known = self._known.get(header.producer_id)
        if known is None:
            return None
        repeated = _repeated(known, header)
        if repeated is not None:
            return repeated
        _check_epoch(known, header.producer_id, header.producer_epoch)
        _check_sequence(known, header)
        if known.transaction_first_offset is not None and not header.is_transactional:
            raise InvalidRequest(
                "appending outside of a transaction while the producer's is open",
                producer_id=header.producer_id,
                transaction_first_offset=known.transaction_first_offset,
            )
        return None

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, first_offset: int | None = None
    ) -> None:
        """Raises ProducerFenced for a marker from an older producer or an older transaction coordinator, NotFound where
        it is to end a transaction that began at `first_offset`, and that is not open."""
        known = self._known.get(producer_id)
        if first_offset is not None and (known is None or known.transaction_first_offset != first_offset):
            facts = {"producer_id": producer_id, "first_offset": first_offset}
            raise NotFound("ending a transaction, it has ended meanwhile", **facts)
        if known is None:
            return
        _check_epoch(known, producer_id, producer_epoch)
        if coordinator_epoch < known.coordinator_epoch:
            raise ProducerFenced(
                "ending a transaction, a newer coordinator has written",
                producer_id=producer_id,
                coordinator_epoch=coordinator_epoch,
                newest_coordinator_epoch=known.coordinator_epoch,
            )

    def update(self, header: BatchHeader, base_offset: int, marker: Marker | None = None) -> AbortedTransaction | None:
        """Take a batch that is in the log at `base_offset`; the transaction that it aborted, if it did.

        `marker` is what a control batch says (`batch.read_marker`); one that says nothing changes nothing.
        """
        if header.is_control:
            return None if marker is None else self._end_transaction(header, base_offset, marker)
        known = self._known.get(header.producer_id)
        if known is None:
            known = self._known[header.producer_id] = _Known(header.producer_epoch)
        known.move_to_epoch(header.producer_epoch)
        delta = header.last_offset_delta
        last_sequence = sequence_after(header.base_sequence, delta) if header.base_sequence >= 0 else NONE
        known.batches.append(RememberedBatch(last_sequence, base_offset + delta, delta, header.max_timestamp_ms))
        known.timestamp_ms = header.max_timestamp_ms
        if header.is_transactional and known.transaction_first_offset is None:
            known.transaction_first_offset = base_offset
            self._open[base_offset] = header.producer_id
            self._find_first_unstable()
        return None

    def replay(self, data: memoryview, table: BatchTable, from_offset: int = 0) -> list[AbortedTransaction]:
        """`update` with every batch of `data` at or above `from_offset` that has a producer; `table` is its scan.

        Raises Corrupt for a marker that cannot be read.
        """
        import numpy as np

        aborted = []
        for row in np.flatnonzero((table.producer_ids >= 0) & (table.base_offsets >= from_offset)).tolist():
            header = table.row(row)
            marker = read_marker(data, int(table.positions[row])) if header.is_control else None
            found = self.update(header, header.base_offset, marker)
            if found is not None:
                aborted.append(found)
        return aborted

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers whose last batch is `expiration_ms` old; returns how many. Never one in a transaction."""
        old = [
            producer
            for producer, known in self._known.items()
            if known.transaction_first_offset is None and now_ms - known.timestamp_ms >= expiration_ms
        ]
        for producer in old:
            del self._known[producer]
        return len(old)

    def _end_transaction(self, header: BatchHeader, offset: int, marker: Marker) -> AbortedTransaction | None:
        """The last stable offset of an aborted one is as it is once the marker is in the log."""
        known = self._known.get(header.producer_id)
        if known is None:
            known = self._known[header.producer_id] = _Known(header.producer_epoch)
        known.move_to_epoch(header.producer_epoch)
        known.coordinator_epoch = marker.coordinator_epoch
        known.timestamp_ms = header.max_timestamp_ms
        first_offset, known.transaction_first_offset = known.transaction_first_offset, None
        if first_offset is None:
            return None
        self._open.pop(first_offset, None)  # a snapshot may claim one offset for two producers
        self._find_first_unstable()
        if marker.is_commit:
            return None
        stable = offset + 1 if self.first_unstable_offset is None else self.first_unstable_offset
        return AbortedTransaction(
            producer_id=header.producer_id, first_offset=first_offset, last_offset=offset, last_stable_offset=stable
        )

    def _find_first_unstable(self) -> None:
        self.first_unstable_offset = next(iter(self._open), None)


def sequence_after(sequence: int, steps: int) -> int:
    """`steps` records on; 0 follows 2^31-1."""
    return (sequence + steps) % (SEQUENCE_MAX + 1)


def sequence_before(sequence: int, steps: int) -> int:
    """The inverse of `sequence_after`."""
    return (sequence - steps) % (SEQUENCE_MAX + 1)


def _repeated(known: _Known, header: BatchHeader) -> RememberedBatch | None:
    if header.producer_epoch != known.epoch:
        return None
    last_sequence = sequence_after(header.base_sequence, header.last_offset_delta)
    for batch in known.batches:
        if batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence:
            return batch
    return None


def _check_epoch(known: _Known, producer_id: int, epoch: int) -> None:
    if epoch < known.epoch:
        raise ProducerFenced(
            "appending with an old producer epoch", producer_id=producer_id, producer_epoch=epoch, newest=known.epoch
        )


def _check_sequence(known: _Known, header: BatchHeader) -> None:
    """A producer without remembered batches (only a marker of this epoch was seen) begins at 0."""
    is_same = header.producer_epoch == known.epoch
    expected = sequence_after(known.batches[-1].last_sequence, 1) if is_same and known.batches else 0
    if header.base_sequence != expected:
        raise OutOfOrderSequence(
            "appending a batch, its sequence does not follow the producer's last one",
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            expected=expected,
        )


def _from_entry(entry: ProducerEntry) -> _Known:
    first = entry.transaction_first_offset
    known = _Known(entry.producer_epoch, entry.coordinator_epoch, entry.timestamp_ms, first if first >= 0 else None)
    if entry.last_offset >= 0:
        last = (entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp_ms)
        known.batches.append(RememberedBatch(*last))
    return known


def _to_entry(producer_id: int, known: _Known) -> ProducerEntry:
    last = known.batches[-1] if known.batches else RememberedBatch(NONE, NONE, 0, NONE)
    first = known.transaction_first_offset
    return ProducerEntry(
        producer_id=producer_id,
        producer_epoch=known.epoch,
        last_sequence=last.last_sequence,
        last_offset=last.last_offset,
        offset_delta=last.offset_delta,
        timestamp_ms=known.timestamp_ms,
        coordinator_epoch=known.coordinator_epoch,
        transaction_first_offset=NONE if first is None else first,
    )
