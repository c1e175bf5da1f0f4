"""Directories written by a real broker, stopped in order or killed: opened, recovered and read by us."""

import shutil

import pytest
from written_by_kafka import T0, TOPICS

from local import names
from local.log import producer_snapshot
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
def test_every_record_is_read_as_kafkas_clients_read_it(opened, topic):
    found, logs = opened
    assert list(logs[topic].records(logs[topic].log_start_offset)) == found.records[topic]


@pytest.mark.parametrize("topic", TOPICS)
def test_a_committed_read_is_what_kafkas_clients_are_given(opened, topic):
    found, logs = opened
    log = logs[topic]
    assert log.last_stable_offset == found.stable[topic]
    assert list(log.records(log.log_start_offset, isolation=Isolation.READ_COMMITTED)) == found.committed[topic]


@pytest.mark.parametrize("topic", TOPICS)
def test_the_log_starts_and_ends_where_the_broker_says(opened, topic):
    found, logs = opened
    assert (logs[topic].log_start_offset, logs[topic].next_offset) == found.bounds[topic]


def test_internal_topics_are_opened_too(opened):
    _, logs = opened
    for topic in ("__cluster_metadata", "__transaction_state"):
        assert logs[topic].next_offset > 0
        assert list(logs[topic].columns(0))


def test_what_we_recover_of_producers_is_what_kafka_recovers(written_by_kafka, tmp_path):
    """The killed broker's directory, recovered by both: the snapshots at the log end say the same."""
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
    """By producer id; none where there is no file: a log without producers needs none."""
    found = producer_snapshot.decode(path.read_bytes()) if path.exists() else []
    return sorted(found, key=lambda entry: entry.producer_id)


@pytest.mark.parametrize("deep", [False, True], ids=["plain", "deep"])
def test_verify_of_a_stopped_brokers_directories_raises_no_warning(written_by_kafka, deep):
    """Cleaned topics, transactions, a raised log start and the internal topics, one by one and as a log directory."""
    root = written_by_kafka.clean.root
    directories = sorted({path.parent for path in root.glob("*/*.log")})
    assert {f"{topic}-0" for topic in TOPICS} < {each.name for each in directories}
    options = VerifyOptions(deep=deep)
    found = [each for path in (root, *directories) for each in verifying.verify(DiskStorage(), str(path), options)]
    assert [each for each in found if each.severity > Severity.INFO] == []
