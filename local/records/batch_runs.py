"""All batches of a ``.log``, damaged or not, a run at a time: what looking at a file needs and reading a log does not.

A reader of a log stops at the first wrong byte. Whoever looks at a file wants to see what lies behind it too: a batch
whose checksum or offsets are wrong, but whose length makes sense, is given by itself and named, and the walk goes on
behind it. It ends where no length can be believed any more, or where the bytes do.

Memory: one chunk (CHUNK_BYTES, or the largest batch where that is larger) whatever the file's size. The bytes come
from any ranged read: a file, an object, a part of either. A file that grows meanwhile is seen as long as it was told
to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from local import kernels
from local.errors import Corrupt
from local.format.batch_header import MAGIC, MAGIC_END, read_header
from local.format.columns import TABLE_DTYPES, TORN, BatchTable

CHUNK_BYTES = 8 << 20

# Bytes ``[start, start + length)``, fewer only where the source ends.
RangedRead = Callable[[int, int], bytes | bytearray | memoryview]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Neighbouring batches. `position` is where `data` lies in the file; `table` counts from the start of `data`.

    `damage` is None for sound batches; else there is one batch, and this is what is wrong with it.
    """

    position: int
    data: memoryview
    table: BatchTable
    damage: str | None = None

    @property
    def is_readable(self) -> bool:
        """Its records may be decoded: the bytes are those that were written, wherever they were put."""
        return self.damage is None or self.damage == DISORDER


DISORDER = "offset goes back"


class BatchRuns:
    """Iterate once; afterwards `position` is where the walk ended, `problem` why, as in a `BatchTable`."""

    def __init__(self, read: RangedRead, size_bytes: int, *, start: int = 0, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`start` is the position of a batch. Raises nothing; what is wrong is in the runs and in `problem`."""
        self._read = read
        self.size_bytes = size_bytes
        self._chunk_bytes = chunk_bytes
        self._last_offset = -1
        self.position = start
        self.problem: str | None = None

    @property
    def is_torn(self) -> bool:
        return self.problem == TORN

    def __iter__(self) -> Iterator[Run]:
        want = self._chunk_bytes
        while self.position < self.size_bytes and self.problem is None:
            length = min(want, self.size_bytes - self.position)
            data = memoryview(self._read(self.position, length))
            if len(data) < length:
                self.size_bytes = self.position + len(data)
            start = self.position
            yield from self._runs_of(data)
            want = self._chunk_bytes if self.position > start else self._larger(data, want)

    def _larger(self, data: memoryview, want: int) -> int:
        """How much to read when `data` holds no whole batch; ends the walk where the file ends inside it."""
        if self.problem is None and self.position + len(data) >= self.size_bytes:
            self.problem = TORN
        try:
            header = read_header(data) if self.problem is None else None
        except Corrupt:
            header = None
        return max(2 * want, header.size_bytes if header is not None else 0)

    def _runs_of(self, data: memoryview) -> Iterator[Run]:
        """The whole batches of a chunk; moves `position`, sets `problem` where the walk ends."""
        at, origin = 0, self.position
        while at < len(data):
            table = kernels.scan_batches(data[at:])
            if len(table):
                run = Run(position=origin + at, data=data[at : at + table.valid_bytes], table=table)
                at += table.valid_bytes
                self.position = origin + at
                yield from self._in_order(run)
            if table.problem is None or table.problem == TORN:
                return
            alone = _one_batch(data[at:])
            if alone is None:
                self.problem = table.problem
                return
            if table.problem != DISORDER:
                size = int(alone.sizes[0])
                run = Run(position=origin + at, data=data[at : at + size], table=alone, damage=table.problem)
                at += size
                self.position = origin + at
                yield run

    def _in_order(self, run: Run) -> Iterator[Run]:
        """The run, its first batch by itself where that goes back behind the one before."""
        first, last = int(run.table.base_offsets[0]), int(run.table.last_offsets[-1])
        goes_back, self._last_offset = first <= self._last_offset, last
        if not goes_back:
            yield run
            return
        size = int(run.table.sizes[0])
        head = run.table.select(slice(0, 1))
        yield Run(position=run.position, data=run.data[:size], table=head, damage=DISORDER)
        if len(run.table) > 1:
            rest = kernels.scan_batches(run.data[size:], verify=False)
            yield Run(position=run.position + size, data=run.data[size:], table=rest)


def _one_batch(data: memoryview) -> BatchTable | None:
    """The first batch by itself, whatever its other fields say; None when its length cannot be believed.

    It is believed where the batch ends inside the data and something like another one, or nothing, follows it.
    """
    try:
        header = read_header(data)
    except Corrupt:
        return None
    if header is None or header.size_bytes > len(data):
        return None
    following = header.size_bytes + MAGIC_END - 1
    if following < len(data) and data[following] > MAGIC:
        return None
    fields = {
        "positions": 0,
        "sizes": header.size_bytes,
        "base_offsets": header.base_offset,
        "last_offsets": header.last_offset,
        "leader_epochs": header.leader_epoch,
        "attributes": header.attributes,
        "base_timestamps": header.base_timestamp_ms,
        "max_timestamps": header.max_timestamp_ms,
        "producer_ids": header.producer_id,
        "producer_epochs": header.producer_epoch,
        "base_sequences": header.base_sequence,
        "record_counts": header.record_count,
        "crcs": header.crc,
        "magics": header.magic,
    }
    columns = {name: np.array([fields[name]]).astype(dtype) for name, dtype in TABLE_DTYPES.items()}
    return BatchTable(**columns, valid_bytes=header.size_bytes, problem=None)
