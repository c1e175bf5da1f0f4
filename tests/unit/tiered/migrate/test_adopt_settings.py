"""Topic settings of a broker, read from its metadata log, and the operator's overrides."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from local.errors import Corrupt, InvalidRequest
from local.format.record import Record
from local.log import Log
from local.names import LOG, TopicPartition, segment_file
from local.settings import LogSettings
from local.storage import DiskStorage
from policies.tier_relation import BrokerRetention
from tiered.cli.main import invoke
from tiered.migrate.broker import METADATA, AdoptSettings, BrokerTopics

NOW = 1_800_000_000_000


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _text(value: str | None) -> bytes:
    return b"\x00" if value is None else _number(len(value.encode()) + 1) + value.encode()


def _record(kind: int, body: bytes, version: int = 0) -> Record:
    """A metadata record: frame version, api key, version, fields, no tagged fields."""
    return Record(None, _number(1) + _number(kind) + _number(version) + body + b"\x00", NOW)


def topic(name: str, topic_id: uuid.UUID) -> Record:
    return _record(2, _text(name) + topic_id.bytes)


def config(name: str, key: str, value: str | None, of: int = 2) -> Record:
    return _record(4, bytes([of]) + _text(name) + _text(key) + _text(value))


def removed(topic_id: uuid.UUID) -> Record:
    return _record(9, topic_id.bytes)


def partition(number: int, topic_id: uuid.UUID, replicas: int, version: int = 0) -> Record:
    ids = b"".join(at.to_bytes(4, "big") for at in range(replicas))
    several = _number(replicas + 1) + ids
    # in-sync replicas, none removed or added, leader, epochs
    rest = several + b"\x01\x01" + (7).to_bytes(4, "big") + bytes(8)
    return _record(3, number.to_bytes(4, "big") + topic_id.bytes + several + rest, version)


def partition_change(number: int, topic_id: uuid.UUID, replicas: int | None) -> Record:
    """Tagged fields: in-sync replicas (0), and replicas (2) where they change."""
    isr = _number(2) + bytes(4)
    tagged = [b"\x00" + _number(len(isr)) + isr]
    if replicas is not None:
        several = _number(replicas + 1) + bytes(4 * replicas)
        tagged.append(b"\x02" + _number(len(several)) + several)
    body = _number(1) + _number(5) + _number(0) + number.to_bytes(4, "big") + topic_id.bytes
    return Record(None, body + _number(len(tagged)) + b"".join(tagged), NOW)


class Controller:
    """The writer of the metadata log."""

    def __init__(self, root: Path) -> None:
        self.directory = str(root / METADATA)
        self.disk = DiskStorage()
        self.disk.make_directory(self.directory)
        settings = LogSettings(segment_bytes=1 << 20, index_interval_bytes=200, batch_bytes=300)
        name = TopicPartition("__cluster_metadata", 0)
        self.log = Log.open(self.disk, self.directory, name, settings, now_ms=NOW)

    def write(self, *records: Record) -> None:
        self.log.append(list(records), now_ms=NOW)

    def snapshot(self, *records: Record) -> None:
        """Writes a checkpoint with these records at the end of the log, and deletes the log below it."""
        self.log.roll(now_ms=NOW)
        end = self.log.next_offset
        home = Path(self.directory).parent / "scratch"
        self.disk.make_directory(str(home))
        other = Log.open(self.disk, str(home), TopicPartition("s", 0), LogSettings(), now_ms=NOW)
        other.append(list(records), now_ms=NOW)
        body = (home / segment_file(0, LOG)).read_bytes()
        (Path(self.directory) / f"{end:020d}-0000000001.checkpoint").write_bytes(body)
        self.log.drop_before(end, now_ms=NOW, delay_ms=0, raises_log_start=True)
        self.log.remove_deleted(NOW + 1)


A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def test_each_refresh_lists_the_directory_once(tmp_path: Path) -> None:
    """Names of checkpoints and of logs are of one moment: a log deleted in between would hide a hole."""
    controller, storage = Controller(tmp_path), DiskStorage()
    controller.write(topic("t", A))
    lists, list_files = [], storage.list_files
    storage.list_files = lambda path: (lists.append(path), list_files(path))[1]  # type: ignore[method-assign]
    assert BrokerTopics(storage, str(tmp_path)).refresh()
    assert len(lists) == 1


def test_topic_settings_follow_the_metadata_log_of_the_controllers(tmp_path: Path) -> None:
    controller, found = Controller(tmp_path), BrokerTopics(DiskStorage(), str(tmp_path))
    controller.write(topic("t", A), config("t", "cleanup.policy", "compact"), config("t", "retention.ms", "60000"))
    assert found.refresh()
    assert found.of("t") == {"cleanup.policy": "compact", "retention.ms": "60000"}
    assert found.of("other") == {}
    controller.write(config("t", "retention.ms", None), config("t", "cleanup.policy", "delete"))
    controller.log.roll(now_ms=NOW)
    controller.write(config("1", "log.retention.ms", "5", of=4), _record(26, b""), _record(4, b"?", version=7))
    found.refresh()
    assert found.of("t") == {"cleanup.policy": "delete"}
    controller.write(config("t", "retention.ms", "7"), removed(A))
    found.refresh()
    assert found.of("t") == {}
    controller.write(topic("t", B))
    found.refresh()
    assert found.of("t") == {}, "a new topic must not have settings of a deleted topic with its name"


def test_unknown_settings_and_those_of_the_brokers_own_tier_are_left_out(tmp_path: Path) -> None:
    controller, found = Controller(tmp_path), BrokerTopics(DiskStorage(), str(tmp_path))
    controller.write(
        topic("t", A),
        config("t", "remote.storage.enable", "true"),
        config("t", "local.retention.ms", "1000"),
        config("t", "leader.replication.throttled.replicas", "*"),
        config("t", "cleanup.policy", "something new"),
        config("t", "segment.bytes", "1048576"),
    )
    found.refresh()
    assert found.of("t") == {"segment.bytes": "1048576"}


@pytest.mark.parametrize("had_read_before", [False, True])
def test_settings_are_read_from_a_checkpoint_after_the_log_was_truncated(tmp_path: Path, had_read_before: bool) -> None:
    controller, found = Controller(tmp_path), BrokerTopics(DiskStorage(), str(tmp_path))
    controller.write(topic("t", A), config("t", "retention.ms", "1"), topic("u", B), config("u", "retention.ms", "2"))
    if had_read_before:
        found.refresh()
    controller.write(removed(B), config("t", "retention.ms", "3"))
    controller.snapshot(topic("t", A), config("t", "retention.ms", "3"))
    controller.write(config("t", "retention.bytes", "4"))
    found.refresh()
    assert found.of("t") == {"retention.ms": "3", "retention.bytes": "4"}
    assert found.of("u") == {}


def test_torn_tail_of_the_metadata_log_is_read_when_it_is_complete(tmp_path: Path) -> None:
    controller, found = Controller(tmp_path), BrokerTopics(DiskStorage(), str(tmp_path))
    controller.write(topic("t", A), config("t", "retention.ms", "1"))
    file = Path(controller.directory) / segment_file(0, LOG)
    whole = file.read_bytes()
    controller.write(config("t", "retention.ms", "2"))
    more = file.read_bytes()
    for length in range(len(whole), len(more)):
        file.write_bytes(more[:length])
        found.refresh()
        assert found.of("t") == {"retention.ms": "1"}
    file.write_bytes(more)
    found.refresh()
    assert found.of("t") == {"retention.ms": "2"}


def test_missing_metadata_log_is_reported_and_an_invalid_one_is_corrupt(tmp_path: Path) -> None:
    assert not BrokerTopics(DiskStorage(), str(tmp_path)).refresh()
    controller = Controller(tmp_path)
    controller.write(_record(4, b"\x02\x7f"))
    with pytest.raises(Corrupt, match="a metadata record of the broker, it is truncated"):
        BrokerTopics(DiskStorage(), str(tmp_path)).refresh()


def test_operator_settings_outrank_the_broker_and_topic_ones_outrank_general_ones(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    controller.write(topic("t", A), config("t", "retention.ms", "1"), config("t", "cleanup.policy", "compact"))
    options = {"retention.ms": "2", "t:retention.ms": "3", "u:cleanup.policy": "compact"}
    told = AdoptSettings(DiskStorage(), str(tmp_path), options)
    assert told.of("t") == {"retention.ms": "3", "cleanup.policy": "compact"}
    assert told.of("u") == {"retention.ms": "2", "cleanup.policy": "compact"}
    assert told.of("v") == {"retention.ms": "2"}
    for wrong in ({"retention.mss": "1"}, {"t:retention.ms": "soon"}, {"remote.log.copier.thread.pool.size": "1"}):
        with pytest.raises(InvalidRequest):
            AdoptSettings(DiskStorage(), str(tmp_path), wrong)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_replica_count_of_a_partition_follows_the_metadata_log(tmp_path: Path, version: int) -> None:
    controller, found = Controller(tmp_path), BrokerTopics(DiskStorage(), str(tmp_path))
    controller.write(topic("t", A), partition(0, A, 1, version), partition(1, A, 3, version))
    found.refresh()
    assert [found.replicas(TopicPartition("t", at)) for at in range(3)] == [1, 3, None]
    controller.write(partition_change(0, A, 2), partition_change(1, A, None))
    found.refresh()
    assert [found.replicas(TopicPartition("t", at)) for at in range(2)] == [2, 3]
    controller.write(removed(A), topic("t", B), partition(0, B, 1, version))
    found.refresh()
    assert [found.replicas(TopicPartition("t", at)) for at in range(2)] == [1, None]
    assert found.replicas(TopicPartition("other", 0)) is None


def test_retention_of_a_partition_is_that_of_the_broker(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    controller.write(topic("t", A), partition(0, A, 3), config("t", "retention.ms", "60000"))
    told = AdoptSettings(DiskStorage(), str(tmp_path), {"retention.ms": "365d"})
    assert told.retention(TopicPartition("t", 0)) == BrokerRetention(
        retention_ms=60000, retention_bytes=None, replicas=3
    )
    assert told.retention(TopicPartition("u", 0)).retention_ms == 7 * 24 * 3_600_000


# --- without the broker's metadata ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [[], ["--dry-run"], ["--once"]])
def test_adoption_without_metadata_or_cleanup_policy_is_refused(form: list[str], tmp_path: Path, capfd) -> None:
    """A second directory of log.dirs has no metadata log.
    Its compacted topics would be treated as plain ones."""
    from test_adopting import Broker

    broker, bucket = Broker(tmp_path), tmp_path / "bucket"
    broker.send(300)
    broker.settle()
    bucket.mkdir()
    words = ["adopt", broker.root, "--remote", bucket.as_uri(), "--work", str(tmp_path / "w"), *form]
    assert invoke(words) == 2
    said = capfd.readouterr().err
    assert "its cleanup.policy is unknown" in said
    assert "--metadata" in said
    assert "topic=t" in said
    assert list(bucket.iterdir()) == []


@pytest.mark.parametrize("by", ["all", "one", "metadata", "file"])
def test_adoption_without_metadata_is_allowed_when_the_cleanup_policy_is_given(by: str, tmp_path: Path) -> None:
    from test_adopting import Broker

    broker, bucket = Broker(tmp_path), tmp_path / "bucket"
    broker.send(300)
    broker.settle()
    bucket.mkdir()
    said = {
        "all": ["-X", "cleanup.policy=delete"],
        "one": ["-X", "t:cleanup.policy=compact"],
        "metadata": ["--metadata", str(tmp_path / "first")],
        "file": [],
    }[by]
    if by == "metadata":
        (tmp_path / "first").mkdir()
        Controller(tmp_path / "first").write(topic("t", A))
    bucket_words = ["--remote", bucket.as_uri()]
    if by == "file":
        bucket_words = []
        (tmp_path / "tiered.toml").write_text(
            f'[remote]\nurl = "{bucket.as_uri()}"\n[topics."t"]\n"cleanup.policy" = "compact"\n'
        )
    words = ["-C", str(tmp_path), "adopt", broker.root, *bucket_words, "--work", str(tmp_path / "w"), "--once", *said]
    assert invoke(words) == 0


def test_topic_created_later_without_a_cleanup_policy_is_a_problem_of_its_own(tmp_path: Path) -> None:
    told = AdoptSettings(DiskStorage(), str(tmp_path), {"old:cleanup.policy": "delete"})
    assert told.effective("old")["cleanup.policy"] == "delete"
    with pytest.raises(InvalidRequest, match=r"its cleanup\.policy is unknown"):
        told.effective("new")
