"""The entry points of the hot loops: scan, decode, gather, encode, filter, and the cleaner's `KeyMap`.

Uses the compiled `local.kernels._kernels` if it was built, else `local.kernels.pure_kernels`; always the latter with
``TIERED_PURE_KERNELS=1`` in the environment. The compiled one decodes and rebuilds ordinary compressed batches with the
machine's codec libraries. This module does the rest, and converts messages of formats 0 and 1 (`local.format.legacy`).

Bytes from a disk or a store are untrusted until checked: first the CRC, then the structure, then each count and length
against the available bytes. Raises only Corrupt and InvalidRequest.

Memory: a kilobyte can decompress to a gigabyte, in hostile and in legal data.

| input | limit |
|---|---|
| one compressed batch | INFLATED_BYTES_MAX bytes, PACKED_RECORDS_MAX records, else Corrupt; 2 GiB with columns |
| many batches, `decode_in_steps` | steps of about STEP_BYTES, for any number of batches |
| many batches, `decode_columns` | refuses more than DECOMPRESSED_BYTES_MAX |
| uncompressed batches | columns of at most eight times their bytes (56 bytes for a record of 7 bytes) |

All functions are thread safe; the compiled loops release the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

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
from local.format.columns import (
    COLUMNS_ROW_BYTES,
    MESSAGE_FOUND,
    BatchTable,
    Columns,
    Flags,
    Ints,
    Longs,
    Octets,
    joined_tables,
    scan_messages,
    without_messages,
)
from local.format.compression import INFLATED_BYTES_MAX, Codec, check_level, compress, decompress
from local.kernels import pure_kernels
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
        except ImportError:  # built without a compiler; `implementation` and `tiered doctor` report it
            _chosen = pure_kernels

keep_freed_memory: Callable[[int], bool] = getattr(_chosen, "keep_freed_memory", bool)  # see `_kernels_arrow.pxi`
BatchFields = tuple[int, int, int, int, int, int, int]
DECOMPRESSED_BYTES_MAX = INFLATED_BYTES_MAX  # for all batches of one `decode_columns`; not less than for one batch
STEP_BYTES = 64 << 20
REBUILT_PART_BYTES = 1 << 20  # fits the CPU cache until it is written to the file
PACKED_RECORDS_MAX = 1 << 24  # of one compressed batch: about 940 MB of columns; typical batches have thousands
_ARENA_BYTES_MIN = 1 << 20
_ARENA_RATIO = 8  # first estimate of decompressed size over compressed size


def implementation() -> Literal["compiled", "pure"]:
    """The implementation in use."""
    return "pure" if _chosen is pure_kernels else "compiled"


def scan_batches(data: Buffer, *, verify: bool = True, position: int = 0) -> BatchTable:
    """Scan consecutive batches from byte `position`; stop at a torn or wrong batch, without raising.

    Messages of formats 0 and 1 are rows too. `verify` checks every CRC. Raises InvalidRequest if `position` is outside
    `data`.
    """
    view = _bytes_of(data)
    return _with_legacy(view, _chosen.scan_batches(view, verify=verify, position=position), verify, verify)


def decode_columns(
    data: Buffer, *, verify: bool = True, include_control: bool = False, table: BatchTable | None = None
) -> Columns:
    """Decode the records of the whole batches in `data`; ignore a partial batch at the end.

    With a `table` of the same `data` the scan is skipped. Without `verify` CRCs are not checked; the structure always
    is. Records of control batches are left out unless `include_control` is set; their rows stay in the table. Raises
    Corrupt with ``at`` and ``base_offset``. Raises InvalidRequest if compressed batches, together with the uncompressed
    batches of the call, decompress to more than DECOMPRESSED_BYTES_MAX.
    """
    view = _bytes_of(data)
    table = _scanned(view, verify=verify) if table is None else _checked(view, table)
    packed = _packed(table, include_control=include_control)
    if not packed.any():
        return _plain_sections(view, table, verify=verify).columns(include_control=include_control)
    if verify:
        _verify(view, table)
    arena, starts, ends = _inflated(view, table, packed, DECOMPRESSED_BYTES_MAX, verify=verify)
    done = len(ends)
    # Record counts come from untrusted headers: never allocate more rows than the bytes can hold.
    rows = np.minimum(table.record_counts[:done], (ends - starts) // RECORD_BYTES_MIN)[packed[:done]].sum()
    if max(ends[-1], rows * COLUMNS_ROW_BYTES) > DECOMPRESSED_BYTES_MAX:
        where = {"at": int(table.positions[done - 1]), "base_offset": int(table.base_offsets[done - 1])}
        attempt = "the batches decompress to more than the limit of one call; decode them in steps"
        raise InvalidRequest(attempt, limit=DECOMPRESSED_BYTES_MAX, batches=len(table), **where)
    return _chosen.decode_batches(arena, table, starts, ends, verify=False, include_control=include_control)


def decode_in_steps(
    data: Buffer,
    *,
    verify: bool = True,
    include_control: bool = False,
    step_bytes: int = STEP_BYTES,
    table: BatchTable | None = None,
) -> Iterator[Columns]:
    """Decode as `decode_columns`, but in steps of whole batches, for any decompressed size.

    A step has at least one batch. It ends with the batch that takes its decompressed bytes past `step_bytes`, or before
    the batch that would take its columns past it. Its table holds its own batches: `positions` are bytes of `data`, but
    `valid_bytes` and `problem` describe all of `data`. Raises as `decode_columns`, possibly after some steps.
    """
    how = partial(sections_in_steps, verify=verify, include_control=include_control, step_bytes=step_bytes)
    for sections in how(data, table=table):
        yield sections.columns(include_control=include_control)
        del sections  # only the caller may hold this step while the next one is built


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sections:
    """Batches not yet decoded: the records of row i are uncompressed in ``data[starts[i]:ends[i]]``."""

    data: memoryview
    table: BatchTable
    starts: Longs
    ends: Longs
    verify: bool  # whether checksums have yet to be compared

    def columns(self, first_row: int = 0, *, include_control: bool = False) -> Columns:
        """The records of the batches from `first_row` on. Raises Corrupt."""
        where = self.table.select(slice(first_row, None)), self.starts[first_row:], self.ends[first_row:]
        return _chosen.decode_batches(self.data, *where, verify=self.verify, include_control=include_control)

    def arrow_batch(self, skipped: Flags, *rest: Any) -> tuple[int, list[Any]] | None:  # noqa: ANN401
        """See `_kernels_arrow.pxi`; None without compiled kernels too. Then decode the `columns` from the row on."""
        build = getattr(_chosen, "arrow_batch", None)
        where = self.data, self.table, self.starts, self.ends, skipped.view(np.uint8)
        return None if build is None else build(*where, *rest, verify=self.verify)


def sections_in_steps(
    data: Buffer, step_bytes: int, table: BatchTable | None = None, verify: bool = True, include_control: bool = False
) -> Iterator[Sections]:
    """The steps of `decode_in_steps` before their records are decoded. Raises as `decode_columns`."""
    view = _bytes_of(data)
    table = _scanned(view, verify=verify) if table is None else _checked(view, table)
    packed = _packed(table, include_control=include_control)
    is_verified = verify
    if verify and packed.any():
        _verify(view, table)
        verify = False
    skipped = (table.attributes & CONTROL != 0) & (not include_control)
    # Record counts come from untrusted headers until the records are decoded; a wrong count only shortens a step.
    rows_before = np.concatenate(([0], np.cumsum(np.where(skipped, 0, table.record_counts), dtype=np.int64)))
    done = 0
    while done < len(table):
        rows_until = rows_before[done] + step_bytes // COLUMNS_ROW_BYTES
        upto = max(done + 1, int(np.searchsorted(rows_before, rows_until, "right")) - 1)
        run, bits = table.select(slice(done, upto)), packed[done:upto]
        if bits.any():
            arena, starts, ends = _inflated(view, run, bits, step_bytes, verify=is_verified)
            run = run.select(slice(len(ends)))
            step = Sections(data=arena, table=run, starts=starts, ends=ends, verify=False)
            del arena
        else:
            step = _plain_sections(view, run, verify=verify)
        done += len(run)
        yield step
        del step


def gather(data: Buffer, starts: Longs, lengths: Ints) -> tuple[Ints, Octets]:
    """Join ranges of `data`: (n + 1 offsets, bytes), the two buffers of an Arrow binary array; a length of -1 is empty.

    Raises InvalidRequest for a range outside `data`, or for more than 2^31-1 bytes.
    """
    starts, lengths = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(lengths, np.int32)
    return _chosen.gather(_bytes_of(data), starts, lengths)


def compress_section(codec: Codec, plain: Buffer, level: int | None = None) -> bytes:
    """The records of a batch in the codec's framing. Raises as `local.format.compression.compress`."""
    view, write = _bytes_of(plain), getattr(_chosen, "compress_section", None)
    is_default = check_level(codec, level) == check_level(codec, None)
    made = write(codec, view) if write and is_default and len(view) <= INFLATED_BYTES_MAX else None
    return compress(codec, view, level) if made is None else bytes(made)


