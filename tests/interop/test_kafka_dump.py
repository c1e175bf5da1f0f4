"""Kafka's dump tool and this project agree on every file written by a broker: batches, indexes, snapshots."""

import pytest
from click.testing import CliRunner

from local import kernels, names
from local.index import offset_index, time_index, txn_index
from local.index.index_files import build_indexes
from local.log import checkpoints
from local.log.producer_state import decode_snapshot
from local.storage import DiskStorage
from tiered.cli.main import main

pytestmark = pytest.mark.kafka

SEQUENCES = 1 << 31
PLAIN = ("baseOffset: ", "offset: ", "timestamp: ", "producerId: ")


def files_of(written, suffix):
    found = {path: dumped for path, dumped in written.dumps.items() if path.suffix == suffix}
    assert found, f"no {suffix} file was dumped"
    return found.items()


def base_of(path):
    return names.parse_segment_file(path.name)[0]


def batch_rows(table):
    """A `BatchTable` under the names of the dump tool."""
    rows = []
    for at, position in enumerate(table.positions.tolist()):
        header = table.row(at)
        last = (header.base_sequence + header.last_offset_delta) % SEQUENCES if header.base_sequence >= 0 else -1
        rows.append(
            {
                "baseOffset": header.base_offset,
                "lastOffset": header.last_offset,
                "count": header.record_count,
                "baseSequence": header.base_sequence,
                "lastSequence": last,
                "producerId": header.producer_id,
                "producerEpoch": header.producer_epoch,
                "partitionLeaderEpoch": header.leader_epoch,
                "isTransactional": header.is_transactional,
                "isControl": header.is_control,
                "deleteHorizonMs": header.base_timestamp_ms if header.has_delete_horizon else None,
                "position": position,
                "LogAppendTime" if header.timestamp_type else "CreateTime": header.max_timestamp_ms,
                "size": header.size_bytes,
                "magic": header.magic,
                "compresscodec": header.codec.name.lower(),
                "crc": header.crc,
                "isvalid": True,
            }
        )
    return rows


def test_every_field_of_every_batch_equals_kafkas(written_by_kafka):
    kinds = set()
    for path, dumped in files_of(written_by_kafka, ".log"):
        table = kernels.scan_batches(path.read_bytes())
        assert table.problem is None
        assert batch_rows(table) == dumped.batches, path
        for row in dumped.batches:
            kinds |= {row["compresscodec"]} | {name for name in row if row[name] is True}
            kinds |= {"deleteHorizonMs"} if row["deleteHorizonMs"] is not None else set()
            kinds |= {"empty"} if row["count"] == 0 else set()
    # Kinds of batches without which the tests would prove too little.
    assert kinds >= {
        "none",
        "gzip",
        "snappy",
        "lz4",
        "zstd",
        "isTransactional",
        "isControl",
        "deleteHorizonMs",
        "empty",
    }


def told_of_records(data):
    """(offset, timestamp, key size, value size) of every record, including control records."""
    rows = []
    for columns in kernels.decode_in_steps(data, include_control=True):
        told = (columns.offsets, columns.timestamps, columns.key_lengths, columns.value_lengths)
        rows += zip(*(column.tolist() for column in told), strict=True)
    return rows


def test_offset_timestamp_and_sizes_of_every_record_equal_kafkas(written_by_kafka):
    for path, dumped in files_of(written_by_kafka, ".log"):
        assert told_of_records(path.read_bytes()) == [
            (row["offset"], row.get("CreateTime", row.get("LogAppendTime")), row["keySize"], row["valueSize"])
            for row in dumped.records
        ], path


def test_offset_and_time_indexes_equal_the_dump_of_kafka(written_by_kafka):
    for path, dumped in files_of(written_by_kafka, ".index"):
        told = [(row["offset"], row["position"]) for row in dumped.entries]
        assert offset_index.entries(path.read_bytes(), base_of(path)) == told, path
    for path, dumped in files_of(written_by_kafka, ".timeindex"):
        told = [(row["timestamp"], row["offset"]) for row in dumped.entries]
        assert time_index.entries(path.read_bytes(), base_of(path)) == told, path


