"""Read all batches of a ``.log`` in runs, sound or damaged: for checks, not for reads of a log.

A batch with a wrong checksum or wrong offsets, but a plausible length, is its own run with its damage. Iteration ends
at the first implausible length, or after `size_bytes`. Memory: one chunk (CHUNK_BYTES, or the largest batch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from local import kernels
from local.errors import Corrupt
from local.format.batch_header import MAGIC, MAGIC_END, read_header
from local.format.columns import TABLE_DTYPES, TORN, BatchTable, arrays_of
from local.format.record import wrapped

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from local.format.columns import Columns

CHUNK_BYTES = 8 << 20

# Returns bytes ``[start, start + length)``; fewer only at the end of the source.
RangedRead = Callable[[int, int], bytes | bytearray | memoryview]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """Adjacent batches at `position`. With `damage` the run is one batch; `table` counts from the start of `data`."""

    position: int
    data: memoryview
    table: BatchTable
    damage: str | None = None

    @property
    def is_readable(self) -> bool:
        """Whether its records may be decoded. Wrong offset order leaves the written bytes intact."""
        return self.damage is None or self.damage == DISORDER


DISORDER = "offset goes back"


class BatchRuns:
    """The runs of a ``.log``; iterate once. Afterwards `position` is the end and `problem` its cause (`BatchTable`)."""

    def __init__(self, read: RangedRead, size_bytes: int, *, start: int = 0, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`start` is the position of a batch. Raises nothing: faults are in the runs and in `problem`."""
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
        if self.problem is None and self.position + len(data) >= self.size_bytes:
            self.problem = TORN
        try:
            header = read_header(data) if self.problem is None else None
        except Corrupt:
            header = None
        return max(2 * want, header.size_bytes if header is not None else 0)

    def _runs_of(self, data: memoryview) -> Iterator[Run]:
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
        """The run; its first batch is split off as DISORDER if its offset is not above the previous batch."""
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
    """The first batch alone, unchecked; None unless it ends inside `data` and a batch or nothing follows."""
    try:
        header = read_header(data)
    except Corrupt:
        return None
    if header is None or header.size_bytes > len(data):
        return None
    following = header.size_bytes + MAGIC_END - 1
    if following < len(data) and data[following] > MAGIC:
        return None
    last_offset = wrapped(header.last_offset)  # of a damaged header, perhaps too large
    counts = header.base_offset, last_offset, header.leader_epoch, header.attributes
    columns = arrays_of(TABLE_DTYPES, [(0, header.size_bytes, *counts, *header[7:], header.crc, header.magic)])
    return BatchTable(**columns, valid_bytes=header.size_bytes, problem=None)


def decode_up_to_damage(data: Buffer, *, table: BatchTable | None = None) -> Iterator[Columns]:
    """Like `kernels.decode_in_steps`, but yields all batches before a damaged one, then raises Corrupt."""
    done = 0
    try:
        for columns in kernels.decode_in_steps(data, table=table):
            done += len(columns.table)
            yield columns
            del columns
    except Corrupt as error:
        rows = kernels.scan_batches(data, verify=False) if table is None else table
        at = error.facts.get("at")
        bad = int(np.searchsorted(rows.positions, at)) if isinstance(at, int) else done
        if bad > done:
            before = replace(rows.select(slice(done, bad)), problem=None)
            yield from kernels.decode_in_steps(data, table=before)
        raise
