"""The doctor: no finding for a healthy node, and a finding with a next step for each fault."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from json_schemas import SCHEMAS

from local.errors import AccessDenied, NotFound, Unavailable
from local.format.record import Record
from local.names import CLEAN_SHUTDOWN, TopicPartition
from local.storage import DiskStorage, Space
from local.verify.findings import Finding, Severity
from remote.keys import PROBES
from remote.manifest.catalog import list_partitions
from remote.store.memory_store import MemoryStore
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.config.config import Config, file_url
from tiered.health import doctor
from tiered.health.doctor import (
    Patient,
    examine,
    examine_node,
    failed,
    lock_holder,
    run_checks,
)
from tiered.manager.manager import LogManager
from tiered.migrate.fork import plan_fork, run_fork
from tiered.node.problems import WorkJournal
from tiered.read.bucket_reader import RemoteLog

MINUTE, DAY = 60_000, 86_400_000
TIERED = {"remote.storage.enable": "true", "local.retention.ms": "1d"}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A node with one topic, with records in both tiers, after a clean shutdown."""
    (tmp_path / "bucket").mkdir()
    found = replace(
        Config.load(None, {}, {}, local_dir=str(tmp_path / "data")), remote_url=file_url(str(tmp_path / "bucket"))
    )
    now = now_ms()
    with LogManager.open(found, now_ms=now) as manager:
        manager.topics.create("t", 2, TIERED, now_ms=now)
        for at in range(20):
            manager.append("t", [Record(b"k", b"v" * 100, now)], at % 2, now_ms=now)
        manager.partitions.roll("t", now_ms=now)
        while manager.tick(now):
            pass
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def ills(config: Config, **around: object) -> list[Finding]:
    """All warnings and errors."""
    found = examine_node(Patient(config=config, **around))
    return [each for each in found if each.severity in (Severity.WARNING, Severity.ERROR)]


def entry_filter(found: list[Finding], check: str, severity: Severity) -> Finding:
    (one,) = found
    assert (one.check, one.severity) == (check, severity), one
    assert one.next_step, "a finding must have a next step"
    return one


def test_doctor_of_a_healthy_node_has_no_findings_and_changes_no_file(config: Config) -> None:
    before = files(config)
    found = list(examine(config))
    assert [each for each in found if each.severity is not Severity.OK] == []
    assert {each.check for each in found} >= {
        "versions", "kernels", "settings", "lock", "space", "fsync", "open-files", "work", "store", "permissions",
        "clock", "guarantees", "partitions", "pins",
    }  # fmt: skip
    assert files(config) == before


def files(config: Config) -> dict[str, bytes]:
    roots = [config.data_dir, config.remote_url.removeprefix("file://")]
    paths = [path for root in roots for path in Path(root).rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in paths if path.name != ".lock"}


def test_doctor_without_probes_writes_nothing(config: Config, monkeypatch) -> None:
    def refuse(*words: object) -> None:
        raise AssertionError("a check without probes must not write")

    for verb in ("create", "unlink", "rename", "lock"):
        monkeypatch.setattr(DiskStorage, verb, refuse)
    store = _Refusing()
    found = run_checks(_patient(config, store, may_write=False), doctor.STORE_CHECKS)
    assert [each.severity for each in found] == [Severity.OK, Severity.SKIPPED, Severity.SKIPPED]
    assert {each.severity for each in examine(config, may_write=False)} <= {Severity.OK, Severity.SKIPPED}


class _Refusing(MemoryStore):
    def __init__(self) -> None:
        super().__init__("memory://bucket")

    def put_if_absent(self, key: str, body: object) -> None:
        raise AssertionError("a check without probes must not write")

    delete = put = upload = put_if_absent


def _patient(config: Config, store: object, *, may_write: bool = True, clock: Callable[[], int] = now_ms) -> Patient:
    return Patient(config=config, store=store, may_write=may_write, clock_ms=clock)


# -- the machine


def test_lock_check_names_the_process_that_has_the_lock(config: Config) -> None:
    path = f"{config.data_dir}/.lock"
    assert lock_holder(path) is None
    with LogManager.open(config, now_ms=now_ms()):
        assert lock_holder(path) == os.getpid()
        told = [each for each in run_checks(_patient(config, None), doctor.NODE_CHECKS) if each.check == "lock"]
        assert f"locked by process {os.getpid()}" in told[0].what
    assert lock_holder(path) is None
    assert lock_holder(f"{config.data_dir}/no-such-file") is None


