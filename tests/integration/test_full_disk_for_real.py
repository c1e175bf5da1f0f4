"""A real file system that fills to the last byte under the real daemon while records are appended.

1. The daemon refuses appends, continues uploads and local retention, and reports the problem.
2. It accepts records again once there is space.
3. The same holds after it is killed and started on the full disk.
4. No acknowledged record is missing at the end.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_daemon import IMPATIENT, Daemon, Node, SmallDisk, appending

from local.names import TopicPartition
from tiered.cli.main import invoke
from tiered.demo.s3_endpoint import S3Endpoint
from tiered.tables.remote_tables import open_remote

pytestmark = [pytest.mark.server, pytest.mark.mounts]

TOPICS = {
    "orders": {"remote.storage.enable": "true", "local.retention.ms": "1s"},
    "latest": {"remote.storage.enable": "true", "cleanup.policy": "compact"},
    "here": {},
}
EACH = 30
PROGRAM = ("-c", appending(IMPATIENT))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        found = SmallDisk(tmp_path / "disk", 3 << 20)
    except OSError as error:
        pytest.skip(str(error))
    with found:
        yield found


@pytest.fixture
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as running:
        running.create_bucket("fault-days")
        yield running


class Day:
    """Appends to every topic. Acknowledged records are known by their numbers."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.at = dict.fromkeys(TOPICS, 0)
        self.acked: dict[str, list[int]] = {topic: [] for topic in TOPICS}

    def send(self, daemon: Daemon, times: int = 1) -> int:
        """Number of acknowledged appends."""
        acked = 0
        for _ in range(times):
            for topic in TOPICS:
                is_acked = daemon.append(topic, self.at[topic], EACH)
                self.acked[topic] += range(self.at[topic], self.at[topic] + EACH) if is_acked else ()
                self.at[topic] += EACH
                acked += is_acked
        return acked

    def meets_a_full(self, disk: SmallDisk, daemon: Daemon, is_told: Callable[[], bool]) -> None:
        """Keep the disk full until the problem is reported: space freed by the daemon is filled again."""

        def look() -> bool | None:
            disk.fill()
            self.send(daemon)
            return True if is_told() else None

        daemon.wait_for(look, "it says what is wrong")

    def check(self) -> None:
        with self.node.manager() as manager:
            assert not manager.problems
            for topic, numbers in self.acked.items():
                told = [record.value for record in manager.reader().records(TopicPartition(topic, 0), 0)]
                found = [int((value or b"").split()[1]) for value in told]
                assert found == sorted(found), topic
                if topic == "latest":
                    newest = {number % 5: number for number in numbers}
                    assert set(newest.values()) <= set(found)
                else:
                    assert set(numbers) <= set(found), topic
                    assert len(found) == len(set(found)), topic


def is_trouble(daemon: Daemon) -> bool:
    code, text = daemon.ask("health")
    return code == 503 and "enospc" in text


