"""The transaction coordinator: the effects of each call in order, and their recovery after a crash.

**Order of effects** of a transaction over the partitions p1 to pn. Each one is durable before the next one begins.

| | effect | a crash after it leaves | recovery |
|---|---|---|---|
| 1 | the record ONGOING with the partitions | an open transaction | aborted after its timeout |
| 2 | batches in p1 to pn | the same | the same |
| 3 | the record PREPARE_COMMIT or PREPARE_ABORT | the outcome; all partitions are open | all markers again, then 5 |
| 4 | the markers in p1 to pn, then their fsyncs | the outcome; some partitions are open | the same |
| 5 | the record COMPLETE_* | nothing open | none |

- A batch is appended only after effect 1 for its partition, so recovery knows every partition with an open batch.
- Effect 3 decides. EndTxn is answered without an error after it, even if a marker fails: `tick` repeats effect 4.
- Until effect 5 the next call for the id gets CONCURRENT_TRANSACTIONS, so no batch of the next transaction precedes a
  repeated marker of this one. A marker may repeat: without an open transaction it has no effect.
- Effect 5 needs no fsync of its own: the next record of the id is in the same partition, and makes it durable.

**A late batch after its marker** would stay open for ever. An append holds a ticket (`appending`) for its transaction:

1. While there is a ticket, nothing ends the transaction: a client's call gets CONCURRENT_TRANSACTIONS, which clients
   repeat, and `tick` tries again.
2. While a transaction ends, no ticket is given.
3. Markers of version 2 and of the server's own aborts have a higher epoch, so the log itself refuses a late batch.

**Failed writes.** After a failed write of a record the id has its earlier state, and the caller gets
COORDINATOR_NOT_AVAILABLE. The record may be in the log nevertheless. The next record of the id overrides it. A crash
before that finds a state that the client has requested.

Thread safe. Calls block for the disk. A call while another one changes the same id gets CONCURRENT_TRANSACTIONS.

Source: kafka `TransactionCoordinator`, `TransactionStateManager`, `TransactionMarkerChannelManager`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from local.errors import LogError, NotFound, ProducerFenced, Unavailable
from local.names import TopicPartition
from tiered.serve.messages.base import Error
from tiered.serve.record_sink import RefusedBatch
from tiered.serve.transactions import transaction as rules
from tiered.serve.transactions.transaction import (
    NONE,
    VERSION_0,
    VERSION_2,
    Decision,
    ProducerOf,
    State,
    Transaction,
)
from tiered.serve.transactions.transaction_records import decode_key, decode_value, encode_key, encode_value

if TYPE_CHECKING:
    from local.log.producer_state import ProducerEntry

IDS_MAX = 100_000
PARTITIONS_MAX = 500_000  # of all open transactions
ID_BYTES_MAX = 1024  # Kafka has no limit but that of the format
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Kafka's broker settings with its defaults, but for the number of partitions (Kafka: 50).

    The two intervals are fixed: no node has a reason to change them.
    """

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    id_expiration_ms: int = 604_800_000  # transactional.id.expiration.ms
    abort_interval_ms: int = 10_000  # transaction.abort.timed.out.transaction.cleanup.interval.ms
    expiry_interval_ms: int = 3_600_000  # transaction.remove.expired.transaction.cleanup.interval.ms
    partitions: int = 1  # transaction.state.log.num.partitions, before the topic exists
    segment_bytes: int = 100 << 20  # transaction.state.log.segment.bytes, likewise

    @classmethod
    def of(cls, int_of: Callable[[str], int]) -> TransactionSettings:
        """The settings of a node; `int_of` gives the value of a property."""
        return cls(**{field: int_of(name) for name, field in _PROPERTIES.items()})


