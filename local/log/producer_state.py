"""The producers of a log: sequences, epochs, open transactions, in memory and in ``.snapshot`` files.

The state is a function of the batches below an offset, in order. It holds the last five batches of every producer, so
that a retry gets the offsets of its first append, and the first offset of every open transaction. `ProducerState.check`
applies these rules to a batch before the append, in this order:

| the batch | answer |
|---|---|
| the same epoch, first and last sequence as a remembered one | a duplicate: the remembered offsets |
| of an unknown producer | accepted, with any sequence |
| an epoch below the producer's | ProducerFenced |
| an epoch above it | accepted if its sequence is 0, else OutOfOrderSequence |
| a sequence that does not follow the last one (0 follows 2^31-1) | OutOfOrderSequence |
| no sequence, as in the batches of a coordinator | accepted |
| not transactional while the producer's transaction is open | InvalidRequest |

**The ``.snapshot`` file** holds the state just before the offset in its name, with only the last batch of each
producer.

| off | size | field | note |
|---|---|---|---|
| 0 | 2 | int16 version | 1 |
| 2 | 4 | uint32 crc | CRC-32C of byte 6 to the end |
| 6 | 4 | int32 entry count | |
| 10 | 46 each | entries | |

An entry, 46 bytes: producerId int64, producerEpoch int16, lastSequence int32 (-1 none), lastOffset int64 (-1 none),
offsetDelta int32 (of the last batch: its last minus its first offset), timestamp int64, coordinatorEpoch int32,
currentTxnFirstOffset int64 (-1 none). Big-endian. Source: kafka `ProducerSnapshot.json`, `ProducerStateManager`,
`ProducerAppendInfo`, `ProducerStateEntry`, `UnifiedLog.rebuildProducerState`.

The batches are authoritative; a snapshot saves reading them. A missing or damaged one is computed from an older one and
the batches, so a roll writes it without fsync. Before retention deletes batches, the snapshot after them is made
durable: it is then the only source. A truncation deletes the snapshots above the new end, durably, before the next
append. Start-up keeps the snapshots at segment bases, and the largest one if it is above the last base.
"""

from __future__ import annotations

import bisect
import logging
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from local.errors import Corrupt, ErrorCode, InvalidRequest, LogError, NotFound, OutOfOrderSequence, ProducerFenced
from local.format.batch_header import BatchHeader, may_have_producers
from local.format.crc32c import crc32c
from local.index.index_files import slices_of
from local.index.txn_index import AbortedTransaction
from local.names import LOG, PRODUCER_SNAPSHOT, parse_segment_file, segment_file
from local.records.batch import Marker, read_marker
from local.storage import Storage, join, sync_file

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from local.format.columns import BatchTable

SEQUENCE_MAX = 2**31 - 1
RETAINED_BATCHES = 5  # kafka ProducerStateEntry.NUM_BATCHES_TO_RETAIN: a client's maximum in flight
EXPIRATION_INTERVAL_MS = 600_000  # producer.id.expiration.check.interval.ms
NONE = -1
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_START = 6
INSPECTED_BYTES = 1 << 20  # bytes of a segment to inspect before a full scan
_log = logging.getLogger(__name__)


class ProducerEntry(NamedTuple):
    """One producer: its fields in the order of the file. -1 stands for none. `last_offset` is inclusive."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """The producer of an idempotent append, its first sequence. Raises InvalidRequest if a number does not fit."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool = False

    def __post_init__(self) -> None:
        fields = ((self.producer_id, 2**63 - 1), (self.producer_epoch, 2**15 - 1), (self.base_sequence, SEQUENCE_MAX))
        if not all(0 <= number <= highest for number, highest in fields):
            raise InvalidRequest("invalid producer, a number is negative or too large for its field", producer=self)


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
    epoch: int
    coordinator_epoch: int = NONE
    timestamp_ms: int = NONE
    transaction_first_offset: int | None = None
    batches: deque[RememberedBatch] = field(default_factory=lambda: deque(maxlen=RETAINED_BATCHES))