def encode_plain_batch(records: Sequence[tuple[object, ...]], fields: BatchFields) -> bytes:
    """Encode a whole uncompressed batch; `fields` are the other arguments of `pure_kernels.encode_batch`."""
    return _chosen.encode_batch(records, *fields)


def cut_columns(columns: RecordColumns, batch_bytes: int) -> tuple[Longs, Longs]:
    """Divide rows into batches: (end rows, exact uncompressed sizes). Raises InvalidRequest for invalid columns."""
    return _chosen.cut_columns(_source(columns), batch_bytes)


def encode_columns(
    columns: RecordColumns, first_row: int, batch_ends: Longs, size_bytes: int, attributes: int, append_time_ms: int
) -> memoryview:
    """Encode batches found by `cut_columns` into one writable buffer of `size_bytes`. Raises InvalidRequest."""
    ends = np.ascontiguousarray(batch_ends, np.int64)
    return _chosen.encode_columns(_source(columns), first_row, ends, size_bytes, attributes, append_time_ms).data


def hash_keys(data: Buffer, starts: Longs, lengths: Ints) -> NDArray[np.uint32]:
    """murmur2 of each range, as in Kafka's default partitioner; null hashes as empty. Raises InvalidRequest."""
    starts, lengths = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(lengths, np.int32)
    return _chosen.hash_keys(_bytes_of(data), starts, lengths)