@pytest.mark.parametrize(
    "way", ["thresholds", pytest.param("to the last byte", marks=pytest.mark.deep("the case of the last byte"))]
)
def test_full_disk_refuses_appends_and_recovers_with_free_space(
    disk: SmallDisk, tmp_path: Path, endpoint: S3Endpoint, way: str
) -> None:
    home = disk.path / "home"
    home.mkdir()
    node = Node(home, endpoint.url)
    least = "200KiB" if way == "thresholds" else "0"
    node.defaults |= {
        "remote.log.copy.disable": "false",
        "log.dir.free.bytes.min": "0",
        "log.dir.append.free.bytes.min": least,
        "log.dir.relief.free.bytes.min": least,
        "file.delete.delay.ms": "200ms",
        "retention.ms": "-1",
    }
    node.configure()
    with node.manager() as manager:
        for topic, settings in TOPICS.items():
            manager.topics.create(topic, 1, settings, now_ms=0)
    day = Day(node)
    with Daemon(node, program=PROGRAM, said=tmp_path / "said") as daemon:
        assert day.send(daemon, 5) == 15
        # it refuses appends, serves reads, reports the problem, and drops copied segments
        day.meets_a_full(disk, daemon, lambda: "enospc" in daemon.words and "refused" in daemon.words)
        # deleted files may free enough space for a while, and then there is no problem
        if way == "thresholds":
            day.meets_a_full(disk, daemon, lambda: is_trouble(daemon))
        day.meets_a_full(disk, daemon, lambda: "the disk is full" in daemon.words)
        assert 'tiered_log_dir_free_bytes{directory="' in daemon.ask("metrics")[1]
        daemon.wait_until_copied("orders")
        daemon.wait_for(lambda: True if len(node.files("orders")) <= 2 else None, "what the bucket has leaves the disk")
        disk.fill()
        day.send(daemon, 2)
        # it recovers by itself
        disk.make_room()
        daemon.wait_for(lambda: True if day.send(daemon) == 3 else None, "it takes records again")
        daemon.wait_until_well()
        lines = [line for line in daemon.words.splitlines() if " ERROR " in line]
        assert len(lines) < 20, "the same problem must not be logged repeatedly"
        # kill and start on the full disk
        disk.fill()
        day.send(daemon)
        daemon.process.kill()
    disk.fill()
    with Daemon(node, program=PROGRAM, said=tmp_path / "said-2") as daemon:
        # a start frees space itself (trimmed indexes, files scheduled for deletion), so the disk is filled again
        day.meets_a_full(disk, daemon, lambda: "enospc" in daemon.words)
        disk.make_room()
        daemon.wait_for(lambda: True if day.send(daemon) == 3 else None, "it takes records again")
        daemon.wait_until_well()
        assert day.send(daemon, 2) == 6
        daemon.wait_until_copied("orders")
        assert daemon.end(signal.SIGTERM) == 0, daemon.words
        assert "Traceback" not in daemon.words
    assert not list(home.glob("data/*/*.cleaned"))
    day.check()
    with open_remote("s3://fault-days/p", endpoint.options()) as bucket:
        found = [record.value for record in bucket.reader().records(TopicPartition("orders", 0), 0)]
        numbers = {int((value or b"").split()[1]) for value in found}
        assert set(day.acked["orders"][: -3 * EACH]) <= numbers


@pytest.fixture
def two_disks(disk: SmallDisk, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """A node with one directory on a disk with free space and one on a disk without a free byte."""
    (tmp_path / "tiered.toml").write_text(
        f'[local]\ndirs = ["{tmp_path}/data", "{disk.path}/data"]\n'
        '[defaults]\n"log.dir.free.bytes.min" = "0"\n"log.dir.append.free.bytes.min" = "0"\n'
    )
    (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(500)))
    words = ["-C", str(tmp_path)]
    assert invoke([*words, "topic", "create", "t", "-p", "2"]) == 0
    disk.fill()
    capfd.readouterr()
    return words


def test_append_with_another_disk_full_is_applied_once_and_reported(
    two_disks, disk: SmallDisk, tmp_path: Path, capfd
) -> None:
    """Holds for the partition that is on the disk with free space."""
    (here,) = (int(path.name[-1]) for path in (tmp_path / "data").glob("t-?"))
    assert invoke([*two_disks, "append", f"t/{here}", str(tmp_path / "lines"), "-o", "json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)["appended"]
    assert (row["base_offset"], row["next_offset"]) == (0, 500)
    assert invoke([*two_disks, "run", "--once"]) == 0
    assert invoke([*two_disks, "append", f"t/{1 - here}", str(tmp_path / "lines")]) == 1
    assert "the disk is full" in capfd.readouterr().err
    disk.make_room()
    assert invoke([*two_disks, "run", "--once"]) == 0
    assert "checkpoints" not in capfd.readouterr().err
    assert invoke([*two_disks, "consume", f"t/{here}", "-f", "%v\\n"]) == 0
    assert capfd.readouterr().out.split() == [str(number) for number in range(500)]


def test_topic_create_with_a_full_disk_reports_the_created_partitions(two_disks, disk: SmallDisk, capfd) -> None:
    assert invoke([*two_disks, "topic", "create", "new", "-p", "4"]) == 1
    told = capfd.readouterr()
    assert "created new: partitions=4" in told.err
    assert "the next start initializes them" in told.err
    assert "the disk is full" in told.err
    disk.make_room()
    assert invoke([*two_disks, "run", "--once"]) == 0
    assert invoke([*two_disks, "status", "--check"]) == 0
