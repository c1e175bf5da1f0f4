"""The producers of a log on its disk: ``.snapshot`` files, and the batches behind them.

A snapshot is a shortcut and never the truth: the state at an offset is what the batches below it say, and a snapshot at
an offset says the same for less reading. So it is written without fsync at a roll, it is thrown away when it is damaged
(the next older one and more batches lead to the same state), and what it misses is read from the log. Before retention
takes batches away the snapshot behind them is made durable (`settle`): nothing else tells of them then. The one thing
that must never be is a snapshot of another history: whoever takes records away at the end of a log removes the
snapshots above the new end, durably, before anything is appended there.

Which are kept at a start-up: those at segment bases, and the largest one when it lies above the last base (it is the
one of a clean shutdown). Source: kafka `ProducerStateManager`, `UnifiedLog.rebuildProducerState`.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise

from local.errors import Corrupt, LogError, NotFound
from local.format.batch_checks import may_have_producers
from local.index.index_files import slices_of
from local.log import producer_snapshot
from local.log.producer_state import ProducerState
from local.names import LOG, PRODUCER_SNAPSHOT, parse_segment_file, segment_file
from local.storage import Storage, join

LOOKED_AT_BYTES = 1 << 20  # of a segment, before it is scanned whole
_log = logging.getLogger(__name__)


class ProducerFiles:
    """The snapshots in one partition directory. Callers hold the log's lock, unless it `is_onlooker`: that one only
    reads, lists the directory once, and leaves damaged files to their owner."""

    def __init__(self, storage: Storage, directory: str, *, is_onlooker: bool = False) -> None:
        self._storage = storage
        self._directory = directory
        self._is_onlooker = is_onlooker
        self._known: list[int] | None = None  # ascending; None: the disk was not asked yet

    def path(self, offset: int) -> str:
        return join(self._directory, segment_file(offset, PRODUCER_SNAPSHOT))

    def offsets(self) -> list[int]:
        """Of which offsets there is a snapshot, ascending."""
        if self._known is None:
            try:
                self.know(self._storage.list(self._directory))
            except NotFound:
                if not self._is_onlooker:
                    raise
                self._known = []  # nothing was begun there yet, or the partition has moved away
        return list(self._known or ())

    def know(self, names: Iterable[str]) -> bool:
        """Take the listing that the caller made anyway; whether there is any snapshot."""
        parsed = [parse_segment_file(name) for name in names if name.endswith(PRODUCER_SNAPSHOT)]
        self._known = sorted(found[0] for found in parsed if found is not None and found[1] == PRODUCER_SNAPSHOT)
        return bool(self._known)

    def write(self, offset: int, producers: ProducerState, *, is_durable: bool = False) -> None:
        """The state before `offset`; when the newest snapshot is this one already, it is only made durable if asked.

        Unless `is_durable`, a crash may leave it missing or torn: then it is made again from the log.
        """
        if self.offsets()[-1:] == [offset]:
            if is_durable:
                self._make_durable(offset)
            return
        file = self._storage.create(self.path(offset))
        try:
            file.append(producer_snapshot.encode(producers.entries()))
            if is_durable:
                file.sync()
        except LogError:
            with suppress(LogError):
                self._storage.unlink(self.path(offset))  # a part of one tells nothing
                self._forget(offset)
            raise
        finally:
            file.close()
        if is_durable:
            self._storage.sync_directory(self._directory)
        known = self._known = self.offsets()
        if offset not in known:
            bisect.insort(known, offset)

    def write_missing(self, offset: int, producers: ProducerState) -> None:
        """As `write`, unless there is one of `offset`, newest or not."""
        if offset not in self.offsets():
            self.write(offset, producers)

    def settle(self, offset: int, bases: Sequence[int]) -> None:
        """A sound snapshot of `offset`, durable on return: asked for before the batches below it go for good.

        From then on it is no shortcut: nothing else tells of their producers. Where damage in the log leaves nothing to
        make one from, it is said and the batches go all the same.
        """
        try:
            producers = self.state_at(offset, bases)
        except Corrupt as error:
            _log.warning("no producer snapshot before dropping segments: offset=%d cause=%s", offset, error)
            return
        if not len(producers):
            return
        if offset not in self.offsets():
            self.write(offset, producers, is_durable=True)
            return
        self._make_durable(offset)

    def state_at(self, offset: int, bases: Sequence[int], *, may_vanish: bool = False) -> ProducerState:
        """The producers as they are before `offset`: the newest sound snapshot, and the batches from there on.

        `bases` are the segments', ascending. A damaged snapshot is removed. Raises Corrupt, and NotFound for a segment
        that is gone; with `may_vanish` (another process drops them) that is passed over.
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
        """What the snapshot of just this offset says; nothing where there is none, or a damaged one, which goes."""
        known_to, producers = self._newest(offset) if offset in self.offsets() else (-1, ProducerState())
        return producers if known_to == offset else ProducerState()

    def encoded(self, offset: int, bases: Sequence[int]) -> bytes:
        """A snapshot file's bytes for `offset`: those on the disk where they are sound, else made from the log."""
        return producer_snapshot.encode(self.state_at(offset, bases).entries())

    def keep(self, bases: Iterable[int], next_offset: int) -> None:
        """Remove those that no segment begins at, but the newest above all bases; and all above `next_offset`."""
        known = set(bases)
        strays = [offset for offset in self.offsets() if offset not in known and offset <= next_offset]
        newest = strays[-1] if strays and strays[-1] > max(known, default=-1) else None
        self._remove([o for o in self.offsets() if o > next_offset or (o not in known and o != newest)])

    def remove_above(self, offset: int) -> None:
        """Durably, before anything else is appended at `offset`."""
        self._remove([each for each in self.offsets() if each > offset])

    def remove_all(self) -> None:
        self._remove(self.offsets())

    def let_go(self, offset: int) -> str | None:
        """Know nothing of the snapshot at `offset` any more; its path, for the caller to remove, None without one."""
        if offset not in self.offsets():
            return None
        self._forget(offset)
        return self.path(offset)

    def _make_durable(self, offset: int) -> None:
        """The snapshot there, which a roll left to the page cache."""
        file = self._storage.open(self.path(offset))
        try:
            file.sync()
        finally:
            file.close()
        self._storage.sync_directory(self._directory)

    def _newest(self, offset: int) -> tuple[int, ProducerState]:
        for at in reversed([each for each in self.offsets() if each <= offset]):
            path = self.path(at)
            try:
                return at, ProducerState(producer_snapshot.decode(self._storage.read(path), path=path))
            except NotFound:
                continue
            except Corrupt as error:
                _log.warning("a producer snapshot is damaged, an older one is used: path=%s cause=%s", path, error)
                if not self._is_onlooker:
                    self._storage.unlink(path)
                    self._forget(at)
        return 0, ProducerState()

    def _replay(self, base: int, producers: ProducerState, from_offset: int, upto_offset: int) -> None:
        path = join(self._directory, segment_file(base, LOG))
        if self._is_onlooker:
            begin = self._storage.read(path, 0, LOOKED_AT_BYTES)
            if len(begin) < LOOKED_AT_BYTES and not may_have_producers(begin):
                return  # as of most logs, and what replays them is heavy to load
        from local import kernels
        from local.log.recovery import replay

        if self._is_onlooker:
            # The owner may truncate the file at any moment, which a map would not survive.
            for _, part, headers in slices_of(lambda position, length: self._storage.read(path, position, length)):
                rows = int((headers.last_offsets < upto_offset).sum())
                replay(producers, part, headers.select(slice(0, rows)), path, from_offset)
            return
        data = self._storage.map(path)
        try:
            table = kernels.scan_batches(data, verify=False)
            rows = int((table.last_offsets < upto_offset).sum())
            replay(producers, data, table.select(slice(0, rows)), path, from_offset)
        finally:
            data.release()

    def _forget(self, offset: int) -> None:
        self._known = [each for each in self.offsets() if each != offset]

    def _remove(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self._storage.unlink(self.path(offset))
            self._forget(offset)
        if offsets:
            self._storage.sync_directory(self._directory)