def filter_batches(
    data: Buffer, keep: Flags, *, keep_last_batch: bool = False, actions: Octets | None = None, horizon_ms: int = 0
) -> bytes:
    """The batches with the kept records: `keep` has one flag per record of `decode_columns(include_control=True)`.

    `actions` gives the action per batch (`pure_kernels.DROP` etc.; REBASE rebuilds and sets the delete horizon
    `horizon_ms`). Without `actions` it follows from the flags:

    | batch | result |
    |---|---|
    | no record removed, or a control batch | copied byte for byte |
    | some records removed | rebuilt: offsets, producer fields, leader epoch, flags and codec stay |
    | all records removed | left out; with `keep_last_batch` the last batch stays, empty, for its next offset |

    The base timestamp becomes the delete horizon, else the first remaining record's. The largest timestamp becomes that
    of the remaining records, unless the batch has log append time. The codec is used at its default level. A changed
    message of format 0 or 1 becomes a batch of format 2. Every CRC is checked first. Raises Corrupt. Raises
    InvalidRequest unless there is one flag per record and one action per batch, and `data` ends with a whole batch.
    Source: kafka `MemoryRecords.filterTo`.
    """
    view = _bytes_of(data)
    table = _filterable(view)
    flags = np.ascontiguousarray(keep)
    counted = int(table.record_counts.sum(dtype=np.int64))
    if flags.dtype != np.bool_ or flags.shape != (counted,):
        raise InvalidRequest("cannot filter batches, each record needs a flag", flags=flags.shape, records=counted)
    bits = np.packbits(flags, bitorder="little")
    if actions is None:
        actions = _actions(table, count_bits(bits, table.record_counts), keep_last_batch=keep_last_batch)
    out = np.empty(REBUILT_PART_BYTES, np.uint8)
    return b"".join(map(bytes, _rebuilt(view, table, bits, actions, horizon_ms, out)))


