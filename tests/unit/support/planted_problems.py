"""For each alert of `tiered.observe.monitoring_files` a planted problem and the fix of its runbook.

A `Scene` has two functions. After `plant` the alert must fire, and no other alert but those in `also`. After `mend`,
which follows the runbook, no alert may fire. `told` is the expected output of the commands under "Look". A step of
the runbook that names a command is done by that command.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watched_node import DAY, ROOM, WatchedNode

from local.errors import AccessDenied, Unavailable
from local.format.record import Record
from local.names import TopicPartition
from remote.gc.pins import pin_newest
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.observe.monitoring_files import Limits

HOUR = 60
ORDERS = TopicPartition("orders", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One planted problem with its fix. The module docstring explains the fields."""

    alert: str
    plant: Callable[[WatchedNode], None]
    mend: Callable[[WatchedNode], None]
    told: Mapping[str, str]
    also: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)


def _uploads_are_refused(node: WatchedNode) -> None:
    """The credentials have only read permission."""
    node.door.refusal = lambda verb: AccessDenied(
        f"{verb}access was denied or the credentials are wrong", cause="AccessDenied"
    )
    node.door.refused = ("upload",)
    node.append("orders", 100)
    node.pass_(90, feeds=("orders",))


def _the_store_is_away(node: WatchedNode) -> None:
    node.door.refusal = lambda verb: Unavailable(f"{verb}, the store cannot be reached", cause="timeout")
    node.door.refused = ("upload", "get", "get_each", "put_if_absent", "list", "delete")
    node.append("orders", 100)
    node.pass_(25, feeds=("orders",))


def _nothing_is_refused(node: WatchedNode) -> None:
    node.door.refused = ()
    node.pass_(30)


def _uploads_hang_since_the_start(node: WatchedNode) -> None:
    node.restart()
    node.door.held = ("upload",)
    node.append("orders", 100)
    node.pass_(65)


def _network_comes_back_and_the_manager_restarts(node: WatchedNode) -> None:
    node.door.held = ()
    node.door.opened.set()
    node.restart()
    node.pass_(5)
    code, told = node.tiered("tiered gc")
    assert (code, "0 old enough" in told) == (0, True), told


def _uploads_are_paused(node: WatchedNode) -> None:
    assert node.tiered("tiered pause orders --reason 'the bucket moves'")[0] == 0
    node.pass_(24 * HOUR, every=HOUR)
    node.append("orders", 100)
    node.pass_(20, every=5)


def _uploads_are_resumed(node: WatchedNode) -> None:
    assert node.tiered("tiered resume")[0] == 0
    node.pass_(10, every=5)


def _active_segments_stay_open(node: WatchedNode) -> None:
    node.configure(segment_bytes="1MiB")
    node.reload()
    node.append("orders", 1000)
    node.pass_(20)


def _active_segments_close_sooner(node: WatchedNode) -> None:
    node.configure(segment_bytes="1MiB", segment_ms="10m")
    node.reload()
    node.pass_(15)


def _flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[150] ^= 1
    path.write_bytes(bytes(body))


def _keep(node: WatchedNode, path: Path) -> None:
    good = node.home / "good" / path.parent.name
    good.mkdir(parents=True)
    shutil.copy(path, good)


def _waiting(node: WatchedNode, topic: str) -> Path:
    """A closed segment that exists on the disk only."""
    name = TopicPartition(topic, 0)
    held = node.manager.partitions.find(name)
    upto = 0 if (manifest := held.manifest()) is None else manifest.allocated_end_offset
    base = [each.base_offset for each in held.log.segments() if each.base_offset >= upto and not each.is_active][1]
    (path,) = node.home.glob(f"disk*/{topic}-0/{base:020}.log")
    return path


def _a_compacted_segment_is_whole_again(node: WatchedNode) -> None:
    _good_bytes_come_back(node)
    node.pass_(10)


def _a_segment_is_damaged(node: WatchedNode) -> None:
    node.append("orders", 200)
    wrong = _waiting(node, "orders")
    _keep(node, wrong)
    _flip(wrong)
    node.pass_(5)