def test_missing_clean_shutdown_file_is_a_warning(config: Config) -> None:
    os.remove(f"{config.data_dir}/{CLEAN_SHUTDOWN}")
    assert "the next start recovers the logs" in entry_filter(ills(config), "lock", Severity.WARNING).what


def test_open_files_limit_below_the_need_of_the_partitions_is_an_error(config: Config) -> None:
    found = entry_filter(ills(config, files_max=200), "open-files", Severity.ERROR)
    assert "LimitNOFILE=262" in found.next_step


@pytest.mark.parametrize(
    ("free", "total", "state"),
    [(1 << 20, 1 << 30, Severity.ERROR), (4 << 30, 200 << 30, Severity.WARNING), (90 << 30, 100 << 30, None)],
)
def test_low_disk_space_is_a_warning_or_an_error(config: Config, free: int, total: int, state: Severity | None) -> None:
    class Full(DiskStorage):
        def space(self, path: str) -> Space:
            return Space(free, total)

    found = ills(config, storage=Full())
    assert [(each.check, each.severity) for each in found] == ([("space", state)] if state else [])


def test_slow_fsync_is_a_warning(config: Config, monkeypatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(doctor.time, "perf_counter", lambda: next(ticks) * 0.2)
    assert "200.0 ms" in entry_filter(ills(config), "fsync", Severity.WARNING).what


@pytest.mark.parametrize(
    ("settings", "state", "words"),
    [
        ({"segment.bytes": "2KiB"}, Severity.WARNING, "requests will cost more"),
        ({"local.retention.bytes": "1MiB"}, Severity.WARNING, "less than one segment"),
        ({"retention.ms": "1d", "local.retention.ms": "-2"}, Severity.WARNING, "segment.ms=7d is longer"),
        ({"remote.storage.class": "GLACIER_IR"}, Severity.WARNING, "bills 90 days at least"),
        ({"remote.log.delete.grace.ms": "1m"}, Severity.WARNING, "reads without a pin"),
        ({"local.retention.ms": "90d"}, Severity.ERROR, "the disk would retain more than the log"),
        (
            {"remote.encryption.key.id": "unreferenced_objects"},
            Severity.ERROR,
            "remote.encryption.key.id=unreferenced_objects",
        ),
    ],
    ids=str,
)
def test_invalid_or_ineffective_setting_is_a_finding(
    config: Config, settings: dict[str, str], state: Severity, words: str
) -> None:
    path = Path(config.data_dir) / "topics.json"
    body = msgspec.json.decode(path.read_bytes())
    (topic,) = body["topics"].values() if isinstance(body["topics"], dict) else body["topics"]
    if "remote.storage.class" in settings:
        config = replace(config, overrides=settings)  # a setting of the manager, not of a topic
    else:
        topic["properties"] = {**topic["properties"], **settings}
    path.write_bytes(msgspec.json.encode(body))
    found = [each for each in run_checks(_patient(config, None), doctor.NODE_CHECKS) if each.severity is state]
    assert [each.check for each in found] == ["settings"]
    assert words in found[0].what
    assert found[0].where == "topic t"


def test_topic_pattern_without_a_match_is_a_warning(config: Config) -> None:
    found = ills(replace(config, topics={"tt*": {"retention.ms": "1d"}}))
    assert '[topics."tt*"]' in entry_filter(found, "settings", Severity.WARNING).what


def test_tiered_topic_without_a_store_is_an_error(config: Config) -> None:
    found = ills(replace(config, remote_url=None))
    assert {each.check for each in found if "[remote] has no url" in each.what} == {"settings"}


def test_manager_without_clean_end_and_its_last_problem_are_findings(config: Config) -> None:
    journal = WorkJournal(
        lambda: (DiskStorage(), config.data_dir), pid=4711, started_ms=now_ms() - DAY, interval_ms=30_000
    )
    journal.note_round({TopicPartition("t", 0): Unavailable("writing", cause="slowdown")}, now_ms() - DAY)
    first, second = ills(config)
    assert "process 4711" in first.what
    assert "ago and did not end cleanly" in first.what
    assert second.where == "t/0"
    assert second.what.startswith("writing: cause=slowdown")


def test_clock_that_was_set_back_is_an_error(config: Config) -> None:
    journal = WorkJournal(lambda: (DiskStorage(), config.data_dir), pid=1, started_ms=now_ms(), interval_ms=30_000)
    journal.note_round({}, now_ms() + 2 * DAY, is_ended=True)
    assert "set back" in entry_filter(ills(config), "work", Severity.ERROR).what


# -- the store


@pytest.mark.parametrize(
    ("off_ms", "state"),
    [
        (0, Severity.OK),
        (20_000, Severity.OK),
        (-20_000, Severity.OK),
        (-2 * MINUTE, Severity.WARNING),
        (2 * MINUTE, Severity.WARNING),
        (10 * MINUTE, Severity.ERROR),
        (-10 * MINUTE, Severity.ERROR),
    ],
)
def test_clock_difference_to_the_store_is_a_warning_or_an_error(config: Config, off_ms: int, state: Severity) -> None:
    store = open_store(config.remote_url, {})
    found = list(run_checks(_patient(config, store, clock=lambda: now_ms() + off_ms), doctor.STORE_CHECKS))
    (clock,) = [each for each in found if each.check == "clock"]
    assert clock.severity is state
    if state is not Severity.OK:
        assert ("ahead of" if off_ms > 0 else "behind") in clock.what


def test_missing_store_is_a_finding_with_a_next_step(config: Config, tmp_path: Path) -> None:
    found = ills(replace(config, remote_url=file_url(str(tmp_path / "nowhere"))))
    assert {each.check for each in found} >= {"store", "partitions"}
    assert all(each.next_step for each in found)


class _Overwriting(MemoryStore):
    """A store whose conditional create overwrites an existing object."""

    def put_if_absent(self, key: str, body: bytes) -> None:
        self.put(key, body)


class _Keeping(MemoryStore):
    """A store that accepts deletes and deletes nothing."""

    def delete(self, keys: object) -> None:
        pass


class _Down(MemoryStore):
    def put_if_absent(self, key: str, body: bytes) -> None:
        raise Unavailable("cannot store an object", cause="slowdown")


@pytest.mark.parametrize(
    ("kind", "check", "words"),
    [
        (_Overwriting, "guarantees", "overwrites existing objects"),
        (_Keeping, "permissions", "a deleted object still exists"),
        (_Down, "permissions", "slowdown"),
    ],
)
def test_store_that_breaks_its_contract_is_an_error(
    config: Config, kind: type[MemoryStore], check: str, words: str
) -> None:
    found = list(run_checks(_patient(config, kind("memory://bucket")), doctor.STORE_CHECKS))
    (one,) = [each for each in found if each.check == check and each.severity is Severity.ERROR]
    assert words in one.what
    assert one.next_step


def test_store_that_overwrites_is_a_warning_for_a_single_writer(config: Config) -> None:
    alone = replace(config, overrides={"remote.single.writer": "true"})
    found = list(run_checks(_patient(alone, _Overwriting("memory://bucket")), doctor.STORE_CHECKS))
    assert [each.severity for each in found if each.check == "guarantees"] == [Severity.WARNING]


def test_doctor_deletes_its_probe_objects(config: Config) -> None:
    store = MemoryStore("memory://bucket")
    list(run_checks(_patient(config, store), doctor.STORE_CHECKS))
    assert list(store.list(PROBES)) == []


def test_old_unfinished_uploads_are_a_warning(config: Config, monkeypatch) -> None:
    from remote.store import unfinished_uploads
    from remote.store.unfinished_uploads import UnfinishedUpload

    begun = [now_ms() - 3 * DAY, now_ms()]
    found = [UnfinishedUpload(key=f"t/{at}", upload_id="u", begun_ms=at) for at in begun]
    monkeypatch.setattr(unfinished_uploads.UnfinishedUploads, "list", lambda self: found)
    on_s3 = replace(config, remote_url="s3://bucket")
    (told,) = doctor.unfinished(_patient(on_s3, None))
    assert told.severity is Severity.WARNING
    assert told.what == "1 uploads were never finished, the oldest began 3d ago"


# -- both tiers


def test_partition_that_cannot_be_opened_is_an_error(config: Config) -> None:
    (Path(config.data_dir) / "t-1" / "leader-epoch-checkpoint").write_text("rubbish")
    assert entry_filter(ills(config), "partitions", Severity.ERROR).where == "t/1"


@pytest.mark.parametrize(("days", "words"), [(30, "for another"), (-30, "expired")])
def test_pin_with_a_distant_or_a_past_expiry_is_a_warning(config: Config, days: int, words: str) -> None:
    bucket = RemoteLog(open_store(config.remote_url, {}))
    bucket.pin(TopicPartition("t", 0), now_ms=now_ms(), expires_ms=now_ms() + days * DAY, holder="a job")
    found = entry_filter(ills(config), "pins", Severity.WARNING)
    assert words in found.what
    assert "a job" in found.what


def test_announcement_of_a_fork_is_no_finding(config: Config) -> None:
    """The announcement stays after its pin has ended. The pin's expiry is in 1970."""
    store = open_store(config.remote_url, {})
    names = list_partitions(store)
    run_fork(store, plan_fork(store, names, "f", known=[]), now_ms=now_ms)
    found = [each for each in examine(config) if each.check == "pins"]
    assert [each.severity for each in found] == [Severity.OK]
    assert f"0 readers with pins on manifests, {len(names)} forks of partitions" in found[0].what


def test_local_log_end_offset_below_the_bucket_is_a_warning(config: Config) -> None:
    elsewhere = replace(config, data_dir=config.data_dir + "-2")
    os.mkdir(elsewhere.data_dir)
    (Path(elsewhere.data_dir) / "topics.json").write_bytes((Path(config.data_dir) / "topics.json").read_bytes())
    with LogManager.open(elsewhere, now_ms=now_ms()) as manager:
        manager.append("t", [Record(b"k", b"v", now_ms())] * 50, 0, now_ms=now_ms())
        manager.partitions.roll("t", now_ms=now_ms())
        while manager.tick(now_ms()):
            pass
    assert "the bucket at 60" in entry_filter(ills(config), "index", Severity.WARNING).what


# -- the command


@pytest.fixture
def at(config: Config, tmp_path: Path, monkeypatch) -> Iterator[list[str]]:
    (tmp_path / "tiered.toml").write_text(f'[local]\ndir = "data"\n[remote]\nurl = "{config.remote_url}"\n')
    for variable in [name for name in os.environ if name.startswith("TIERED_")]:
        monkeypatch.delenv(variable)
    return ["-C", str(tmp_path), "doctor"]


def test_doctor_command_exits_with_the_code_of_the_worst_finding(at: list[str], config: Config, capfd) -> None:
    assert invoke([*at, "-o", "json"]) == 0
    found = msgspec.json.decode(capfd.readouterr().out, type=SCHEMAS["doctor"])
    assert len(found.findings) > 10
    assert invoke([*at, "--problems", "-o", "jsonl"]) == 0
    assert capfd.readouterr().out == ""
    os.remove(f"{config.data_dir}/{CLEAN_SHUTDOWN}")
    assert invoke([*at, "--problems"]) == 3
    (Path(config.data_dir) / "t-1" / "leader-epoch-checkpoint").write_text("rubbish")
    capfd.readouterr()
    assert invoke([*at, "--problems", "-o", "jsonl"]) == 10
    assert len(capfd.readouterr().out.splitlines()) == 2


def test_failed_check_does_not_stop_the_other_checks(config: Config) -> None:
    def breaks(patient: Patient) -> Iterator[Finding]:
        raise Unavailable("looking", cause="timeout")
        yield

    found = list(run_checks(_patient(config, None), [("broken", breaks), ("work", doctor.work)]))
    assert [(each.check, each.severity) for each in found] == [("broken", Severity.ERROR), ("work", Severity.OK)]


def test_next_step_of_a_doctor_finding_is_not_the_doctor() -> None:
    for error in (
        AccessDenied("cannot read a file", path="/srv/data/topics.json", cause="eacces"),
        AccessDenied("cannot read an object, no credentials", store="s3://b"),
        NotFound("topic not found", topic="t"),
    ):
        assert "tiered doctor" not in failed("settings", error).next_step


def test_patient_describes_this_machine_by_default(config: Config) -> None:
    here = Patient(config=config)
    assert abs(here.clock_ms() - now_ms()) < 60_000
    assert here.files_max is None or here.files_max > 0
