"""One transactional id: its state, and the transition that each call causes. Pure: no log, no clock, no lock.

A decision returns the next `Transaction`, to be made durable before it becomes the current one, or the `Error` of the
response. `Error.NONE` means that the call repeats an earlier one and changes nothing.

                   AddPartitions         EndTxn, timeout          markers in all partitions
    EMPTY ----------> ONGOING --+--> PREPARE_COMMIT ------> COMPLETE_COMMIT --+
      ^                 ^       +--> PREPARE_ABORT -------> COMPLETE_ABORT ---+
      |                 +-----------------------------------------------------+
      +---------------------------- InitProducerId ---------------------------+

`PREDECESSORS` has all transitions. PREPARE_EPOCH_FENCE and DEAD exist in memory only. The first one raises the epoch
before the server itself aborts, the second one precedes the removal of an expired transactional id.

**Transaction versions** (KIP-890). The version belongs to the client, as its EndTxn request shows:

| | version 0 (EndTxn up to 4) | version 2 (EndTxn 5) |
|---|---|---|
| partitions are added by | AddPartitionsToTxn, AddOffsetsToTxn | Produce 12, TxnOffsetCommit 5, or these |
| epoch of the markers | the producer's | the producer's + 1, which the producer uses from then on |
| abort without a partition | INVALID_TXN_STATE | aborts, which raises the epoch |
| a repeated EndTxn | the state alone shows it | the epoch shows it |

**Epochs.** A producer never has the epoch 32767, so that the server can always fence it. Version 2: the end of a
transaction at epoch 32766 writes markers with 32767, and the producer continues with a new producer id and epoch 0. The
new id is in the record of PREPARE_*, so that a crash does not lose it.

Source: kafka `TransactionCoordinator`, `TransactionMetadata`, `TransactionState`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType

from local.names import TopicPartition
from tiered.serve.messages.base import Error

NONE = -1  # no producer id, epoch or time
EPOCH_MAX = 2**15 - 1
LAST_CLIENT_EPOCH = EPOCH_MAX - 1
VERSION_0, VERSION_2 = 0, 2  # of kafka's feature "transaction.version"


class State(IntEnum):
    """The state of a transactional id; the values are those of the records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's name of the state, such as ``PrepareCommit``."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided, and markers may be missing."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """No transaction is open. Only such an id expires."""
        return self in IDLE