def rebuilt_batches(data: Buffer, keep: Octets, actions: Octets, horizon_ms: int, out: Octets) -> Iterator[memoryview]:
    """The output of `filter_batches`, in parts of whole batches inside `out`, each valid until the next.

    `keep` has one bit per record: r is bit ``r & 7`` of byte ``r >> 3``. Raises as `filter_batches`, possibly after
    parts.
    """
    view = _bytes_of(data)
    table = _filterable(view)
    if keep.dtype != np.uint8 or len(keep) * 8 < int(table.record_counts.sum(dtype=np.int64)):
        raise InvalidRequest("cannot filter batches, each record needs a flag", flags=len(keep) * 8)
    return _rebuilt(view, table, keep, actions, horizon_ms, out)


def count_bits(bits: Octets, counts: Ints) -> Longs:
    """The number of set bits of each consecutive batch. Raises InvalidRequest for fewer bits than records."""
    return _chosen.count_bits(bits, _firsts(counts), counts)


def kept_bytes(data: Buffer, table: BatchTable, keep: Octets) -> Longs:
    """The bytes in `data` of the records with a set bit, for each batch of `table`. Nothing is verified.

    A compressed batch, or a message of format 0 or 1, counts as a whole. Raises InvalidRequest for other data.
    """
    is_legacy, firsts = table.magics != MAGIC, _firsts(table.record_counts)
    sizes: Longs = table.sizes.astype(np.int64) - np.where(is_legacy, 0, HEADER_BYTES)
    is_plain = ((table.attributes & CODEC_BITS) == Codec.NONE) & ~is_legacy
    if is_plain.any():
        sizes[is_plain] = _chosen.kept_bytes(_bytes_of(data), table.select(is_plain), keep, firsts[is_plain])
    return sizes


# -- columns to append


def _source(columns: RecordColumns) -> pure_kernels.Source:
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
        raise InvalidRequest("cannot read batches, the buffer is not contiguous", got=type(data).__name__) from error


def _scanned(view: memoryview, *, verify: bool) -> BatchTable:
    """The table of all whole batches; the loop that reads the records checks the CRCs. Raises Corrupt."""
    table = _with_legacy(view, _chosen.scan_batches(view, verify=False), False, verify)
    if table.is_corrupt:
        at = table.valid_bytes
        # An invalid header is most often a damaged header: report a wrong checksum first.
        checked = _chosen.scan_batches(view, verify=verify, position=at).problem
        problem = table.problem if checked is None or checked in MESSAGE_FOUND else checked
        base_offset = int.from_bytes(view[at : at + 8], "big", signed=True)
        raise Corrupt(f"cannot decode a batch, {problem}", at=at, base_offset=base_offset)
    return table


def _with_legacy(view: memoryview, table: BatchTable, verify: bool, verify_legacy: bool) -> BatchTable:
    if table.problem not in MESSAGE_FOUND:
        return table
    runs = [table]
    while (last := runs[-1]).problem in MESSAGE_FOUND:
        last_offset = max((int(run.last_offsets[-1]) for run in runs if len(run)), default=-1)
        limit = INFLATED_BYTES_MAX
        found, is_other = scan_messages(view, last.valid_bytes, last_offset, verify=verify_legacy, limit=limit)
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
    """The caller's own table. Raises InvalidRequest if it cannot belong to `view`."""
    ends = table.positions + table.sizes
    is_short = table.sizes < np.where(table.magics == MAGIC, HEADER_BYTES, MAGIC_END)
    if (table.positions < 0).any() or is_short.any() or (ends > len(view)).any():
        raise InvalidRequest("cannot decode batches, the table belongs to other data", bytes=len(view), rows=len(table))
    return table


def _packed(table: BatchTable, *, include_control: bool) -> Flags:
    packed: Flags = ((table.attributes & CODEC_BITS) != Codec.NONE) & (table.sizes > HEADER_BYTES)
    packed |= table.magics != MAGIC
    return packed if include_control else packed & ((table.attributes & CONTROL) == 0)