class ProducerState:
    """The producers of a log. One writer at a time; any thread may read `first_unstable_offset`."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.first_unstable_offset: int | None = None
        self._known: dict[int, _Known] = {}
        self._open: dict[int, int] = {}  # first offset to producer id, ascending: transactions begin in offset order
        for entry in entries:
            self._known[entry.producer_id] = _from_entry(entry)
        began = ((known.transaction_first_offset, producer) for producer, known in self._known.items())
        self._open.update(sorted((first, producer) for first, producer in began if first is not None))
        self._find_first_unstable()

    def __len__(self) -> int:
        return len(self._known)

    def entries(self) -> list[ProducerEntry]:
        """Return the entries for a snapshot, by producer id."""
        return [_to_entry(producer, known) for producer, known in sorted(self._known.items())]

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """Return the batch that `header` repeats, or None. Changes nothing. Raises as the module's table says."""
        known = self._known.get(header.producer_id)
        if known is None:
            return None
        repeated = _repeated(known, header)
        if repeated is not None:
            return repeated
        _check_epoch(known, header.producer_id, header.producer_epoch)
        if header.base_sequence >= 0:
            _check_sequence(known, header)
        if known.transaction_first_offset is not None and not header.is_transactional:
            raise InvalidRequest(
                "cannot append outside of a transaction, the producer has an open transaction",
                producer_id=header.producer_id,
                transaction_first_offset=known.transaction_first_offset,
            ).with_code(ErrorCode.TRANSACTION_OPEN)
        return None

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, first_offset: int | None = None
    ) -> None:
        """Raise ProducerFenced for an old epoch, NotFound if no transaction began at `first_offset`."""
        known = self._known.get(producer_id)
        if first_offset is not None and (known is None or known.transaction_first_offset != first_offset):
            facts = {"producer_id": producer_id, "first_offset": first_offset}
            raise NotFound("cannot end the transaction, it has already ended", **facts)
        if known is None:
            return
        _check_epoch(known, producer_id, producer_epoch)
        if coordinator_epoch < known.coordinator_epoch:
            raise ProducerFenced(
                "cannot end the transaction, a newer coordinator has written",
                producer_id=producer_id,
                coordinator_epoch=coordinator_epoch,
                newest_coordinator_epoch=known.coordinator_epoch,
            )

    def update(self, header: BatchHeader, base_offset: int, marker: Marker | None = None) -> AbortedTransaction | None:
        """Add a batch of the log; return the transaction that it aborts, if any. `marker`: that of a control batch."""
        if header.is_control:
            return None if marker is None else self._end_transaction(header, base_offset, marker)
        known = self._in_epoch(header)
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
        """Do `update` for the batches of `table` from `from_offset` on; return what they abort. Raises Corrupt."""
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
        """Remove producers without open transaction `expiration_ms` after their last batch; return their number."""
        old = [
            producer
            for producer, known in self._known.items()
            if known.transaction_first_offset is None and now_ms - known.timestamp_ms >= expiration_ms
        ]
        for producer in old:
            del self._known[producer]
        return len(old)

    def _in_epoch(self, header: BatchHeader) -> _Known:
        """The producer of `header` in its epoch; another epoch has no remembered batches."""
        known = self._known.get(header.producer_id)
        if known is None:
            known = self._known[header.producer_id] = _Known(header.producer_epoch)
        if header.producer_epoch != known.epoch:
            known.batches.clear()
            known.epoch = header.producer_epoch
        return known

    def _end_transaction(self, header: BatchHeader, offset: int, marker: Marker) -> AbortedTransaction | None:
        known = self._in_epoch(header)
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
        return AbortedTransaction(header.producer_id, first_offset, offset, stable)

    def _find_first_unstable(self) -> None:
        self.first_unstable_offset = next(iter(self._open), None)


def sequence_after(sequence: int, steps: int) -> int:
    """Return the sequence `steps` records later; 0 follows 2^31-1."""
    return (sequence + steps) % (SEQUENCE_MAX + 1)


def sequence_before(sequence: int, steps: int) -> int:
    """Return the sequence `steps` records earlier."""
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
        facts = {"producer_id": producer_id, "producer_epoch": epoch, "newest": known.epoch}
        raise ProducerFenced("cannot append, the producer epoch is too old", **facts)