IDLE = frozenset((State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT))
PREDECESSORS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.EMPTY: IDLE,
        State.ONGOING: IDLE | {State.ONGOING},
        State.PREPARE_COMMIT: frozenset((State.ONGOING,)),
        State.PREPARE_ABORT: IDLE | {State.ONGOING, State.PREPARE_EPOCH_FENCE},
        State.COMPLETE_COMMIT: frozenset((State.PREPARE_COMMIT,)),
        State.COMPLETE_ABORT: frozenset((State.PREPARE_ABORT,)),
        State.DEAD: IDLE,
        State.PREPARE_EPOCH_FENCE: frozenset((State.ONGOING,)),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id with its latest transaction. -1 stands for none.

    `previous_producer_id` is that before the last transition. `next_producer_id` is the producer's after the end of the
    prepared transaction, if its epochs are exhausted. `last_producer_epoch` is not stored. `start_ms` is the time of
    the first partition. `client_version` is the transaction version of the last transition.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int = NONE
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NONE
    updated_ms: int = NONE
    previous_producer_id: int = NONE
    next_producer_id: int = NONE
    last_producer_epoch: int = NONE
    client_version: int = VERSION_0

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no further epoch for a client."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def is_commit(self) -> bool:
        return self.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    def to(self, state: State, **changes: object) -> Transaction:
        """The transaction after the transition to `state`. The transition must be in `PREDECESSORS`."""
        assert self.state in PREDECESSORS[state], f"no transition from {self.state.label} to {state.label}"
        changed = replace(self, state=state, previous_producer_id=self.producer_id, **changes)  # type: ignore[arg-type]
        assert changed.producer_epoch >= 0 or state is State.DEAD, "only a new id has no epoch"
        return changed

    def has_timed_out(self, now_ms: int) -> bool:
        return self.state is State.ONGOING and self.start_ms + self.timeout_ms < now_ms

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        return self.state.is_idle and self.updated_ms <= now_ms - expiration_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOf:
    """The producer that a call names: `producer_id` and `producer_epoch` of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


Decision = Transaction | Error


def initialise(
    known: Transaction,
    *,
    timeout_ms: int,
    expected: tuple[int, int] | None,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Decision:
    """InitProducerId. `expected` is the producer id and epoch of a producer that continues (KIP-360).

    An ongoing transaction leads to PREPARE_EPOCH_FENCE: abort it by `abort_fenced`, and let the client repeat the call.
    """
    if expected is not None and not _may_continue(known, *expected):
        return Error.PRODUCER_FENCED
    if known.state.is_prepared:
        return Error.CONCURRENT_TRANSACTIONS
    if known.state is State.ONGOING:
        return fence(known)
    fresh = {"timeout_ms": timeout_ms, "partitions": frozenset(), "start_ms": NONE, "updated_ms": now_ms}
    fresh |= {"next_producer_id": NONE}
    epoch = known.producer_epoch
    if known.is_exhausted and (expected is None or expected[1] == epoch):
        last = epoch if expected is not None else NONE
        rotated = new_producer_id()
        return known.to(State.EMPTY, producer_id=rotated, producer_epoch=0, last_producer_epoch=last, **fresh)
    if expected is None:
        return known.to(State.EMPTY, producer_epoch=epoch + 1, last_producer_epoch=NONE, **fresh)
    if epoch in (NONE, expected[1]):
        return known.to(State.EMPTY, producer_epoch=epoch + 1, last_producer_epoch=epoch, **fresh)
    if expected[1] == known.last_producer_epoch:  # repeats a call whose response was lost
        return known.to(State.EMPTY, **fresh)
    return Error.PRODUCER_FENCED


def _may_continue(known: Transaction, producer_id: int, producer_epoch: int) -> bool:
    return (
        known.producer_epoch == NONE
        or producer_id == known.producer_id
        or (producer_id == known.previous_producer_id and producer_epoch >= LAST_CLIENT_EPOCH)
    )


def add_partitions(
    known: Transaction,
    producer: ProducerOf,
    partitions: Collection[TopicPartition],
    *,
    now_ms: int,
    client_version: int,
) -> Decision:
    """AddPartitionsToTxn, AddOffsetsToTxn, and the first Produce to a partition in version 2."""
    wrong = _wrong_producer(known, producer)
    if wrong is not Error.NONE:
        return wrong
    if known.state.is_prepared:
        return Error.CONCURRENT_TRANSACTIONS
    if known.state is State.ONGOING and known.partitions.issuperset(partitions):
        return Error.NONE
    return known.to(
        State.ONGOING,
        partitions=known.partitions.union(partitions),
        start_ms=now_ms if known.state.is_idle else known.start_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def verify_partitions(
    known: Transaction, producer: ProducerOf, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Error]:
    """Whether each partition is in the producer's transaction; TRANSACTION_ABORTABLE if it is not."""
    wrong = _wrong_producer(known, producer)
    if wrong is Error.NONE and known.state.is_prepared:
        wrong = Error.CONCURRENT_TRANSACTIONS
    if wrong is not Error.NONE:
        return dict.fromkeys(partitions, wrong)
    return {each: Error.NONE if each in known.partitions else Error.TRANSACTION_ABORTABLE for each in partitions}


def _wrong_producer(known: Transaction, producer: ProducerOf) -> Error:
    if known.producer_id != producer.producer_id:
        return Error.INVALID_PRODUCER_ID_MAPPING
    return Error.NONE if known.producer_epoch == producer.producer_epoch else Error.PRODUCER_FENCED


