"""The one door to the hot loops: scan, decode, gather, encode, filter, and the cleaner's `KeyMap`.

Picks the compiled `local.kernels._kernels` where it was built and `local.kernels.pure_kernels` otherwise, or where the
environment says
``TIERED_PURE_KERNELS=1``. Both know plain batches only; inflating and compressing happen here, around them, and so
does turning messages of formats 0 and 1 into what they know (`local.format.legacy`).

What arrives from a disk or a store is hostile until checked: CRC, then structure, each count and length against the
bytes that are there. Raises Corrupt and InvalidRequest, nothing else.

Memory: a kilobyte can hold a gigabyte, in an attack and in honest data. One compressed batch may inflate to
INFLATED_BYTES_MAX and hold PACKED_RECORDS_MAX records, above which it is Corrupt: two gibibytes at the very worst, with
its columns. Many batches of one call are not: `decode_in_steps` reads any number of them in steps of about STEP_BYTES,
and `decode_columns`, which gives all at once, refuses more than the caller allows. Plain batches need columns of eight
times their own bytes at most (56 for a record of 7).

Every function may be called from several threads at once; the compiled loops let go of the interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from local.errors import Corrupt, InvalidRequest
from local.format import legacy
from local.format.batch_header import (
    CODEC_BITS,
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    MAGIC_END,
    RECORD_BYTES_MIN,
    BatchHeader,
    read_header,
    seal,
)
from local.format.columns import COLUMNS_ROW_BYTES, BatchTable, Columns, joined_tables
from local.format.compression import INFLATED_BYTES_MAX, Codec, compress, decompress, decompress_into, size_guesses
from local.kernels import legacy_scan, pure_kernels
from local.kernels.pure_kernels import DROP, EMPTY, REBASE, REBUILD, VERBATIM

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from local.records.record_columns import RecordColumns

    _chosen = pure_kernels
    from local.kernels.pure_key_map import KeyMap as KeyMap
else:
    from local.kernels.pure_key_map import KeyMap

    _chosen = pure_kernels
    if os.environ.get("TIERED_PURE_KERNELS", "0") in ("", "0"):
        try:
            from local.kernels import _kernels as _chosen
            from local.kernels._kernels import KeyMap as KeyMap
        except ImportError:  # built without a compiler; `implementation` tells, and so does `tiered doctor`
            _chosen = pure_kernels

DECOMPRESSED_BYTES_MAX = INFLATED_BYTES_MAX  # of all batches of one `decode_columns`; never below that of one batch
STEP_BYTES = 64 << 20
REBUILT_PART_BYTES = 1 << 20  # small enough to be in the processor's cache still when it is written out
PACKED_RECORDS_MAX = 1 << 24  # of one compressed batch, some 940 MB of columns; a batch of Kafka's size has thousands
_ARENA_BYTES_MIN = 1 << 20
_ARENA_RATIO = 4  # first guess of inflated over compressed


def implementation() -> Literal["compiled", "pure"]:
    """Which of the twins runs."""
    return "pure" if _chosen is pure_kernels else "compiled"


def scan_batches(data: Buffer, *, verify: bool = True, position: int = 0) -> BatchTable:
    """The consecutive batches from byte `position`; stops at the first that is torn or wrong, without raising.

    Messages of formats 0 and 1 are rows too, a wrapper with the offsets and the number of the records inside it.
    With `verify` every CRC is checked. Raises InvalidRequest when `position` lies outside `data`.
    """
    view = _bytes_of(data)
    return _with_legacy(view, _chosen.scan_batches(view, verify=verify, position=position), verify, verify)


def decode_columns(
    data: Buffer,
    *,
    verify: bool = True,
    include_control: bool = False,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    table: BatchTable | None = None,
) -> Columns:
    """The records of the whole batches in `data`, which may end in a partial one: that is left out.

    `table` spares the scan when the caller has one of this very `data`. Without `verify` CRCs are not looked at, the
    structure always is. Records of control batches are left out unless `include_control`; their rows in the table
    stay. Raises Corrupt with ``at`` and ``base_offset``, and InvalidRequest when compressed batches and the plain ones
    beside them take more than `decompressed_bytes_max` inflated: what may be that much is read by `decode_in_steps`.
    """
    view = _bytes_of(data)
    table = _scanned(view, verify=verify) if table is None else _checked(view, table)
    packed = _packed(table, include_control=include_control)
    if not packed.any():
        return _plain_columns(view, table, verify=verify, include_control=include_control)
    if verify:
        _verify(view, table)
    arena, starts, ends = _inflated(view, table, packed.tolist(), decompressed_bytes_max, verify=verify)
    done = len(ends)
    # Counts are the header's own word; no more records are made than there is room for in the bytes.
    rows = np.minimum(table.record_counts[:done], (ends - starts) // RECORD_BYTES_MIN)[packed[:done]].sum()
    if ends[-1] > decompressed_bytes_max or rows * COLUMNS_ROW_BYTES > max(decompressed_bytes_max, _ARENA_BYTES_MIN):
        where = {"at": int(table.positions[done - 1]), "base_offset": int(table.base_offsets[done - 1])}
        raise InvalidRequest(
            "decoding batches, together they inflate past the limit of one call; decode them in steps",
            limit=decompressed_bytes_max,
            batches=len(table),
            **where,
        )
    return _chosen.decode_batches(arena, table, starts, ends, verify=False, include_control=include_control)


def decode_in_steps(
    data: Buffer,
    *,
    verify: bool = True,
    include_control: bool = False,
    step_bytes: int = STEP_BYTES,
    table: BatchTable | None = None,
) -> Iterator[Columns]:
    """The records of `decode_columns`, a run of whole batches at a time, however much they inflate to.

    A step has one batch at least, and ends with the batch that takes its inflated bytes past `step_bytes`, or before
    the one that would take its columns there. Its table holds its own batches: `positions` are bytes of `data`,
    `valid_bytes` and `problem` are those of all of it. No whole batch, no step. Each step's memory is free as soon as
    the caller lets go of it. Raises as `decode_columns` does, some steps may have been given before.
    """
    view = _bytes_of(data)
    table = _scanned(view, verify=verify) if table is None else _checked(view, table)
    packed = _packed(table, include_control=include_control)
    is_verified = verify
    if verify and packed.any():
        _verify(view, table)
        verify = False
    skipped = (table.attributes & CONTROL != 0) & (not include_control)
    # Counts are the header's own word until the records are walked; a wrong one only makes a step short.
    rows_before = np.concatenate(([0], np.cumsum(np.where(skipped, 0, table.record_counts), dtype=np.int64)))
    done = 0
    while done < len(table):
        rows_until = rows_before[done] + step_bytes // COLUMNS_ROW_BYTES
        upto = max(done + 1, int(np.searchsorted(rows_before, rows_until, "right")) - 1)
        run, bits = table.select(slice(done, upto)), packed[done:upto]
        if bits.any():
            arena, starts, ends = _inflated(view, run, bits.tolist(), step_bytes, verify=is_verified)
            run = run.select(slice(len(ends)))
            step = _chosen.decode_batches(arena, run, starts, ends, verify=False, include_control=include_control)
            del arena
        else:
            step = _plain_columns(view, run, verify=verify, include_control=include_control)
        done += len(run)
        yield step
        del step  # while the next one is made, only the caller may hold this one


def gather(
    data: Buffer, starts: NDArray[np.int64], lengths: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The named ranges side by side: (n + 1 offsets, bytes), the two buffers of an Arrow binary array; -1 is empty.

    Raises InvalidRequest for a range outside `data`, and above 2^31-1 bytes, which 32-bit offsets cannot address.
    """
    starts, lengths = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(lengths, np.int32)
    return _chosen.gather(_bytes_of(data), starts, lengths)