def _check_sequence(known: _Known, header: BatchHeader) -> None:
    """Check that the sequence follows; without a remembered batch (only a marker of this epoch) it is 0."""
    is_same = header.producer_epoch == known.epoch
    expected = sequence_after(known.batches[-1].last_sequence, 1) if is_same and known.batches else 0
    if header.base_sequence != expected:
        raise OutOfOrderSequence(
            "cannot append a batch, its sequence does not follow the last sequence of the producer",
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            expected=expected,
        )


def _from_entry(entry: ProducerEntry) -> _Known:
    first = entry.transaction_first_offset
    known = _Known(entry.producer_epoch, entry.coordinator_epoch, entry.timestamp_ms, first if first >= 0 else None)
    if entry.last_offset >= 0:
        known.batches.append(RememberedBatch(*entry[2:6]))
    return known


def _to_entry(producer_id: int, known: _Known) -> ProducerEntry:
    last = known.batches[-1] if known.batches else RememberedBatch(NONE, NONE, 0, NONE)
    first = NONE if known.transaction_first_offset is None else known.transaction_first_offset
    return ProducerEntry(producer_id, known.epoch, *last[:3], known.timestamp_ms, known.coordinator_epoch, first)


def encode_snapshot(producers: Sequence[ProducerEntry]) -> bytes:
    rows = b"".join(_SNAPSHOT_ENTRY.pack(*each) for each in producers)
    body = struct.pack(">i", len(producers)) + rows
    return struct.pack(">hI", _SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: Buffer, *, path: str = "") -> list[ProducerEntry]:
    """Decode a snapshot. Raises Corrupt for another version, a wrong checksum or a wrong size."""
    view = memoryview(data).cast("B")
    if len(view) < _SNAPSHOT_HEAD.size:
        raise Corrupt("cannot read a producer snapshot, it is shorter than its header", path=path, size_bytes=len(view))
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(view)
    if version != _SNAPSHOT_VERSION:
        raise Corrupt("cannot read a producer snapshot, its version is unknown", path=path, version=version)
    found = crc32c(view[_CRC_START:])
    if found != crc:
        raise Corrupt(
            "cannot read a producer snapshot, its CRC differs", path=path, expected=f"{crc:08x}", found=f"{found:08x}"
        )
    if count < 0 or len(view) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        facts = {"path": path, "size_bytes": len(view), "count": count}
        raise Corrupt("cannot read a producer snapshot, its size does not match its entry count", **facts)
    return [ProducerEntry._make(fields) for fields in _SNAPSHOT_ENTRY.iter_unpack(view[_SNAPSHOT_HEAD.size :])]