def _good_bytes_come_back(node: WatchedNode) -> None:
    """Restore the file from a copy, as the runbook says."""
    (good,) = node.home.glob("good/*/*")
    (wrong,) = node.home.glob(f"disk*/{good.parent.name}/{good.name}")
    wrong.write_bytes(good.read_bytes())
    node.pass_(5)


def _a_compacted_segment_is_damaged(node: WatchedNode) -> None:
    node.append("prices", 300)
    wrong = _waiting(node, "prices")
    _keep(node, wrong)
    _flip(wrong)
    node.pass_(35, feeds=("orders",))


def _a_setting_is_refused_at_a_start(node: WatchedNode) -> None:
    """Set a default that contradicts a setting of one topic."""
    node.manager.topics.alter("orders", {"local.retention.ms": "4h"}, now_ms=node.clock_ms)
    node.configure(retention_ms="3h")
    node.restart()
    node.pass_(10)


def _a_log_is_anothers_to_read(node: WatchedNode) -> None:
    """Make a log file unreadable, as if another user owned it, and restart."""
    node.disk.forbidden = str(next(node.home.glob("disk*/orders-0")))
    node.restart()
    node.pass_(10)


def _it_may_be_read_and_the_manager_restarts(node: WatchedNode) -> None:
    node.disk.forbidden = ""
    node.restart()
    node.pass_(10)


def _the_setting_is_mended_and_the_manager_restarts(node: WatchedNode) -> None:
    node.configure()
    node.restart()
    node.pass_(10)


def _a_copy_of_the_machine_was_at_work(node: WatchedNode) -> None:
    """Let a copy of this node write other records to the bucket for the same offsets."""
    node.append("orders", 100)
    node.manager.close()
    other = node.home / "other"
    other.mkdir()
    for disk in ("disk1", "disk2"):
        (other / disk).mkdir()
        shutil.copy(node.home / disk / "topics.json", other / disk)
    shutil.copy(node.home / "tiered.toml", other)
    with LogManager.open(Config.load(str(other / "tiered.toml"), {}, {}), now_ms=node.clock_ms) as theirs:
        records = [Record(b"k", b"something else, %d" % at, node.clock_ms) for at in range(100)]
        theirs.append("orders", records, 0, now_ms=node.clock_ms)
        theirs.partitions.roll("orders", now_ms=node.clock_ms)
        while theirs.tick(node.clock_ms):
            pass
    node.start()
    node.pass_(5)


def _the_bucket_is_replaced_by_an_empty_one(node: WatchedNode) -> None:
    """Replace the bucket after the disk dropped segments that only the former bucket has."""
    node.append("orders", 100)
    node.pass_(4 * HOUR)
    node.manager.close()
    (node.home / "bucket").rename(node.home / "former")
    (node.home / "bucket").mkdir()
    node.start()
    node.pass_(5)


def _the_former_bucket_comes_back(node: WatchedNode) -> None:
    node.manager.close()
    shutil.rmtree(node.home / "bucket")
    (node.home / "former").rename(node.home / "bucket")
    node.start()
    node.pass_(5)


def _the_bucket_is_believed(node: WatchedNode) -> None:
    """Accept the bucket. The local-only records are dumped from the directory that was moved away."""
    node.manager.close()
    (found,) = node.home.glob("disk*/orders-0")
    aside = found.rename(node.home / "orders-0")
    node.start(takes_over=True)
    node.pass_(5)
    code, told = node.tiered(f"tiered dump {aside / '00000000000000000200.log'} --records")
    assert (code, "a value of some length, 230" in told) == (0, True), told
    code, told = node.tiered("tiered consume orders/0 --from 230 -n 1")
    assert (code, "something else" in told) == (0, True), told


def _the_disk_fills(node: WatchedNode) -> None:
    node.disk.weight = ROOM // 50_000
    for _ in range(6):
        node.append("orders", 150)
        node.pass_(5)


def _local_retention_is_lowered(node: WatchedNode) -> None:
    node.configure(local_retention_ms="1m")
    node.reload()
    node.pass_(5)


