"""Directories written by this project, loaded by a real broker: read, recovered, appended to, and opened again here."""

import re
import shutil

import pytest
from loaded_by_kafka import APPENDED, CLAIMS, CONTINUED, KINDS, NOW_MS, SETTINGS, idempotent
from test_kafka_dump import batch_rows, told_of_records

from local import kernels
from local.errors import OutOfOrderSequence, ProducerFenced
from local.log.producer_state import decode_snapshot
from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition
from local.storage import DiskStorage

NO_ERROR, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH = 0, 45, 47  # Kafka's error codes

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("topic", KINDS)
def test_kafka_clients_read_every_record(loaded_by_kafka, loaded, topic):
    assert loaded.found.records[topic] == loaded_by_kafka.kept.records[topic]


@pytest.mark.parametrize("topic", KINDS)
def test_committed_reads_of_kafka_clients_equal_those_of_this_project(loaded_by_kafka, loaded, topic):
    assert loaded.found.stable[topic] == loaded_by_kafka.kept.stable[topic]
    assert loaded.found.committed[topic] == loaded_by_kafka.kept.committed[topic]


@pytest.mark.parametrize("topic", KINDS)
def test_broker_has_the_same_log_start_and_end_offsets(loaded_by_kafka, loaded, topic):
    assert loaded.found.bounds[topic] == loaded_by_kafka.kept.bounds[topic]


def test_console_consumer_prints_every_record(loaded_by_kafka, loaded):
    ours = [line for records in loaded_by_kafka.kept.committed.values() for line in map(printed, records)]
    assert sorted(loaded.console.split("<.>\n")[:-1]) == sorted(ours)


def printed(record):
    def text(data):
        return "<null>" if data is None else data.decode("utf-8", "surrogateescape")

    kind = "LogAppendTime" if record.timestamp_type else "CreateTime"
    headers = "<,>".join(f"{key}:{text(value)}" for key, value in record.headers) or "NO_HEADERS"
    start = f"{kind}:{record.timestamp_ms}<|>Partition:0<|>Offset:{record.offset}"
    return "<|>".join((start, headers, text(record.key), text(record.value)))


def test_dump_tool_of_kafka_reads_equal_batch_fields(loaded_by_kafka):
    logs = {path: dumped for path, dumped in loaded_by_kafka.dumps.items() if path.suffix == ".log"}
    assert len(logs) > len(KINDS)
    for path, dumped in logs.items():
        data = path.read_bytes()
        assert batch_rows(kernels.scan_batches(data)) == dumped.batches, path
        assert told_of_records(data) == [
            (row["offset"], row.get("CreateTime", row.get("LogAppendTime")), row["keySize"], row["valueSize"])
            for row in dumped.records
        ], path


def test_dump_tool_of_kafka_finds_no_problem_in_the_indexes(loaded_by_kafka):
    told = loaded_by_kafka.index_checks
    assert not re.search(r"mismatch|[Nn]on-consecutive|[Ff]ound|invalid|out of order|missing", told), told
    passed = set(re.findall(r"(\S+) passed sanity check", told))
    indexes = [path for path in loaded_by_kafka.dumps if path.suffix in (".index", ".timeindex")]
    assert {str(path) for path in indexes if path.stat().st_size} <= passed


def test_indexes_rebuilt_by_kafka_are_equal_byte_for_byte(loaded_by_kafka):
    compared = 0
    for path in loaded_by_kafka.root.glob("our-*/*.index"):
        theirs = loaded_by_kafka.recovered.root / path.parent.name / path.name
        sealed = path.with_suffix(".log").read_bytes() == theirs.with_suffix(".log").read_bytes()
        if not sealed:
            continue  # the broker appended to it
        for suffix in (".index", ".timeindex"):
            assert path.with_suffix(suffix).read_bytes() == theirs.with_suffix(suffix).read_bytes(), path
        compared += 1
    assert compared > len(KINDS)


def test_broker_logs_no_warning_about_the_logs(loaded):
    allowed = (
        # The broker's own high watermark checkpoint does not know a log start offset raised by this project.
        "Non-monotonic update of high watermark",
        "Could not find offset index file",  # recovery rebuilds it
    )
    about_ours = [line for line in loaded.warnings if "our-" in line]
    assert [line for line in about_ours if not any(word in line for word in allowed)] == []