def _plain_sections(view: memoryview, table: BatchTable, *, verify: bool) -> Sections:
    starts, ends = table.positions + HEADER_BYTES, table.positions + table.sizes
    return Sections(data=view, table=table, starts=starts, ends=ends, verify=verify)


def _verify(view: memoryview, table: BatchTable) -> None:
    """Check all CRCs in one call, before a decompressor reads any byte. Raises Corrupt."""
    if table.has_legacy:
        table = without_messages(view, table)
    drop = np.full(len(table), DROP, np.uint8)
    none, starts = np.empty(0, np.uint8), np.zeros(len(table), np.int64)
    unread = replace(table, record_counts=np.zeros(len(table), np.int32))
    _chosen.rebuild_batches(view, unread, drop, none, starts, 0, none, 0, len(table))


# -- decompressing


def _inflated(
    view: memoryview, table: BatchTable, packed: Flags, budget: int, *, verify: bool
) -> tuple[memoryview, Longs, Longs]:
    """(buffer, section starts, section ends), up to the section that takes the buffer past `budget`."""
    ends, kinds = np.zeros(len(table), np.int64), packed.astype(np.uint8)
    kinds[table.magics != MAGIC] = pure_kernels.MESSAGE
    row = used = 0
    arena = np.empty(max(_ARENA_BYTES_MIN, min(budget, _ARENA_RATIO * len(view))), np.uint8)

    def room(size: int) -> memoryview:
        nonlocal arena
        if len(arena) - used < size:  # unwritten pages take no memory
            # The last growth has space for a batch beyond the budget.
            larger = np.empty(max(used + size, 2 * used if 4 * used < budget else budget + size), np.uint8)
            larger[:used] = arena[:used]
            arena = larger
        return arena[used : used + size].data

    inflate, limits = getattr(_chosen, "inflate_batches", None), (INFLATED_BYTES_MAX, PACKED_RECORDS_MAX)
    while row < len(table) and used <= budget:
        if inflate is not None:  # the pure kernels have none: cramjam does all
            row, used = inflate(view, table, kinds, row, arena, used, budget, ends, *limits)
        if row < len(table) and used <= budget:
            used += _inflated_alone(view, table, row, kinds[row], room, verify=verify)
            ends[row] = used
            row += 1
    return arena[:used].data, np.concatenate((ends[:1] * 0, ends[: row - 1])), ends[:row]


def _inflated_alone(
    view: memoryview, table: BatchTable, row: int, kind: int, room: Callable[[int], memoryview], *, verify: bool
) -> int:
    """Write the records of a batch that the kernel left to the memory that `room` returns; return their bytes."""
    header, position = table.row(row), int(table.positions[row])
    if kind and header.record_count > PACKED_RECORDS_MAX:
        facts = {"records": header.record_count, "limit": PACKED_RECORDS_MAX}
        attempt = "cannot decompress a batch, it has more records than a batch may have"
        raise _placed(Corrupt(attempt, **facts), header, position)
    entry = view[position : position + header.size_bytes]
    section: memoryview | bytearray = entry[HEADER_BYTES:]
    try:
        if kind == pure_kernels.PACKED:
            return len(decompress(header.codec, section, INFLATED_BYTES_MAX, room))
        if kind == pure_kernels.MESSAGE:
            section = legacy.records_of(entry, header.base_timestamp_ms, INFLATED_BYTES_MAX, verify=verify)
    except Corrupt as error:
        raise _placed(error, header, position, limit=INFLATED_BYTES_MAX) from error
    room(len(section))[:] = section
    return len(section)


def _placed(error: Corrupt, header: BatchHeader, position: int, **facts: object) -> Corrupt:
    where = {"at": position, "base_offset": header.base_offset}
    return Corrupt(error.attempt, **{**error.facts, **facts, **where})


# -- filtering


def _filterable(view: memoryview) -> BatchTable:
    table = _scanned(view, verify=True)
    if table.problem is not None:
        raise InvalidRequest("cannot filter batches, one is cut off", at=table.valid_bytes, bytes=len(view))
    return table


def _firsts(counts: Ints) -> Longs:
    firsts: Longs = np.cumsum(counts, dtype=np.int64) - counts
    return firsts


