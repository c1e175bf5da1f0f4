"""``tiered dump``: what is stored, batch by batch, record by record or entry by entry, under Kafka's field names.

A ``.log`` file is read from the disk as it is, so a damaged one can be looked at: what is sound is printed, then the
damage is named (exit 4). A file that merely ends inside a batch was torn by a crash; that is told, and is a finding
(exit 3), since recovery cuts it off.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

import click

from local.errors import Corrupt, InvalidRequest, NotFound
from local.names import LOG, OFFSET_INDEX, TIME_INDEX, TopicPartition, parse_segment_file
from tiered.cli.arguments import count_type, parse_partition_at
from tiered.cli.errors import Exit
from tiered.cli.records import as_json
from tiered.cli.render import Column, Row, emit, output_option
from tiered.cli.session import Session

if TYPE_CHECKING:
    from local.columns import BatchTable

_SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX)


@click.command("dump")
@click.argument("target", metavar="FILE|TOPIC/PARTITION[@OFFSET]")
@click.option("--records", "by_record", is_flag=True, help="Records as JSON lines instead of batches.")
@click.option("-n", "--count", type=count_type(1), help="Stop after this many rows.")
@output_option()
@click.pass_obj
def dump(session: Session, target: str, by_record: bool, count: int | None, output: str) -> int:
    """The batches of a segment file or of a partition over both tiers; the entries of a .index or .timeindex file."""
    if not target.endswith(_SUFFIXES):
        return _dump_partition(session, target, by_record, count, output)
    if not os.path.isfile(target):
        raise NotFound("dumping a file, no such file", path=target)
    if target.endswith(LOG):
        return _dump_log(session, target, by_record, count, output)
    return _dump_index(target, count, output)


def _dump_log(session: Session, path: str, by_record: bool, count: int | None, output: str) -> int:
    """A whole segment file, mapped and not read, so its size does not matter."""
    if os.path.getsize(path) == 0:
        emit("batches", [], _BATCH_COLUMNS, output, path=path)
        return Exit.DONE
    from local import kernels

    with open(path, "rb") as file:
        # Unmapped with the last view of it: an error on its way up may still hold one.
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    table = kernels.scan_batches(data)
    if by_record:
        _print_records(_place_of(path), data[: table.valid_bytes], count)
    else:
        emit("batches", islice(_batch_rows(table), count), _BATCH_COLUMNS, output, path=path)
    if table.problem is None:
        return Exit.DONE
    if table.is_corrupt:
        raise Corrupt(f"dumping a segment, {table.problem}", path=path, at=table.valid_bytes, size_bytes=len(data))
    session.say(f"the file ends inside a batch: path={path} at={table.valid_bytes} size_bytes={len(data)}")
    return Exit.FINDINGS


def _dump_partition(session: Session, target: str, by_record: bool, count: int | None, output: str) -> int:
    """A partition over both tiers, from its start or from ``@OFFSET``; one run of batches in memory at a time."""
    if "/" not in target:
        expected = "'a .log, .index or .timeindex file, or TOPIC/PARTITION[@OFFSET]'"
        raise InvalidRequest("reading what to dump", target=repr(target), expected=expected)
    partition, offset = parse_partition_at(target)
    with session.manager(read_only=True) as manager:
        reader = manager.reader()
        runs = reader.batches(partition, reader.offsets(partition)[0] if offset is None else offset)
        if by_record:
            left = count
            for run in runs:
                printed = _print_records(partition, run, left)
                if left is not None and (left := left - printed) <= 0:
                    break
        else:
            rows = islice(_rows_of_runs(runs), count)
            emit("batches", rows, _BATCH_COLUMNS, output, topic=partition.topic, partition=partition.partition)
    return Exit.DONE


def _rows_of_runs(runs: Iterable[memoryview]) -> Iterator[Row]:
    from local import kernels

    for run in runs:
        yield from _batch_rows(kernels.scan_batches(run), with_position=False)


def _print_records(partition: TopicPartition, data: memoryview, count: int | None) -> int:
    """JSON lines on stdout; how many."""
    from local import kernels

    printed = 0
    steps = kernels.decode_in_steps(data, include_control=False)
    for record in islice(chain.from_iterable(columns.records() for columns in steps), count):
        sys.stdout.write(json.dumps(as_json(partition, record), ensure_ascii=False) + "\n")
        printed += 1
    return printed


def _dump_index(path: str, count: int | None, output: str) -> int:
    """The entries of an index file. Raises Corrupt when they are not whole or not in order."""
    from local import offset_index, time_index

    parsed = parse_segment_file(os.path.basename(path))
    if parsed is None:
        raise InvalidRequest("dumping an index, the name is not 20 digits and a suffix", path=path)
    base = parsed[0]
    with open(path, "rb") as file:
        data = file.read()
    log_path = path.removesuffix(OFFSET_INDEX) + LOG
    if path.endswith(TIME_INDEX):
        time_index.check(data, path=path)
        rows: list[Row] = [{"timestamp": time, "offset": offset} for time, offset in time_index.entries(data, base)]
        emit("entries", islice(rows, count), _TIME_COLUMNS, output, path=path)
        return Exit.DONE
    log_bytes = os.path.getsize(log_path) if os.path.exists(log_path) else sys.maxsize
    offset_index.check(data, log_bytes, path=path)
    rows = [{"offset": offset, "position": position} for offset, position in offset_index.entries(data, base)]
    emit("entries", islice(rows, count), _INDEX_COLUMNS, output, path=path)
    return Exit.DONE


def _place_of(path: str) -> TopicPartition:
    """The partition that a segment file's directory names; a file elsewhere has none and gets a stand-in."""
    from local.names import parse_partition_directory

    return parse_partition_directory(os.path.basename(os.path.dirname(os.path.abspath(path)))) or TopicPartition("-", 0)


def _batch_rows(table: BatchTable, *, with_position: bool = True) -> Iterator[Row]:
    for at in range(len(table)):
        header = table.row(at)
        yield {
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.record_count,
            "baseSequence": header.base_sequence,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": header.base_timestamp_ms if header.has_delete_horizon else None,
            "position": int(table.positions[at]) if with_position else None,
            "timestampType": "LogAppendTime" if header.timestamp_type else "CreateTime",
            "maxTimestamp": header.max_timestamp_ms,
            "size": header.size_bytes,
            "magic": header.magic,
            "compresscodec": header.codec.name.lower(),
            "crc": header.crc,
        }


_BATCH_COLUMNS = (
    Column("baseOffset", "baseOffset", is_number=True),
    Column("lastOffset", "lastOffset", is_number=True),
    Column("count", "count", is_number=True),
    Column("baseSequence"),
    Column("producerId", "producerId", is_number=True),
    Column("producerEpoch"),
    Column("partitionLeaderEpoch", "epoch", is_number=True),
    Column("isTransactional"),
    Column("isControl", "isControl"),
    Column("deleteHorizonMs"),
    Column("position", "position", is_number=True),
    Column("timestampType", "timestampType"),
    Column("maxTimestamp", "maxTimestamp", is_number=True),
    Column("size", "size", is_number=True),
    Column("magic"),
    Column("compresscodec", "compresscodec"),
    Column("crc", "crc", is_number=True),
)
_INDEX_COLUMNS = (Column("offset", "offset", is_number=True), Column("position", "position", is_number=True))
_TIME_COLUMNS = (Column("timestamp", "timestamp", is_number=True), Column("offset", "offset", is_number=True))