@pytest.mark.parametrize("topic", KINDS)
def test_broker_appends_after_the_last_offset(loaded_by_kafka, loaded, topic):
    _, end = loaded_by_kafka.kept.bounds[topic]
    kept = len(loaded_by_kafka.kept.records[topic])
    added = loaded.after.records[topic][kept:]
    assert loaded.after.records[topic][:kept] == loaded.found.records[topic]
    expected = [*CONTINUED, *APPENDED] if topic == "our-idempotent" else APPENDED
    assert [record.offset for record in added] == list(range(end, end + len(expected)))
    assert [record[3:] for record in added] == [(r.key, r.value, r.headers) for r in expected]


def test_broker_has_the_state_of_the_producers(loaded_by_kafka, loaded):
    """From the producer snapshot after a clean shutdown, from the batches after a recovery."""
    _, end = loaded_by_kafka.kept.bounds["our-idempotent"]
    assert loaded.answers == {
        "next": (NO_ERROR, end),
        "next again": (NO_ERROR, end),
        "gap": (OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        "old epoch": (INVALID_PRODUCER_EPOCH, -1),
    }


def test_producer_that_continued_at_the_broker_has_its_state_here(loaded_by_kafka, loaded, tmp_path):
    _, end = loaded_by_kafka.kept.bounds["our-idempotent"]
    shutil.copytree(loaded.root, tmp_path / "data")
    directory = LogDirectory(DiskStorage(), str(tmp_path / "data"))
    log = directory.open_log(TopicPartition("our-idempotent", 0), SETTINGS, now_ms=NOW_MS)
    next_offset = log.next_offset
    assert log.append(CONTINUED, now_ms=NOW_MS, producer=CLAIMS["next again"]).base_offset == end
    with pytest.raises(OutOfOrderSequence):
        log.append(CONTINUED, now_ms=NOW_MS, producer=CLAIMS["gap"])
    with pytest.raises(ProducerFenced):
        log.append(CONTINUED, now_ms=NOW_MS, producer=CLAIMS["old epoch"])
    assert log.append(CONTINUED, now_ms=NOW_MS, producer=idempotent(0, 25)).base_offset == next_offset
    directory.abandon()


def test_transaction_index_rebuilt_by_kafka_is_equal_byte_for_byte(loaded_by_kafka):
    ours = sorted(loaded_by_kafka.root.glob("our-*/*.txnindex"))
    assert len(ours) > 1
    for path in ours:
        theirs = loaded_by_kafka.recovered.root / path.parent.name / path.name
        assert path.read_bytes() == theirs.read_bytes(), path


def test_producer_snapshots_rebuilt_by_kafka_are_equal(loaded_by_kafka):
    compared = 0
    for path in loaded_by_kafka.root.glob("our-*/*.snapshot"):
        theirs = loaded_by_kafka.recovered.root / path.parent.name / path.name
        if theirs.exists():
            said = [decode_snapshot(each.read_bytes()) for each in (path, theirs)]
            ours, kafkas = (sorted(each, key=lambda entry: entry.producer_id) for each in said)
            assert ours == kafkas, path
            compared += len(ours)
    assert compared > 3


@pytest.mark.parametrize("topic", KINDS)
def test_records_appended_by_the_broker_are_read_here(loaded, reopened, topic):
    log = reopened[topic]
    assert list(log.records(log.log_start_offset)) == loaded.after.records[topic]
    assert (log.log_start_offset, log.next_offset) == loaded.after.bounds[topic]
    assert log.last_stable_offset == loaded.after.stable[topic]


def test_log_returned_by_the_broker_accepts_appends_here(loaded, tmp_path):
    shutil.copytree(loaded.root, tmp_path / "data")
    directory = LogDirectory(DiskStorage(), str(tmp_path / "data"))
    log = directory.open_log(TopicPartition("our-mixed", 0), SETTINGS, now_ms=NOW_MS)
    added = log.append(APPENDED, now_ms=NOW_MS)
    before = loaded.after.records["our-mixed"]
    assert added.base_offset == before[-1].offset + 1
    assert [r.value for r in log.records(0)] == [r.value for r in before] + [r.value for r in APPENDED]
    directory.abandon()
