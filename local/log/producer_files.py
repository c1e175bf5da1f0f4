"""The producers of a log on disk: ``.snapshot`` files, and the batches after them.

The batches are authoritative. A snapshot at an offset holds the state of all batches below it and saves reading them. A
missing or damaged one is computed from an older one and the batches, so a roll writes it without fsync. Before
retention deletes batches, the snapshot after them is made durable: it is then the only source. A truncation deletes the
snapshots above the new end, durably, before the next append. Start-up keeps the snapshots at segment bases, and the
largest one if it is above the last base. Source: kafka `ProducerStateManager`, `UnifiedLog.rebuildProducerState`.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise

from local.errors import Corrupt, LogError, NotFound
from local.format.batch_header import may_have_producers
from local.index.index_files import slices_of
from local.log.producer_state import ProducerState, decode_snapshot, encode_snapshot
from local.names import LOG, PRODUCER_SNAPSHOT, parse_segment_file, segment_file
from local.storage import Storage, join, sync_file

INSPECTED_BYTES = 1 << 20  # bytes of a segment to inspect before a full scan
_log = logging.getLogger(__name__)


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