_PROPERTIES: Mapping[str, str] = {
    "transaction.max.timeout.ms": "max_timeout_ms",
    "transactional.id.expiration.ms": "id_expiration_ms",
    "transaction.state.log.num.partitions": "partitions",
    "transaction.state.log.segment.bytes": "segment_bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMarker:
    """The marker that ends a producer's transaction in a partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


class TransactionStorage(Protocol):
    """The durable effects of the coordinator. Thread safe; every verb may wait for the disk and raises LogError."""

    def read_all(self) -> Iterable[tuple[bytes, bytes | None]]:
        """All records of ``__transaction_state``, for each key in the order of appends; none without the topic."""

    def append(self, transactional_id: str, key: bytes, value: bytes | None, *, is_durable: bool) -> None:
        """Append to the id's partition of ``__transaction_state``, which is created on first use."""

    def write_marker(self, partition: TopicPartition, marker: EndMarker) -> None:
        """Append a marker. Raises NotFound if the partition was deleted, ProducerFenced."""

    def flush(self, partition: TopicPartition) -> None:
        """Make the written markers durable on the disk. Raises NotFound if the partition was deleted."""

    def producers(self, partition: TopicPartition) -> Sequence[ProducerEntry]:
        """The producers that the partition's log knows. Raises NotFound."""

    def coordinator_epoch(self, transactional_id: str) -> int:
        """The leader epoch of the id's partition of ``__transaction_state``."""


class Check(Enum):
    """What an append needs of the coordinator. Source: kafka `TransactionSupportedOperation`."""

    VERIFY = "verify"  # the partition must be in the transaction: Produce up to 10, TxnOffsetCommit up to 3
    VERIFY_ABORTABLE = "verify_abortable"  # the same; the client knows TRANSACTION_ABORTABLE
    ADD = "add"  # the partition is added: Produce from 12 on, TxnOffsetCommit from 5 on


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """The response to InitProducerId and EndTxn: the producer id and epoch to continue with, or an error."""

    error: Error
    producer_id: int = NONE
    producer_epoch: int = NONE


@dataclass(slots=True)
class _Entry:
    """A transactional id in memory. The coordinator's lock guards the fields.

    `pending` is the state that a call is about to reach: any but ONGOING refuses tickets. `appending` counts tickets.
    """

    transaction: Transaction
    pending: State | None = None
    appending: int = 0


@dataclass(slots=True)
class _Due:
    """When `tick` does its work next."""

    abort_ms: int = 0
    expiry_ms: int = 0


class TransactionCoordinator:
    """All transactional ids of one node. Call `load` before the first request and `tick` every second.

    `on_marker` is called after a marker is durable, from the thread that wrote it.
    """

    def __init__(
        self,
        storage: TransactionStorage,
        *,
        new_producer_id: Callable[[], int],
        clock_ms: Callable[[], int],
        settings: TransactionSettings | None = None,
        on_marker: Callable[[TopicPartition, EndMarker], None] = lambda partition, marker: None,
    ) -> None:
        self.settings = settings or TransactionSettings()
        self._storage = storage
        self._new_producer_id = new_producer_id
        self._clock_ms = clock_ms
        self._on_marker = on_marker
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._partitions = 0  # of all entries
        self._is_loaded = False
        self._load_lock = threading.Lock()
        self._due = _Due()

    # Start and background work

    def load(self) -> bool:
        """Read all records and finish the prepared transactions; return whether the records could be read.

        Calls get COORDINATOR_LOAD_IN_PROGRESS until this succeeds; `tick` tries again. A prepared transaction whose
        markers fail stays prepared, and `tick` repeats them.
        """
        with self._load_lock:
            if self._is_loaded:
                return True
            try:
                found = _newest(self._storage.read_all())
            except LogError as error:
                _log.error("cannot read the states of transactions, transactions are refused: error=%s", error)
                return False
            with self._lock:
                self._entries = {name: _Entry(each) for name, each in found.items()}
                self._partitions = sum(len(each.partitions) for each in found.values())
                self._is_loaded = True
        self._finish_prepared()
        return True

    def tick(self) -> None:
        """Repeat failed markers, abort transactions after their timeout, remove expired ids."""
        if not self.load():
            return
        self._finish_prepared()
        now_ms = self._clock_ms()
        if now_ms >= self._due.abort_ms:
            self._due.abort_ms = now_ms + self.settings.abort_interval_ms
            for name in self._ids(lambda each: each.has_timed_out(now_ms)):
                self._abort_timed_out(name, now_ms)
        if now_ms >= self._due.expiry_ms:
            self._due.expiry_ms = now_ms + self.settings.expiry_interval_ms
            for name in self._ids(lambda each: each.has_expired(now_ms, self.settings.id_expiration_ms)):
                self._expire(name, now_ms)

    # Requests

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None = None
    ) -> ProducerIdentity:
        """InitProducerId with a transactional id. `expected`: producer id and epoch of a producer that continues."""
        if not transactional_id or len(transactional_id.encode()) > ID_BYTES_MAX:
            return ProducerIdentity(error=Error.INVALID_REQUEST)
        if not 0 < timeout_ms <= self.settings.max_timeout_ms:
            return ProducerIdentity(error=Error.INVALID_TRANSACTION_TIMEOUT)
        wrong = self._create(transactional_id, timeout_ms)
        if wrong is not Error.NONE:
            return ProducerIdentity(error=wrong)

        def decide(known: Transaction) -> Decision:
            facts = {"timeout_ms": timeout_ms, "expected": expected, "now_ms": self._clock_ms()}
            return rules.initialise(known, new_producer_id=self._new_producer_id, **facts)  # type: ignore[arg-type]

        changed = self._change(transactional_id, State.EMPTY, decide)
        if isinstance(changed, Error):
            return ProducerIdentity(error=changed)
        if changed.state is State.EMPTY:
            return _identity(changed)
        return ProducerIdentity(error=Error.CONCURRENT_TRANSACTIONS)  # an ongoing transaction was aborted first

    def add_partitions(
        self, producer: ProducerOf, partitions: Collection[TopicPartition], *, client_version: int = VERSION_0
    ) -> Error:
        """AddPartitionsToTxn and AddOffsetsToTxn. The partitions must exist."""
        if not producer.transactional_id:
            return Error.INVALID_REQUEST

        def decide(known: Transaction) -> Decision:
            now_ms = self._clock_ms()
            return rules.add_partitions(known, producer, partitions, now_ms=now_ms, client_version=client_version)

        changed = self._change(producer.transactional_id, State.ONGOING, decide)
        return changed if isinstance(changed, Error) else Error.NONE

    def verify_partitions(
        self, producer: ProducerOf, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Error]:
        """AddPartitionsToTxn that verifies only."""
        with self._lock:
            entry, wrong = self._entry(producer.transactional_id)
            if entry is None:
                return dict.fromkeys(partitions, wrong)
            return rules.verify_partitions(entry.transaction, producer, partitions)

    def end(self, producer: ProducerOf, *, commit: bool, client_version: int = VERSION_0) -> ProducerIdentity:
        """EndTxn. Answers when the outcome is durable and the markers were tried."""
        if not producer.transactional_id:
            return ProducerIdentity(error=Error.INVALID_REQUEST)

        def decide(known: Transaction) -> Decision:
            return rules.end(
                known,
                producer,
                commit=commit,
                client_version=client_version,
                now_ms=self._clock_ms(),
                new_producer_id=self._new_producer_id,
            )

        target = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        changed = self._change(producer.transactional_id, target, decide)
        if client_version < VERSION_2:
            return ProducerIdentity(error=changed if isinstance(changed, Error) else Error.NONE)
        if changed is Error.NONE:
            with self._lock:
                return _identity(self._entries[producer.transactional_id].transaction)
        return ProducerIdentity(error=changed) if isinstance(changed, Error) else _identity(changed)

    @contextmanager
    def appending(
        self, producer: ProducerOf, partitions: Collection[TopicPartition], check: Check
    ) -> Iterator[Mapping[TopicPartition, Error]]:
        """The verdict for each partition: within the block, transactional batches may be appended to those with NONE.

        Produce and TxnOffsetCommit use it. The errors are those that a client of that version expects.
        """
        ticket: _Entry | None = None
        wrong: Error | None = None
        if check is Check.ADD:
            added = self.add_partitions(producer, partitions, client_version=VERSION_2)
            wrong = None if added is Error.NONE else added
        with self._lock:
            entry, unknown = self._entry(producer.transactional_id)
            wrong = wrong or (unknown if entry is None else None)
            if wrong is None and entry is not None:
                if entry.pending not in (None, State.ONGOING):
                    wrong = Error.CONCURRENT_TRANSACTIONS
                else:
                    verdicts = rules.verify_partitions(entry.transaction, producer, partitions)
                    entry.appending += 1
                    ticket = entry
        if wrong is not None:
            verdicts = dict.fromkeys(partitions, wrong)
        try:
            yield {partition: _for_append(error, check) for partition, error in verdicts.items()}
        finally:
            if ticket is not None:
                with self._lock:
                    ticket.appending -= 1

    def describe(self, transactional_id: str) -> Transaction | Error:
        """DescribeTransactions. A prepared transaction has the partitions without marker."""
        if not transactional_id:
            return Error.INVALID_REQUEST
        with self._lock:
            entry, wrong = self._entry(transactional_id)
            if entry is not None and entry.pending is not State.DEAD:
                return entry.transaction
            return Error.TRANSACTIONAL_ID_NOT_FOUND if wrong is not Error.COORDINATOR_LOAD_IN_PROGRESS else wrong

    def transactions(self) -> Sequence[Transaction] | Error:
        """ListTransactions, without its filters."""
        with self._lock:
            if not self._is_loaded:
                return Error.COORDINATOR_LOAD_IN_PROGRESS
            return [each.transaction for each in self._entries.values() if each.pending is not State.DEAD]

    def producers(self, partition: TopicPartition) -> Sequence[ProducerEntry]:
        """DescribeProducers. Raises the errors of the log."""
        return self._storage.producers(partition)

    def end_in_partition(self, partition: TopicPartition, marker: EndMarker) -> Error:
        """WriteTxnMarkers: end the producer's transaction in one partition, durably, without regard to its id."""
        try:
            self._storage.write_marker(partition, marker)
            self._storage.flush(partition)
        except NotFound:
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        except ProducerFenced as error:
            is_coordinator = "coordinator_epoch" in error.facts
            return Error.TRANSACTION_COORDINATOR_FENCED if is_coordinator else Error.INVALID_PRODUCER_EPOCH
        except RefusedBatch as error:
            return error.error
        except LogError as error:
            _log.warning("cannot write a marker: partition=%s error=%s", partition, error)
            return Error.KAFKA_STORAGE_ERROR
        self._on_marker(partition, marker)
        return Error.NONE

    def now_ms(self) -> int:
        return self._clock_ms()

    # Steps

    def _create(self, transactional_id: str, timeout_ms: int) -> Error:
        """Create the id in memory, unless it is there: it has no epoch, and is stored with its first one."""
        with self._lock:
            entry, wrong = self._entry(transactional_id)
            if entry is not None or wrong is Error.COORDINATOR_LOAD_IN_PROGRESS:
                return wrong
            if len(self._entries) >= IDS_MAX:
                _log.warning("transactional id refused, there are too many: limit=%d", IDS_MAX)
                return Error.POLICY_VIOLATION
        try:
            producer_id = self._new_producer_id()
        except LogError as error:
            _log.warning("cannot give a producer id: error=%s", error)
            return Error.COORDINATOR_NOT_AVAILABLE
        created = Transaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            timeout_ms=timeout_ms,
            updated_ms=self._clock_ms(),
        )
        with self._lock:
            self._entries.setdefault(transactional_id, _Entry(created))
        return Error.NONE

    def _entry(self, transactional_id: str) -> tuple[_Entry | None, Error]:
        """The id, or the error without it. Call under the lock."""
        if not self._is_loaded:
            return None, Error.COORDINATOR_LOAD_IN_PROGRESS
        entry = self._entries.get(transactional_id)
        return entry, Error.NONE if entry is not None else Error.INVALID_PRODUCER_ID_MAPPING

    def _change(self, transactional_id: str, target: State, decide: Callable[[Transaction], Decision]) -> Decision:
        """Decide and perform one transition, presumably to `target`. Returns the final state, or the error.

        A prepared transaction is finished: if markers failed, its final state is PREPARE_*.
        """
        with self._lock:
            entry, wrong = self._entry(transactional_id)
            if entry is None:
                return wrong
            if entry.pending is not None or (target is not State.ONGOING and entry.appending):
                return Error.CONCURRENT_TRANSACTIONS
            entry.pending = target
        try:
            return self._perform(entry, decide)
        except LogError as error:
            _log.warning("cannot change a transaction: transactional_id=%s error=%s", transactional_id, error)
            return Error.COORDINATOR_NOT_AVAILABLE
        finally:
            with self._lock:
                entry.pending = None

    def _perform(self, entry: _Entry, decide: Callable[[Transaction], Decision]) -> Decision:
        decided = decide(entry.transaction)
        if isinstance(decided, Error):
            return decided
        if decided.state is State.PREPARE_EPOCH_FENCE:
            decided = rules.abort_fenced(decided, now_ms=self._clock_ms())
        added = len(decided.partitions) - len(entry.transaction.partitions)
        if added > 0 and self._partitions + added > PARTITIONS_MAX:
            raise Unavailable("open transactions have too many partitions", limit=PARTITIONS_MAX)
        self._store(decided, is_durable=True)
        self._become(entry, decided)
        if decided.state.is_prepared:
            self._finish(entry)
            return entry.transaction
        return decided

    def _become(self, entry: _Entry, transaction: Transaction) -> None:
        with self._lock:
            self._partitions += len(transaction.partitions) - len(entry.transaction.partitions)
            entry.transaction = transaction

    def _store(self, transaction: Transaction, *, is_durable: bool) -> None:
        name = transaction.transactional_id
        self._storage.append(name, encode_key(name), encode_value(transaction), is_durable=is_durable)

    def _finish(self, entry: _Entry) -> None:
        """Write the markers of a prepared transaction, then its end. Logs a failure: `tick` tries again."""
        prepared = entry.transaction
        try:
            marker = EndMarker(
                producer_id=prepared.producer_id,
                producer_epoch=prepared.producer_epoch,
                coordinator_epoch=self._storage.coordinator_epoch(prepared.transactional_id),
                is_commit=prepared.is_commit,
            )
            failure = self._write_markers(entry, marker)
            if failure is not None:
                raise failure
            completed = rules.complete(entry.transaction, now_ms=self._clock_ms())
            self._store(completed, is_durable=False)
        except LogError as error:
            facts = (prepared.transactional_id, prepared.state.label, error)
            _log.warning("cannot finish a transaction yet: transactional_id=%s state=%s error=%s", *facts)
            return
        self._become(entry, completed)

    def _write_markers(self, entry: _Entry, marker: EndMarker) -> LogError | None:
        """Write all markers, then make them durable; the entry has the remaining partitions. Returns a failure."""
        failure: LogError | None = None
        written: list[TopicPartition] = []
        for partition in sorted(entry.transaction.partitions):
            try:
                self._write_marker(partition, marker)
                written.append(partition)
            except LogError as error:
                failure = error  # one partition must not hold up the others
        for partition in written:
            try:
                with suppress(NotFound):  # it was deleted
                    self._storage.flush(partition)
            except LogError as error:
                failure = error
            else:
                self._on_marker(partition, marker)
                remaining = entry.transaction.partitions - {partition}
                self._become(entry, replace(entry.transaction, partitions=remaining))
        return failure

    def _write_marker(self, partition: TopicPartition, marker: EndMarker) -> None:
        try:
            self._storage.write_marker(partition, marker)
        except NotFound:
            _log.info("no marker is written, the partition was deleted: partition=%s", partition)
        except ProducerFenced as error:
            # A newer epoch has written: an operator ended the transaction.
            _log.warning("no marker is written: partition=%s error=%s", partition, error)

    # Background work

    def _ids(self, condition: Callable[[Transaction], bool]) -> list[str]:
        with self._lock:
            return [
                name for name, entry in self._entries.items() if entry.pending is None and condition(entry.transaction)
            ]

    def _finish_prepared(self) -> None:
        for name in self._ids(lambda each: each.state.is_prepared):
            with self._lock:
                entry = self._entries[name]
                if entry.pending is not None or not entry.transaction.state.is_prepared:
                    continue
                entry.pending = entry.transaction.state
            try:
                self._finish(entry)
            finally:
                with self._lock:
                    entry.pending = None

    def _abort_timed_out(self, name: str, now_ms: int) -> None:
        def decide(known: Transaction) -> Decision:
            return rules.fence(known) if known.has_timed_out(now_ms) else Error.NONE

        changed = self._change(name, State.PREPARE_EPOCH_FENCE, decide)
        if isinstance(changed, Transaction):
            facts = (name, changed.producer_id, changed.timeout_ms)
            _log.info("transaction aborted after its timeout: transactional_id=%s producer_id=%d timeout_ms=%d", *facts)

    def _expire(self, name: str, now_ms: int) -> None:
        """Remove an id: the tombstone, then the entry."""
        with self._lock:
            entry = self._entries[name]
            has_expired = entry.transaction.has_expired(now_ms, self.settings.id_expiration_ms)
            if entry.pending is not None or entry.appending or not has_expired:
                return
            entry.pending = State.DEAD
        try:
            self._storage.append(name, encode_key(name), None, is_durable=True)
        except LogError as error:
            _log.warning("cannot remove an expired transactional id: transactional_id=%s error=%s", name, error)
            with self._lock:
                entry.pending = None
            return
        with self._lock:
            del self._entries[name]


def _newest(records: Iterable[tuple[bytes, bytes | None]]) -> dict[str, Transaction]:
    """The newest value of each id. Raises Corrupt."""
    found: dict[str, Transaction] = {}
    for key, value in records:
        name = decode_key(key)
        if name is None:
            _log.warning("a record of a newer version is ignored: topic=__transaction_state")
        elif value is None:
            found.pop(name, None)
        else:
            found[name] = decode_value(name, value)
    return found


def _identity(transaction: Transaction) -> ProducerIdentity:
    """The producer to continue with: in a prepared transaction the one that it will have after the end."""
    if transaction.state.is_prepared:
        transaction = rules.complete(transaction, now_ms=transaction.updated_ms)
    return ProducerIdentity(
        error=Error.NONE, producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch
    )


def _for_append(error: Error, check: Check) -> Error:
    """The error that a producer expects. Source: kafka `AddPartitionsToTxnManager`."""
    if error is Error.PRODUCER_FENCED:
        return Error.INVALID_PRODUCER_EPOCH
    if error is Error.TRANSACTION_ABORTABLE and check is Check.VERIFY:
        return Error.INVALID_TXN_STATE
    return error