def _a_group_does_not_read(node: WatchedNode) -> None:
    node.configure(retention_ms="12h")
    node.reload()
    node.committed["readers"] = {ORDERS: node.manager.partitions.find(ORDERS).log.next_offset}
    node.append("orders", 50)
    node.pass_(8 * HOUR, every=5)


def _the_group_reads(node: WatchedNode) -> None:
    node.committed["readers"] = {ORDERS: node.manager.partitions.find(ORDERS).log.next_offset}
    node.pass_(90, every=5)


def _a_pin_holds_what_expired(node: WatchedNode) -> None:
    held = node.manager.partitions.find(ORDERS)
    pin_newest(
        node.door.inner,
        held.prefix,
        held.metadata,
        now_ms=node.clock_ms,
        expires_ms=node.clock_ms + 30 * DAY,
        holder="a job that was forgotten",
    )
    node.configure(retention_ms="3h")
    node.reload()
    node.pass_(53 * HOUR, every=HOUR)
    node.pass_(75, every=5)


def _the_pin_is_let_go_of(node: WatchedNode) -> None:
    named = re.search(r"delete (\S+) if its", node.tiered("tiered doctor --problems")[1])
    assert named is not None
    (node.home / "bucket" / named[1]).unlink()
    node.pass_(2 * HOUR, every=5)


def _the_daemon_hangs(node: WatchedNode) -> None:
    node.pass_(40, works=False)


def _it_is_restarted(node: WatchedNode) -> None:
    node.restart()
    node.pass_(5)


def _it_takes_the_role_back(node: WatchedNode) -> None:
    """Take over on the operator's decision, because the daemon holds records that the bucket lacks."""
    node.restart(takes_over=True)
    node.pass_(5)


def _the_daemon_ends_as_another_took_over(node: WatchedNode) -> None:
    other = node.home / "other"
    other.mkdir()
    for disk in ("disk1", "disk2"):
        (other / disk).mkdir()
        shutil.copy(node.home / disk / "topics.json", other / disk)
    shutil.copy(node.home / "tiered.toml", other)
    with LogManager.open(Config.load(str(other / "tiered.toml"), {}, {}), now_ms=node.clock_ms):
        pass
    node.append("orders", 100)
    node.pass_(15)
    assert node.has_ended


def _a_disk_fails(node: WatchedNode) -> None:
    (found,) = node.home.glob("disk*/orders-0")
    node.disk.failed = str(found.parent)
    node.append("orders", 50)
    node.pass_(5)


def _the_disk_is_mended(node: WatchedNode) -> None:
    node.disk.failed = ""
    node.restart()
    node.pass_(5)


def _the_clock_jumps(node: WatchedNode) -> None:
    node.skew_ms = 30 * DAY
    node.pass_(3)


def _the_clock_is_set(node: WatchedNode) -> None:
    node.skew_ms = 0
    node.pass_(3)


def _one_copier_hangs(node: WatchedNode) -> None:
    node.configure(remote_log_manager_copier_thread_pool_size="1")
    node.restart()
    node.door.held = ("upload",)
    node.append("orders", 100)
    node.append("orders", 100, 1)
    node.pass_(35)


def _the_store_answers(node: WatchedNode) -> None:
    node.door.held = ()
    node.door.opened.set()
    node.pass_(5)


def _there_is_no_room_for_a_checkpoint(node: WatchedNode) -> None:
    node.disk.is_full = True
    node.append("orders", 100)
    node.pass_(20)


def _there_is_room(node: WatchedNode) -> None:
    node.disk.is_full = False
    node.pass_(45)