class ProducerFiles:
    """The snapshots in a partition directory; guarded by the log's lock. `is_onlooker`: files are only read."""

    def __init__(self, storage: Storage, directory: str, *, is_onlooker: bool = False) -> None:
        self._storage = storage
        self._directory = directory
        self._is_onlooker = is_onlooker
        self._known: list[int] | None = None  # ascending; None: not listed yet

    def path(self, offset: int) -> str:
        return join(self._directory, segment_file(offset, PRODUCER_SNAPSHOT))

    def offsets(self) -> list[int]:
        """Return the offsets that have a snapshot, ascending."""
        if self._known is None:
            try:
                self.know(self._storage.list(self._directory))
            except NotFound:
                if not self._is_onlooker:
                    raise
                self._known = []  # not created yet, or the partition was moved
        return list(self._known or ())

    def know(self, names: Iterable[str]) -> bool:
        """Use this listing of the directory; return whether it contains a snapshot."""
        parsed = [parse_segment_file(name) for name in names if name.endswith(PRODUCER_SNAPSHOT)]
        self._known = sorted(found[0] for found in parsed if found is not None and found[1] == PRODUCER_SNAPSHOT)
        return bool(self._known)

    def write(self, offset: int, producers: ProducerState, *, is_durable: bool = False) -> None:
        """Write the state before `offset`. Unless `is_durable`, a crash may leave it missing or torn."""
        if self.offsets()[-1:] == [offset]:
            if is_durable:
                self._make_durable(offset)
            return
        file = self._storage.create(self.path(offset))
        try:
            file.append(encode_snapshot(producers.entries()))
            if is_durable:
                file.sync()
        except LogError:
            with suppress(LogError):
                self._storage.unlink(self.path(offset))  # a part of a snapshot is useless
                self._forget(offset)
            raise
        finally:
            file.close()
        if is_durable:
            self._storage.sync_directory(self._directory)
        known = self._known = self.offsets()
        if offset not in known:
            bisect.insort(known, offset)

    def write_snapshot(self, offset: int, bases: Sequence[int]) -> None:
        """Make a sound snapshot of `offset` durable before the batches below it are deleted. Damage is only logged."""
        try:
            producers = self.state_at(offset, bases)
        except Corrupt as error:
            _log.warning(
                "cannot write a producer snapshot before segments are dropped: offset=%d cause=%s", offset, error
            )
            return
        if not len(producers):
            return
        if offset not in self.offsets():
            self.write(offset, producers, is_durable=True)
            return
        self._make_durable(offset)

    def state_at(self, offset: int, bases: Sequence[int], *, may_vanish: bool = False) -> ProducerState:
        """Return the producers before `offset`, from the newest sound snapshot and the batches after it.

        `bases` are the segments', ascending. A damaged snapshot is deleted. Raises Corrupt, and NotFound for a missing
        segment, unless it `may_vanish` (another process drops segments).
        """
        known_to, producers = self._newest(offset)
        for base, end in pairwise((*bases, offset)):
            if base < offset and end > known_to:
                try:
                    self._replay(base, producers, max(base, known_to), offset)
                except NotFound:
                    if not may_vanish:
                        raise
        return producers

    def at(self, offset: int) -> ProducerState:
        """Return the producers in the snapshot at exactly this offset; none if it is missing or damaged."""
        known_to, producers = self._newest(offset) if offset in self.offsets() else (-1, ProducerState())
        return producers if known_to == offset else ProducerState()

    def keep(self, bases: Iterable[int], next_offset: int) -> None:
        """Delete snapshots above `next_offset` or at no base; the newest stays if it is between last base and end."""
        known = set(bases)
        strays = [offset for offset in self.offsets() if offset not in known and offset <= next_offset]
        newest = strays[-1] if strays and strays[-1] > max(known, default=-1) else None
        self._remove([o for o in self.offsets() if o > next_offset or (o not in known and o != newest)])

    def remove_above(self, offset: int) -> None:
        """Delete snapshots above `offset`, durably. The next append at `offset` must come later."""
        self._remove([each for each in self.offsets() if each > offset])

    def take_out(self, offset: int) -> str | None:
        """Remove the snapshot at `offset` from memory. Return its path for deletion, None without one."""
        if offset not in self.offsets():
            return None
        self._forget(offset)
        return self.path(offset)

    def _make_durable(self, offset: int) -> None:
        sync_file(self._storage, self.path(offset))
        self._storage.sync_directory(self._directory)

    def _newest(self, offset: int) -> tuple[int, ProducerState]:
        for at in reversed([each for each in self.offsets() if each <= offset]):
            path = self.path(at)
            try:
                return at, ProducerState(decode_snapshot(self._storage.read(path), path=path))
            except NotFound:
                continue
            except Corrupt as error:
                _log.warning("a producer snapshot is damaged, an older snapshot is used: path=%s cause=%s", path, error)
                if not self._is_onlooker:
                    self._storage.unlink(path)
                    self._forget(at)
        return 0, ProducerState()

    def _replay(self, base: int, producers: ProducerState, from_offset: int, upto_offset: int) -> None:
        path = join(self._directory, segment_file(base, LOG))
        if self._is_onlooker:
            begin = self._storage.read(path, 0, INSPECTED_BYTES)
            if len(begin) < INSPECTED_BYTES and not may_have_producers(begin):
                return  # no producers, as in most logs; the modules for a replay load slowly
        from local.log.recovery import replay

        for _, data, table in slices_of(lambda position, length: self._storage.read(path, position, length)):
            rows = int((table.last_offsets < upto_offset).sum())
            replay(producers, data, table.select(slice(0, rows)), path, from_offset)

    def _forget(self, offset: int) -> None:
        self._known = [each for each in self.offsets() if each != offset]

    def _remove(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self._storage.unlink(self.path(offset))
            self._forget(offset)
        if offsets:
            self._storage.sync_directory(self._directory)
