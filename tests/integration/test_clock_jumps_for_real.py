"""The real daemon under a wall clock that is set ahead ten years, back a day, or back to 1970.

The clock changes while the daemon runs and across restarts. The S3 server is another process with a correct clock. By
the wrong clock, retention, grace periods and delays would be over, and segments would be due to roll. The daemon must
do none of this, must report every jump, and must continue normally once the clock is correct.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_daemon import Daemon, Node, ShiftedClock

from local.names import TopicPartition
from tiered.demo.s3_endpoint import S3Endpoint
from tiered.tables.remote_tables import open_remote

pytestmark = pytest.mark.server

DAY_S = 86_400
YEARS = 3650 * DAY_S + 60  # reported values are whole seconds of two clocks that are read one after the other
ROUNDS = 4.0


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedClock:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: the clock of a process cannot be set")
    return ShiftedClock(tmp_path / "clock")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with S3Endpoint() as running:
        yield running


class Town:
    """A node, its bucket, and the state that must not change while the clock is wrong."""

    def __init__(self, home: Path, endpoint: S3Endpoint | None, bucket: str, clock: ShiftedClock) -> None:
        home.mkdir()
        self.endpoint, self.clock = endpoint, clock
        if endpoint is not None:
            endpoint.create_bucket(bucket)
        self.node = Node(home, endpoint.url if endpoint is not None else None, bucket)
        self.node.defaults |= {"remote.log.copy.disable": "false", "segment.ms": "20d"}
        self.node.configure()
        self.now_ms = time.time_ns() // 1_000_000
        self.node.fill("orders", "others", at_ms=self.now_ms, retention_ms="30d")
        # some records in the active segment, and some files that wait for their deletion
        with self.node.manager() as manager:
            manager.append("others", self.node.sent["others"][:20], 0, now_ms=self.now_ms)
            self.node.sent["others"] += self.node.sent["others"][:20]

    def daemon(self) -> Daemon:
        return Daemon(self.node, environ=self.clock.environ)

    def delete_some(self) -> None:
        """Create pending deletes in the bucket and files scheduled for deletion."""
        with self.node.manager() as manager:
            now_ms = self.now_ms
            while manager.tick(now_ms):
                pass
            manager.maintenance.delete_records({TopicPartition("orders", 0): 100}, now_ms=now_ms)
            while manager.tick(now_ms):
                pass
        del self.node.sent["orders"][:100]

    def kept(self) -> tuple[list[str], list[str]]:
        files = [f"{path.parent.name}/{path.name}" for path in self.node.home.glob("data/*/*.log")]
        if self.endpoint is None:
            return sorted(files), []
        with open_remote(f"s3://{self.node.bucket}/p", self.endpoint.options()) as bucket:
            objects = [each.key for each in bucket.store.list("") if "/data/" in each.key]
        return sorted(files), objects

    def go_on(self, daemon: Daemon) -> None:
        """Wait for a few more maintenance rounds."""
        until = daemon.metric("tiered_rounds_total") + ROUNDS
        daemon.wait_for(lambda: True if daemon.metric("tiered_rounds_total") >= until else None, "some rounds")


@pytest.fixture
def town(tmp_path: Path, endpoint: S3Endpoint, clock: ShiftedClock) -> Town:
    found = Town(tmp_path / "home", endpoint, "jumps", clock)
    found.delete_some()
    return found


@pytest.mark.deep("processes under shifted clocks")
def test_clock_jump_before_or_during_a_run_deletes_and_rolls_nothing(town: Town) -> None:
    kept, clock = town.kept(), town.clock
    assert len(kept[1]) > 8
    to_1970 = 1000 - int(time.time())
    with town.daemon() as daemon:
        daemon.wait_until_well()
        for seconds, told in ((YEARS, "ahead=3650d"), (-DAY_S, "back="), (to_1970, "back=")):
            clock.set(seconds)
            daemon.wait_for_trouble(told)
            assert abs(daemon.metric("tiered_clock_jump_seconds") - seconds) < 5
            town.go_on(daemon)
            assert town.kept() == kept, told
            clock.set(0)
            daemon.wait_until_well()
        clock.set(YEARS)
        daemon.wait_for_trouble("ahead")
        assert daemon.end() == 0
    for seconds, told in ((YEARS, "ahead=3650d"), (to_1970, "back=")):
        clock.set(seconds)
        with town.daemon() as daemon:
            daemon.wait_for_trouble(told, "the clock of the store")
            town.go_on(daemon)
            assert town.kept() == kept, told
            clock.set(0)
            daemon.wait_until_well()
            assert daemon.end() == 0
            assert "Traceback" not in daemon.words
    (town.node.home / "data" / "work-report.json").unlink()  # another node: no local record of the time
    clock.set(YEARS)
    with town.daemon() as daemon:
        daemon.wait_for_trouble("ahead=3650d", "the clock of the store")
        town.go_on(daemon)
        assert town.kept() == kept
        assert daemon.end() == 0
    with town.node.manager() as manager:
        town.node.check_read(manager)


def test_without_a_store_the_clock_is_checked_against_the_last_process(tmp_path: Path, clock: ShiftedClock) -> None:
    town = Town(tmp_path / "home", None, "", clock)
    with town.daemon() as daemon:
        daemon.wait_until_well()
        assert daemon.end() == 0
    kept = town.kept()
    clock.set(YEARS)
    with town.daemon() as daemon:
        daemon.wait_for_trouble("ahead=3650d")
        town.go_on(daemon)
        assert town.kept() == kept
        clock.set(-DAY_S)
        daemon.wait_for_trouble("back=")
        town.go_on(daemon)
        assert town.kept() == kept
        clock.set(0)
        daemon.wait_until_well()
        assert daemon.end() == 0
    clock.set(20 * DAY_S)  # a long pause
    with town.daemon() as daemon:
        town.go_on(daemon)
        assert daemon.ask("health") == (200, "ok\n")
    with town.node.manager() as manager:
        town.node.check_read(manager)