def _rebuilt(
    view: memoryview, table: BatchTable, bits: Octets, actions: Octets, horizon_ms: int, out: Octets
) -> Iterator[memoryview]:
    is_rebuilt = (actions == REBUILD) | (actions == REBASE)
    if actions.shape != (len(table),) or (is_rebuilt & (count_bits(bits, table.record_counts) == 0)).any():
        raise InvalidRequest("cannot filter batches, an action is unknown", batches=len(table))
    firsts = _firsts(table.record_counts)
    is_packed = is_rebuilt & ((table.attributes & CODEC_BITS) != Codec.NONE)
    is_apart = table.magics != MAGIC
    if not getattr(_chosen, "REBUILDS_PACKED", False):
        is_apart = is_apart | is_packed
    row = 0
    for stop in (*np.flatnonzero(is_apart).tolist(), len(table)):
        while row < stop:
            following, size = _chosen.rebuild_batches(view, table, actions, bits, firsts, horizon_ms, out, row, stop)
            if size:
                yield out[:size].data
            elif following == row and is_packed[row]:
                yield memoryview(_apart(view, table, row, bits, firsts, (int(actions[row]), horizon_ms)))
                following += 1
            elif following == row:
                out = np.empty(_room_for(table, row), np.uint8)
            row = following
        if stop < len(table):
            yield memoryview(_apart(view, table, stop, bits, firsts, (int(actions[stop]), horizon_ms)))
            row = stop + 1


def _room_for(table: BatchTable, row: int) -> int:
    return int(table.sizes[row]) + int(table.record_counts[row]) * pure_kernels.REBUILT_GROWTH_MAX


def _actions(table: BatchTable, remaining: Longs, *, keep_last_batch: bool) -> Octets:
    actions = np.full(len(table), REBUILD, np.uint8)
    actions[remaining == table.record_counts] = VERBATIM
    actions[remaining == 0] = DROP
    actions[(table.attributes & CONTROL) != 0] = VERBATIM
    if keep_last_batch and len(table) and actions[-1] == DROP:
        actions[-1] = EMPTY if table.record_counts[-1] else VERBATIM
    return actions


def _apart(view: memoryview, table: BatchTable, row: int, keep: Octets, firsts: Longs, how: tuple[int, int]) -> bytes:
    """The result for a batch that the kernels leave: compressed, or a message of format 0 or 1."""
    header, position = table.row(row), int(table.positions[row])
    if how[0] == DROP:
        return b""
    if how[0] == EMPTY:
        return pure_kernels.emptied(header)
    if how[0] == VERBATIM:
        return bytes(view[position : position + header.size_bytes])
    if not header.is_legacy:
        pure_kernels.check_crc(view, header, position)
    try:
        plain = _plain(view, header, position)
    except Corrupt as error:
        raise _placed(error, header, position, limit=INFLATED_BYTES_MAX) from error
    try:
        table = _scanned(plain, verify=False)
        out, one, first = np.empty(_room_for(table, 0), np.uint8), np.array(how[:1], np.uint8), firsts[row : row + 1]
        _, size = _chosen.rebuild_batches(plain, table, one, keep, first, how[1], out, 0, 1)
        rebuilt = out[:size].data
    except Corrupt as error:
        raise _placed(error, header, position) from error
    del plain
    changed = read_header(rebuilt)
    if header.codec is Codec.NONE or changed is None:
        return bytes(rebuilt)
    packed = compress_section(header.codec, rebuilt[HEADER_BYTES:])
    return seal(changed._replace(attributes=changed.attributes | (header.attributes & CODEC_BITS)), packed)


def _plain(view: memoryview, header: BatchHeader, position: int) -> memoryview:
    plain = header._replace(magic=MAGIC, attributes=header.attributes & ~CODEC_BITS)
    entry = view[position : position + header.size_bytes]
    if header.is_legacy:
        records = legacy.records_of(entry, header.base_timestamp_ms, INFLATED_BYTES_MAX, verify=False)
        return memoryview(seal(plain, records))
    return memoryview(seal(plain, decompress(header.codec, entry[HEADER_BYTES:], INFLATED_BYTES_MAX)))
