"""Directories of a real broker, stopped cleanly or killed: opened, recovered and read by this project."""

import shutil

import pytest
from written_by_kafka import T0, TOPICS

from local import names
from local.log.producer_state import decode_snapshot
from local.logdirs.log_dir import LogDirectory
from local.names import TopicPartition
from local.records.isolation import Isolation
from local.settings import LogSettings
from local.storage import DiskStorage
from local.verify import directories as verifying
from local.verify.directories import VerifyOptions
from local.verify.findings import Severity

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("topic", TOPICS)
def test_every_record_equals_that_of_kafka_clients(opened, topic):
    found, logs = opened
    assert list(logs[topic].records(logs[topic].log_start_offset)) == found.records[topic]


@pytest.mark.parametrize("topic", TOPICS)
def test_committed_read_equals_that_of_kafka_clients(opened, topic):
    found, logs = opened
    log = logs[topic]
    assert log.last_stable_offset == found.stable[topic]
    assert list(log.records(log.log_start_offset, isolation=Isolation.READ_COMMITTED)) == found.committed[topic]


@pytest.mark.parametrize("topic", TOPICS)
def test_log_start_and_end_offsets_equal_those_of_the_broker(opened, topic):
    found, logs = opened
    assert (logs[topic].log_start_offset, logs[topic].next_offset) == found.bounds[topic]


def test_internal_topics_are_opened(opened):
    _, logs = opened
    for topic in ("__cluster_metadata", "__transaction_state"):
        assert logs[topic].next_offset > 0
        assert list(logs[topic].columns(0))


def test_recovered_producer_state_equals_that_of_kafka(written_by_kafka, tmp_path):
    """The directory of the killed broker is recovered by both. The producer snapshots at the log end are equal."""
    shutil.copytree(written_by_kafka.crashed.root, tmp_path / "data")
    directory = LogDirectory(DiskStorage(), str(tmp_path / "data"))
    logs = [directory.open_log(TopicPartition(topic, 0), LogSettings(), now_ms=T0) for topic in TOPICS]
    ends = [names.segment_file(log.next_offset, names.PRODUCER_SNAPSHOT) for log in logs]
    directory.close()
    seen = 0
    for topic, name in zip(TOPICS, ends, strict=True):
        ours, theirs = (producers_in(r / f"{topic}-0" / name) for r in (tmp_path / "data", written_by_kafka.clean.root))
        assert ours == theirs, topic
        seen += len(ours)
    assert seen > 5


def producers_in(path):
    """Entries by producer id. A log without producers may have no file, which gives no entries."""
    found = decode_snapshot(path.read_bytes()) if path.exists() else []
    return sorted(found, key=lambda entry: entry.producer_id)


@pytest.mark.parametrize("deep", [False, True], ids=["plain", "deep"])
def test_verify_of_the_directories_of_a_stopped_broker_has_no_warnings(written_by_kafka, deep):
    """Cleaned topics, transactions, a raised log start offset and the internal topics, each alone and as a log
    directory."""
    root = written_by_kafka.clean.root
    directories = sorted({path.parent for path in root.glob("*/*.log")})
    assert {f"{topic}-0" for topic in TOPICS} < {each.name for each in directories}
    options = VerifyOptions(deep=deep)
    found = [each for path in (root, *directories) for each in verifying.verify(DiskStorage(), str(path), options)]
    assert [each for each in found if each.severity > Severity.INFO] == []