SCENES = (
    Scene(
        alert="TieredCopyLagGrows",
        plant=_uploads_are_refused,
        mend=_nothing_is_refused,
        told={"tiered status --section lag": "access was denied or the credentials are wrong"},
        also=frozenset({"TieredNoUploadFinishes", "TieredStoreFails"}),
    ),
    Scene(
        alert="TieredNoUploadFinishes",
        plant=_uploads_hang_since_the_start,
        mend=_network_comes_back_and_the_manager_restarts,
        told={"tiered status": "upload waits: 3 segments"},
    ),
    Scene(
        alert="TieredUploadsPaused",
        plant=_uploads_are_paused,
        mend=_uploads_are_resumed,
        told={"tiered pause --list": "the bucket moves", "tiered status --section lag": "paused"},
    ),
    Scene(
        alert="TieredAtRiskBytes",
        plant=_active_segments_stay_open,
        mend=_active_segments_close_sooner,
        told={"tiered status -p --section lag": "KiB"},
        limits=Limits(at_risk_bytes=20_000),
    ),
    Scene(
        alert="TieredStoreFails",
        plant=_the_store_is_away,
        mend=_nothing_is_refused,
        told={"tiered status": "the store cannot be reached"},
    ),
    Scene(
        alert="TieredCorruption",
        plant=_a_segment_is_damaged,
        mend=_good_bytes_come_back,
        told={"tiered status": "tiered verify", "tiered verify --deep": "warning=0 corrupt=1"},
    ),
    Scene(
        alert="TieredUnopened",
        plant=_a_setting_is_refused_at_a_start,
        mend=_the_setting_is_mended_and_the_manager_restarts,
        told={"tiered status": "correct the named setting"},
    ),
    Scene(
        alert="TieredUnopened",
        plant=_a_log_is_anothers_to_read,
        mend=_it_may_be_read_and_the_manager_restarts,
        told={"tiered status": "no permission"},
    ),
    Scene(
        alert="TieredHalted",
        plant=_a_copy_of_the_machine_was_at_work,
        mend=_the_bucket_is_believed,
        told={"tiered status": "another writer committed other records"},
    ),
    Scene(
        alert="TieredBucketLost",
        plant=_the_bucket_is_replaced_by_an_empty_one,
        mend=_the_former_bucket_comes_back,
        told={"tiered status": "the bucket is lost or wrong", "tiered doctor --problems": "docs/runbooks/bucket-lost"},
    ),
    Scene(
        alert="TieredDiskFull",
        plant=_the_disk_fills,
        mend=_local_retention_is_lowered,
        told={"tiered log-dirs": "online", "tiered status --section local,lag": "KiB"},
    ),
    Scene(
        alert="TieredDeleteLag",
        plant=_a_pin_holds_what_expired,
        mend=_the_pin_is_let_go_of,
        told={"tiered doctor --problems": "a job that was forgotten"},
    ),
    Scene(alert="TieredNoRounds", plant=_the_daemon_hangs, mend=_it_is_restarted, told={"tiered status": "40m"}),
    Scene(
        alert="TieredNoRounds",
        plant=_the_daemon_ends_as_another_took_over,
        mend=_it_takes_the_role_back,
        told={"tiered status": "another writer took over"},
    ),
    Scene(
        alert="TieredLogDirOffline",
        plant=_a_disk_fails,
        mend=_the_disk_is_mended,
        told={"tiered status": "the log directory is offline", "tiered log-dirs": "disk2  online"},
    ),
    Scene(
        alert="TieredCleanerStuck",
        plant=_a_compacted_segment_is_damaged,
        mend=_a_compacted_segment_is_whole_again,
        told={"tiered compaction status": "uncleanable: cannot decode a batch, crc differs"},
        also=frozenset({"TieredCorruption"}),
    ),
    Scene(
        alert="TieredClockJumped",
        plant=_the_clock_jumps,
        mend=_the_clock_is_set,
        told={"tiered doctor": "the system clock has jumped"},
    ),
    Scene(
        alert="TieredCopiersBusy",
        plant=_one_copier_hangs,
        mend=_the_store_answers,
        told={"tiered status --section lag": "upload waits", "tiered plan --summary": "upload"},
    ),
    Scene(
        alert="TieredGroupMeetsRetention",
        plant=_a_group_does_not_read,
        mend=_the_group_reads,
        told={"tiered status --section groups": "GROUP", "tiered group list": "GROUP"},
    ),
    Scene(
        alert="TieredRoundsFail",
        plant=_there_is_no_room_for_a_checkpoint,
        mend=_there_is_room,
        told={"tiered status": "runs on this directory; its report is 20m old"},
        also=frozenset({"TieredDiskFull"}),
    ),
)