def test_rebuilt_indexes_equal_kafkas_byte_for_byte(written_by_kafka):
    for path, _ in files_of(written_by_kafka, ".log"):
        if path.parent.name.startswith("__"):
            continue  # their index intervals differ
        interval = 4096 if path.parent.name.startswith(("console", "performance", "empty")) else 700
        made = build_indexes(kernels.scan_batches(path.read_bytes()), base_of(path), interval)
        assert (bytes(made.offset), bytes(made.time)) == (
            path.with_suffix(".index").read_bytes(),
            path.with_suffix(".timeindex").read_bytes(),
        ), path


def test_aborted_transactions_equal_the_dump_of_kafka(written_by_kafka):
    for path, dumped in files_of(written_by_kafka, ".txnindex"):
        fields = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
        ours = [
            (each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset)
            for each in txn_index.entries(path.read_bytes())
        ]
        assert ours == [tuple(row[name] for name in fields) for row in dumped.entries], path


def test_producer_snapshots_equal_the_dump_of_kafka(written_by_kafka):
    seen = 0
    for path, dumped in files_of(written_by_kafka, ".snapshot"):
        ours = [
            {
                "producerId": each.producer_id,
                "producerEpoch": each.producer_epoch,
                "coordinatorEpoch": each.coordinator_epoch,
                "currentTxnFirstOffset": None if each.transaction_first_offset < 0 else each.transaction_first_offset,
                "lastTimestamp": each.timestamp_ms,
                # The tool omits these for a producer without a remembered batch.
                **({"lastSequence": each.last_sequence} if each.last_offset >= 0 else {}),
                **({"lastOffset": each.last_offset} if each.last_offset >= 0 else {}),
                **({"offsetDelta": each.offset_delta} if each.last_offset >= 0 else {}),
            }
            for each in decode_snapshot(path.read_bytes())
        ]
        derived = ("firstSequence", "timestamp")
        assert ours == [{name: row[name] for name in row if name not in derived} for row in dumped.entries], path
        seen += len(ours)
    assert seen, "some snapshot must have a producer"


def test_leader_epochs_begin_at_the_offsets_of_kafkas_checkpoint(written_by_kafka):
    clean = written_by_kafka.clean
    for checkpoint in clean.root.glob("*/leader-epoch-checkpoint"):
        topic = names.parse_partition_directory(checkpoint.parent.name).topic
        start = clean.bounds[topic][0] if topic in clean.bounds else 0
        first_of = {}
        for path, dumped in written_by_kafka.dumps.items():
            for row in dumped.batches if path.parent == checkpoint.parent else ():
                epoch, offset = row["partitionLeaderEpoch"], max(row["baseOffset"], start)
                first_of[epoch] = min(first_of.get(epoch, offset), offset)
        read = dict(checkpoints.read_epochs(DiskStorage(), str(checkpoint)))
        assert first_of.keys() <= read.keys()
        # Compaction may have removed the first batch of an epoch.
        assert all(read[epoch] <= offset for epoch, offset in first_of.items()), checkpoint


def test_tiered_dump_prints_the_lines_of_kafkas_tool(written_by_kafka):
    runner, compared = CliRunner(), 0
    for path, dumped in written_by_kafka.dumps.items():
        deep = ["--deep-iteration", "--print-data-log"] if path.suffix == ".log" else []
        done = runner.invoke(main, ["dump", str(path), *deep, "-o", "text"], catch_exceptions=False)
        assert done.exit_code == 0, (path, done.output)
        ours, theirs = lines_of(done.stdout), lines_of("\n".join(dumped.lines))
        if path.parent.name.startswith("__"):
            # Their records are binary, which the two tools print differently. The same holds for KRaft's control
            # records.
            ours, theirs = ([line for line in told if line.startswith(PLAIN)] for told in (ours, theirs))
        assert ours == theirs, path
        compared += len(ours)
    assert compared > 5_000


def lines_of(text):
    """The printed lines of a file's content. Headings differ by the kind of file."""
    return [
        line.rstrip()
        for line in text.split("\n")
        if line and not line.startswith("Dumping ") and "is empty" not in line
    ]