def end(
    known: Transaction,
    producer: ProducerOf,
    *,
    commit: bool,
    client_version: int,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Decision:
    """EndTxn of a client."""
    if client_version < VERSION_2:
        wrong = _wrong_producer(known, producer)
        return wrong if wrong is not Error.NONE else _end_in_version_0(known, commit=commit, now_ms=now_ms)
    is_after_overflow = (
        known.previous_producer_id == producer.producer_id
        and producer.producer_epoch == LAST_CLIENT_EPOCH
        and known.producer_epoch == 0
    )
    if known.producer_id != producer.producer_id and not is_after_overflow:
        return Error.INVALID_PRODUCER_ID_MAPPING
    is_repeated = is_after_overflow or known.producer_epoch == producer.producer_epoch + 1
    is_current = known.producer_epoch == producer.producer_epoch
    if known.state.is_prepared:
        if known.producer_epoch != producer.producer_epoch + 1:
            return Error.PRODUCER_FENCED
        return Error.CONCURRENT_TRANSACTIONS if commit is known.is_commit else Error.INVALID_TXN_STATE
    is_complete = known.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    if not is_current and not (is_complete and is_repeated):
        return Error.PRODUCER_FENCED
    if known.state is State.ONGOING:
        target = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        return _prepared(known, target, client_version, now_ms, new_producer_id)
    if is_complete and is_repeated:
        return Error.NONE if commit is known.is_commit else Error.INVALID_TXN_STATE
    if commit:
        return Error.INVALID_TXN_STATE
    # The client does not know whether a partition was added. The abort raises the epoch, so none is added later.
    return _prepared(known, State.PREPARE_ABORT, client_version, now_ms, new_producer_id)


def _end_in_version_0(known: Transaction, *, commit: bool, now_ms: int) -> Decision:
    if known.state is State.ONGOING:
        target = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        return known.to(target, updated_ms=now_ms, client_version=VERSION_0)
    if known.state is State.EMPTY or commit is not known.is_commit:
        return Error.INVALID_TXN_STATE
    return Error.CONCURRENT_TRANSACTIONS if known.state.is_prepared else Error.NONE


def _prepared(
    known: Transaction, target: State, client_version: int, now_ms: int, new_producer_id: Callable[[], int]
) -> Transaction:
    """The end in version 2, which raises the epoch."""
    return known.to(
        target,
        producer_epoch=known.producer_epoch + 1,
        last_producer_epoch=known.producer_epoch,
        next_producer_id=new_producer_id() if known.is_exhausted else NONE,
        start_ms=now_ms if known.state.is_idle else known.start_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def fence(known: Transaction) -> Transaction:
    """The first step of an abort by the server: an epoch that no client has."""
    epoch = known.producer_epoch
    return known.to(State.PREPARE_EPOCH_FENCE, producer_epoch=min(epoch + 1, EPOCH_MAX), last_producer_epoch=epoch)


def abort_fenced(fenced: Transaction, *, now_ms: int) -> Transaction:
    """The second step: the abort with that epoch. The producer may continue with it by InitProducerId (KIP-360)."""
    return fenced.to(State.PREPARE_ABORT, updated_ms=now_ms, client_version=VERSION_2)


def complete(known: Transaction, *, now_ms: int) -> Transaction:
    """After the markers: the producer continues with its next producer id, if it has one."""
    target = State.COMPLETE_COMMIT if known.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
    rotates = known.client_version >= VERSION_2 and known.next_producer_id != NONE
    return known.to(
        target,
        producer_id=known.next_producer_id if rotates else known.producer_id,
        producer_epoch=0 if rotates else known.producer_epoch,
        next_producer_id=NONE,
        partitions=frozenset(),
        updated_ms=now_ms,
    )