def encode_records(records: Sequence[tuple[object, ...]]) -> tuple[bytes, int, int]:
    """(the record section with offset deltas 0, 1, ..; base timestamp, the first record's; largest timestamp).

    Records are (key, value, timestamp_ms[, headers]). Raises InvalidRequest for none, or one that is no such record.
    """
    return _chosen.encode_records(records)


def encode_plain_batch(
    records: Sequence[tuple[object, ...]],
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    append_time_ms: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> bytes:
    """A whole batch without codec; `local.records.batch.encode_batch` is the one to call."""
    return _chosen.encode_batch(
        records, base_offset, leader_epoch, attributes, append_time_ms, producer_id, producer_epoch, base_sequence
    )


def cut_columns(columns: RecordColumns, batch_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(the row behind each batch, its exact plain size): as many rows as fit into `batch_bytes`, one at least.

    Raises InvalidRequest for columns that make no sense: ranges outside their buffers, wrong headers, timestamps
    below -1, lengths that differ.
    """
    return _chosen.cut_columns(_source(columns), batch_bytes)


def encode_columns(
    columns: RecordColumns,
    first_row: int,
    batch_ends: NDArray[np.int64],
    size_bytes: int,
    attributes: int,
    append_time_ms: int,
) -> memoryview:
    """Some neighbours of the batches that `cut_columns` found, `size_bytes` together, side by side and writable.

    `local.log.column_encoding` is the one to call. Raises InvalidRequest where rows or sizes do not fit the columns.
    """
    ends = np.ascontiguousarray(batch_ends, np.int64)
    return _chosen.encode_columns(_source(columns), first_row, ends, size_bytes, attributes, append_time_ms).data


def hash_keys(data: Buffer, starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> NDArray[np.uint32]:
    """murmur2 of every range of `data`, as Kafka's default partitioner hashes keys; a null one hashes as empty.

    Raises InvalidRequest for a range outside `data`.
    """
    starts, lengths = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(lengths, np.int32)
    return _chosen.hash_keys(_bytes_of(data), starts, lengths)


def filter_batches(
    data: Buffer,
    keep: NDArray[np.bool_],
    *,
    keep_last_batch: bool = False,
    actions: NDArray[np.uint8] | None = None,
    horizon_ms: int = 0,
) -> bytes:
    """`data` with only the kept records; `keep` has a flag for each record of `decode_columns(include_control=True)`.

    What becomes of each batch is said by `actions` (`pure_kernels.DROP` and its neighbours; REBASE is a rebuilding that
    also gives the batch the delete horizon `horizon_ms`), or else follows from its flags: a batch of which all is kept,
    and every control batch, passes byte for byte. One of which some is kept is rebuilt: base offset, last offset,
    producer fields, leader epoch, flags and codec (at its default level) stay; the base timestamp is the first kept
    record's or else the delete horizon; the largest timestamp is that of the kept records (under log append time it
    stays). One of which none is kept is left out, but with `keep_last_batch` the last batch of `data` stays as an empty
    one, so that the log's next offset survives.
    A message of format 0 or 1 that is rebuilt, or stays empty, becomes a batch of format 2.
    Every CRC is checked first. Memory: the result, and one inflated batch at a time. Raises Corrupt, and InvalidRequest
    when there is not one flag per record and one action per batch, or `data` does not end with a batch.
    Source: kafka `MemoryRecords.filterTo`.
    """
    view = _bytes_of(data)
    table = _filterable(view)
    flags = np.ascontiguousarray(keep)
    counted = int(table.record_counts.sum(dtype=np.int64))
    if flags.dtype != np.bool_ or flags.shape != (counted,):
        raise InvalidRequest("filtering batches, not one flag per record", flags=flags.shape, records=counted)
    bits = np.packbits(flags, bitorder="little")
    if actions is None:
        actions = _actions(table, _kept_counts(table, bits), keep_last_batch=keep_last_batch)
    out = np.empty(min(REBUILT_PART_BYTES, 2 * len(view)), np.uint8)
    return b"".join(map(bytes, _rebuilt(view, table, bits, actions, horizon_ms, out)))


def rebuilt_batches(
    data: Buffer, keep: NDArray[np.uint8], actions: NDArray[np.uint8], horizon_ms: int, out: NDArray[np.uint8]
) -> Iterator[memoryview]:
    """What `filter_batches` gives, in parts of whole batches, each valid until the next: they lie in `out`.

    `keep` has a bit a record, record r is bit ``r & 7`` of byte ``r >> 3``. A part that does not fit in `out` gets
    memory of its own. Raises as `filter_batches` does; some parts may have been given before.
    """
    view = _bytes_of(data)
    table = _filterable(view)
    if keep.dtype != np.uint8 or len(keep) * 8 < int(table.record_counts.sum(dtype=np.int64)):
        raise InvalidRequest("filtering batches, not one flag per record", flags=len(keep) * 8)
    return _rebuilt(view, table, keep, actions, horizon_ms, out)


def count_bits(bits: NDArray[np.uint8], counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many of each batch's records have their bit set; batches of `counts` records, one after another.

    Raises InvalidRequest when there are fewer bits than records.
    """
    return _chosen.count_bits(bits, _firsts(counts), counts)


def kept_bytes(data: Buffer, table: BatchTable, keep: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How many bytes the kept records of each batch of `table` take in `data`; of a compressed batch all that it has.

    A message of format 0 or 1 counts whole: as records it is no larger. `keep` has a bit for each record, as
    `rebuilt_batches` takes them. Nothing is verified. Raises InvalidRequest where bits or table do not fit.
    """
    is_legacy, firsts = table.magics != MAGIC, _firsts(table.record_counts)
    sizes: NDArray[np.int64] = table.sizes.astype(np.int64) - np.where(is_legacy, 0, HEADER_BYTES)
    is_plain = ((table.attributes & CODEC_BITS) == Codec.NONE) & ~is_legacy
    if is_plain.any():
        sizes[is_plain] = _chosen.kept_bytes(_bytes_of(data), table.select(is_plain), keep, firsts[is_plain])
    return sizes


# -- columns to append


def _source(columns: RecordColumns) -> pure_kernels.Source:
    """The buffers and arrays as the twins take them."""
    return (
        _bytes_of(columns.key_data),
        np.ascontiguousarray(columns.key_starts, np.int64),
        np.ascontiguousarray(columns.key_lengths, np.int32),
        _bytes_of(columns.value_data),
        np.ascontiguousarray(columns.value_starts, np.int64),
        np.ascontiguousarray(columns.value_lengths, np.int32),
        np.ascontiguousarray(columns.timestamps, np.int64),
        _bytes_of(columns.header_data),
        np.ascontiguousarray(columns.header_starts, np.int64),
        np.ascontiguousarray(columns.header_counts, np.int32),
    )


# -- tables


def _bytes_of(data: Buffer) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except (TypeError, ValueError) as error:
        raise InvalidRequest("reading batches, not one contiguous buffer", got=type(data).__name__) from error


def _scanned(view: memoryview, *, verify: bool) -> BatchTable:
    """The structure of all whole batches; the CRCs are left to the loop that reads the bytes anyway."""
    table = _with_legacy(view, _chosen.scan_batches(view, verify=False), False, verify)
    if table.is_corrupt:
        at = table.valid_bytes
        # A header that makes no sense is most often a damaged one: let the checksum have the word, if it may.
        checked = _chosen.scan_batches(view, verify=verify, position=at).problem
        problem = table.problem if checked is None or checked in legacy_scan.FOUND else checked
        base_offset = int.from_bytes(view[at : at + 8], "big", signed=True)
        raise Corrupt(f"decoding a batch, {problem}", at=at, base_offset=base_offset)
    return table


def _with_legacy(view: memoryview, table: BatchTable, verify: bool, verify_legacy: bool) -> BatchTable:
    """`table`, a twin's, gone on with where it stopped at a message of format 0 or 1."""
    if table.problem not in legacy_scan.FOUND:
        return table
    runs = [table]
    while (last := runs[-1]).problem in legacy_scan.FOUND:
        last_offset = max((int(run.last_offsets[-1]) for run in runs if len(run)), default=-1)
        limit = INFLATED_BYTES_MAX
        found, is_other = legacy_scan.scan(view, last.valid_bytes, last_offset, verify=verify_legacy, limit=limit)
        runs.append(found)
        if not is_other:
            break
        last_offset = int(found.last_offsets[-1]) if len(found) else last_offset
        batches = _chosen.scan_batches(view, verify=verify, position=found.valid_bytes)
        if len(batches) and batches.base_offsets[0] <= last_offset:
            none = batches.select(slice(0))
            batches = replace(none, valid_bytes=found.valid_bytes, problem="offset goes back")
        runs.append(batches)
    return joined_tables(runs)


def _checked(view: memoryview, table: BatchTable) -> BatchTable:
    """The caller's own table, if it can belong to `view`."""
    ends = table.positions + table.sizes
    is_short = table.sizes < np.where(table.magics == MAGIC, HEADER_BYTES, MAGIC_END)
    if (table.positions < 0).any() or is_short.any() or (ends > len(view)).any():
        raise InvalidRequest("decoding batches, the table is of other data", bytes=len(view), rows=len(table))
    return table


def _packed(table: BatchTable, *, include_control: bool) -> NDArray[np.bool_]:
    """Which batches have to be inflated, or turned into plain ones of format 2."""
    packed: NDArray[np.bool_] = ((table.attributes & CODEC_BITS) != Codec.NONE) & (table.sizes > HEADER_BYTES)
    packed |= table.magics != MAGIC
    return packed if include_control else packed & ((table.attributes & CONTROL) == 0)


def _plain_columns(view: memoryview, table: BatchTable, *, verify: bool, include_control: bool) -> Columns:
    starts, ends = table.positions + HEADER_BYTES, table.positions + table.sizes
    return _chosen.decode_batches(view, table, starts, ends, verify=verify, include_control=include_control)


def _verify(view: memoryview, table: BatchTable) -> None:
    """Every CRC of the table's batches in one go, before a decompressor sees a byte. Raises Corrupt."""
    if table.has_legacy:
        table = legacy_scan.verified(view, table)
    drop = np.full(len(table), DROP, np.uint8)
    none, starts = np.empty(0, np.uint8), np.zeros(len(table), np.int64)
    unread = replace(table, record_counts=np.zeros(len(table), np.int32))
    _chosen.rebuild_batches(view, unread, drop, none, starts, 0, none, 0, len(table))


# -- inflating


def _inflated(
    view: memoryview, table: BatchTable, packed: list[bool], budget: int, *, verify: bool
) -> tuple[memoryview, NDArray[np.int64], NDArray[np.int64]]:
    """(an arena with sections plain, side by side; where each begins; where it ends).

    Of all batches, or of those up to the one that takes the arena past `budget`.
    """
    ends: list[int] = []
    used = 0
    arena = np.empty(max(_ARENA_BYTES_MIN, min(budget, _ARENA_RATIO * len(view))), np.uint8)
    columns = (table.positions, table.sizes, table.attributes, table.magics)
    for row, (position, size, bits, magic) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        section: memoryview | bytearray = view[position + HEADER_BYTES : position + size]
        if packed[row] and table.record_counts[row] > PACKED_RECORDS_MAX:
            facts = {"records": int(table.record_counts[row]), "limit": PACKED_RECORDS_MAX}
            attempt = "inflating a batch, more records than one may hold"
            raise _placed(Corrupt(attempt, **facts), table.row(row), position)
        try:
            if magic != MAGIC:
                entry, base_ms = view[position : position + size], int(table.base_timestamps[row])
                section = legacy.records_of(entry, base_ms, INFLATED_BYTES_MAX, verify=verify)
            elif packed[row]:
                arena, length = _inflate_row(Codec(bits & CODEC_BITS), memoryview(section), arena, used, budget)
        except Corrupt as error:
            raise _placed(error, table.row(row), position, limit=INFLATED_BYTES_MAX) from error
        if magic != MAGIC or not packed[row]:
            length = len(section)
            arena = _grown(arena, used, length, budget)
            arena[used : used + length] = np.frombuffer(section, np.uint8)
        used += length
        ends.append(used)
        if used > budget:
            break
    starts = np.array([0, *ends[:-1]], np.int64)
    return arena[:used].data, starts, np.array(ends, np.int64)


def _inflate_row(
    codec: Codec, section: memoryview, arena: NDArray[np.uint8], used: int, budget: int
) -> tuple[NDArray[np.uint8], int]:
    """(the arena, grown if it had to be; bytes written at `used`). Raises Corrupt."""
    damage: Corrupt | None = None
    for size in size_guesses(codec, section, INFLATED_BYTES_MAX):
        arena = _grown(arena, used, size, budget)
        try:
            return arena, decompress_into(codec, section, arena[used : used + size].data)
        except Corrupt as error:
            damage = error
    assert damage is not None
    raise damage


def _grown(arena: NDArray[np.uint8], used: int, more: int, budget: int) -> NDArray[np.uint8]:
    """The arena with room for `more` bytes behind the `used` ones. Pages never written to cost no memory."""
    if len(arena) - used >= more:
        return arena
    want = 2 * used if 4 * used < budget else budget + more  # the last growth has room for a batch past the budget
    larger = np.empty(max(used + more, want), np.uint8)
    larger[:used] = arena[:used]
    return larger


def _placed(error: Corrupt, header: BatchHeader, position: int, **facts: object) -> Corrupt:
    """The same error, saying which batch of the caller's data it is about."""
    where = {"at": position, "base_offset": header.base_offset}
    return Corrupt(error.attempt, **{**error.facts, **facts, **where})


# -- filtering


def _filterable(view: memoryview) -> BatchTable:
    """Whole batches and nothing else. Raises InvalidRequest for other data, and Corrupt."""
    table = _scanned(view, verify=True)
    if table.problem is not None:
        raise InvalidRequest("filtering batches, the data ends inside one", at=table.valid_bytes, bytes=len(view))
    return table


def _firsts(counts: NDArray[np.int32]) -> NDArray[np.int64]:
    """Which record is the first of each batch."""
    firsts: NDArray[np.int64] = np.cumsum(counts, dtype=np.int64) - counts
    return firsts


def _kept_counts(table: BatchTable, bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    return _chosen.count_bits(bits, _firsts(table.record_counts), table.record_counts)


def _rebuilt(
    view: memoryview,
    table: BatchTable,
    bits: NDArray[np.uint8],
    actions: NDArray[np.uint8],
    horizon_ms: int,
    out: NDArray[np.uint8],
) -> Iterator[memoryview]:
    is_rebuilt = (actions == REBUILD) | (actions == REBASE)
    if actions.shape != (len(table),) or (is_rebuilt & (_kept_counts(table, bits) == 0)).any():
        raise InvalidRequest("filtering batches, not a sensible action per batch", batches=len(table))
    firsts = _firsts(table.record_counts)
    is_packed = is_rebuilt & ((table.attributes & CODEC_BITS) != Codec.NONE)
    apart = np.flatnonzero(is_packed | (table.magics != MAGIC)).tolist()
    row = 0
    for stop in (*apart, len(table)):
        while row < stop:
            following, size = _chosen.rebuild_batches(view, table, actions, bits, firsts, horizon_ms, out, row, stop)
            if following == row:
                out = np.empty(_room_for(table, row), np.uint8)
            elif size:
                yield out[:size].data
            row = following
        if stop < len(table):
            flags = np.unpackbits(
                bits[firsts[stop] >> 3 :][: (int(table.record_counts[stop]) + 14) >> 3], bitorder="little"
            )
            flags = flags[firsts[stop] & 7 :][: int(table.record_counts[stop])]
            how = (int(actions[stop]), horizon_ms)
            yield memoryview(_apart(view, table.row(stop), int(table.positions[stop]), flags, how))
            row = stop + 1


def _room_for(table: BatchTable, row: int) -> int:
    """What a rebuilt batch takes at most."""
    return int(table.sizes[row]) + int(table.record_counts[row]) * pure_kernels.REBUILT_GROWTH_MAX


def _actions(table: BatchTable, kept: NDArray[np.int64], *, keep_last_batch: bool) -> NDArray[np.uint8]:
    """What becomes of each batch."""
    actions = np.full(len(table), REBUILD, np.uint8)
    actions[kept == table.record_counts] = VERBATIM
    actions[kept == 0] = DROP
    actions[(table.attributes & CONTROL) != 0] = VERBATIM
    if keep_last_batch and len(table) and actions[-1] == DROP:
        actions[-1] = EMPTY if table.record_counts[-1] else VERBATIM
    return actions


def _apart(
    view: memoryview, header: BatchHeader, position: int, flags: NDArray[np.uint8], how: tuple[int, int]
) -> bytes:
    """What becomes of a batch that the twins do not know: compressed, or a message of format 0 or 1."""
    match how[0]:
        case pure_kernels.DROP:
            return b""
        case pure_kernels.EMPTY:
            return pure_kernels.emptied(header)
        case pure_kernels.VERBATIM:
            return bytes(view[position : position + header.size_bytes])
        case _:
            return _repacked(view, header, position, flags, how)


def _repacked(
    view: memoryview, header: BatchHeader, position: int, flags: NDArray[np.uint8], how: tuple[int, int]
) -> bytes:
    """A batch with some or all of its records: made plain, rebuilt, compressed again if it was; of format 2."""
    try:
        plain = _plain(view, header, position)
    except Corrupt as error:
        raise _placed(error, header, position, limit=INFLATED_BYTES_MAX) from error
    try:
        table = _scanned(plain, verify=False)
        out, one = np.empty(_room_for(table, 0), np.uint8), np.array(how[:1], np.uint8)
        bits, first = np.packbits(flags, bitorder="little"), np.zeros(1, np.int64)
        _, size = _chosen.rebuild_batches(plain, table, one, bits, first, how[1], out, 0, 1)
        rebuilt = out[:size].data
    except Corrupt as error:
        raise _placed(error, header, position) from error
    del plain
    changed = read_header(rebuilt)
    if header.codec is Codec.NONE or changed is None:
        return bytes(rebuilt)
    packed = compress(header.codec, rebuilt[HEADER_BYTES:])
    return seal(replace(changed, attributes=changed.attributes | (header.attributes & CODEC_BITS)), packed)


def _plain(view: memoryview, header: BatchHeader, position: int) -> memoryview:
    """A batch inflated, in format 2."""
    plain = replace(header, magic=MAGIC, attributes=header.attributes & ~CODEC_BITS)
    entry = view[position : position + header.size_bytes]
    if header.is_legacy:
        records = legacy.records_of(entry, header.base_timestamp_ms, INFLATED_BYTES_MAX, verify=False)
        return memoryview(seal(plain, records))
    pure_kernels.check_crc(view, header, position)
    return memoryview(seal(plain, decompress(header.codec, entry[HEADER_BYTES:], INFLATED_BYTES_MAX)))
