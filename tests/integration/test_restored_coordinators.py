"""Groups and transactions of a node that was restored from the bucket: their state is that of the lost node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from manager_world import HOUR, NOW, settle
from transaction_calls import GROUP, TOPIC, Producer, Script

from local.format.record import Record
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.messages.base import Api
from tiered.serve.node.endpoint import serving_node

pytestmark = pytest.mark.server
GROUPS = [f"group {at}" for at in range(6)]  # in several partitions of the topic of offsets
COUNT, LIMIT_S = 50, 60.0
INTERNAL = ("__consumer_offsets", "__transaction_state")


def configured(home: Path, bucket: Path, **settings: str) -> Path:
    home.mkdir()
    lines = ['[local]\ndir = "data"', f'[remote]\nurl = "file://{bucket}"', "[defaults]"]
    settings = {"remote.storage.enable": "true", "group.initial.rebalance.delay.ms": "0", **settings}
    lines += [f'"{name}" = "{value}"' for name, value in settings.items()]
    path = home / "tiered.toml"
    path.write_text("\n".join(lines))
    return path


@contextmanager
def served(config: Path) -> Iterator[tuple[LogManager, str]]:
    with LogManager.open(Config.load(str(config), {}, {}), now_ms=NOW) as manager:
        if not any(each.name == TOPIC for each in manager.topics.all()):
            manager.topics.create(TOPIC, 2, {}, now_ms=NOW)
            for partition in (0, 1):
                records = [Record(None, b"%d of %d" % (at, partition), NOW) for at in range(COUNT)]
                manager.append(TOPIC, records, partition, now_ms=NOW)
        with serving_node(manager, "127.0.0.1", 0, now_ms=lambda: NOW) as server:
            yield manager, "{}:{}".format(*server.address)


def commit(script: Script, group: str, offset: int) -> None:
    partitions = [
        {
            "partition_index": each,
            "committed_offset": offset + each,
            "committed_leader_epoch": -1,
            "committed_metadata": group,
        }
        for each in (0, 1)
    ]
    topics = [{"name": TOPIC, "partitions": partitions}]
    more = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    found = script.call(f"commit {group}", Api.OFFSET_COMMIT, 8, **more)
    assert {each["error_code"] for topic in found["topics"] for each in topic["partitions"]} == {0}, found


def committed(script: Script, *groups: str) -> Any:
    wanted = [{"group_id": each, "topics": None} for each in groups]
    return script.call("committed", Api.OFFSET_FETCH, 8, groups=wanted, require_stable=True)["groups"]


def use(script: Script) -> dict[str, Producer]:
    """Offsets of groups, transactions that are committed and aborted, and a transactional id without a transaction."""
    script.find_coordinators()
    for at, group in enumerate(GROUPS):
        commit(script, group, 1)
        commit(script, group, 10 + at)
    ids = {name: script.init(name, name) for name in ("committed", "aborted", "unused")}
    for name, is_commit in {"committed": True, "aborted": False}.items():
        producer = ids[name]
        script.add(name, producer, 0, 1)
        script.produce(name, producer, 0, 9)
        script.commit_offset(name, producer, 2)
        ids[name] = script.end(name, producer, 3, commit=is_commit)
    return ids


def descriptions(script: Script, names: list[str]) -> Any:
    found = script.describe("describe", *names)
    return sorted(
        (each["transactional_id"], each["transaction_state"], each["producer_id"], each["producer_epoch"])
        for each in found
    )


def restored(config: Path) -> None:
    words = [
        "-C",
        str(config.parent),
        "restore",
        TOPIC,
        *INTERNAL,
        "--to",
        str(config.parent / "data"),
        "--take-over",
        "--yes",
    ]
    done = subprocess.run([sys.executable, "-m", "tiered", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_restored_node_continues_groups_and_transactions(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with served(configured(tmp_path / "lost", bucket, **{"offsets.topic.num.partitions": "3"})) as (manager, address):
        with closing(Script(address)) as script:
            ids = use(script)
            offsets = committed(script, GROUP, *GROUPS)
            states = descriptions(script, list(ids))
        for topic in (TOPIC, *INTERNAL):
            manager.partitions.roll(topic, now_ms=NOW)
        settle(manager, NOW + HOUR)
    new = configured(tmp_path / "new", bucket)  # with another number of partitions of offsets in its settings
    restored(new)
    with served(new) as (manager, address), closing(Script(address)) as script:
        assert manager.problems == {}
        script.find_coordinators()
        assert committed(script, GROUP, *GROUPS) == offsets
        assert descriptions(script, list(ids)) == states
        fresh = script.init("fresh", None)
        assert fresh.producer_id > max(each.producer_id for each in ids.values()), "no producer id is given twice"
        for name, before in ids.items():
            again = script.init(name, name)
            assert (again.producer_id, again.epoch) == (before.producer_id, before.epoch + 1)
            script.add(name, again, 0)
            old = script.call(
                "fenced",
                Api.END_TXN,
                3,
                transactional_id=name,
                producer_id=before.producer_id,
                producer_epoch=before.epoch,
                committed=True,
            )
            assert old["error_code"], "the producer of the lost node must be fenced"
            script.produce(name, again, 0, 9)
            script.commit_offset(name, again, 2)
            script.end(name, again, 3, commit=True)
        assert {state for _, state, _, _ in descriptions(script, list(ids))} == {"CompleteCommit"}
        commit(script, GROUPS[0], 30)
        assert consumed(address, GROUPS[0], 2 * COUNT - 61) == [
            *(b"%d of 0" % at for at in range(30, COUNT)),
            *(b"%d of 1" % at for at in range(31, COUNT)),
        ]


def consumed(address: str, group: str, count: int) -> list[bytes]:
    """Records after the committed offsets of a group, without those of transactions, in the order of partitions."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "error"}
    )
    found: list[tuple[int, int, bytes]] = []
    try:
        consumer.subscribe([TOPIC])
        while len(found) < count:
            message = consumer.poll(LIMIT_S)
            assert message is not None
            assert message.error() is None, message.error()
            if b" of " in message.value():
                found.append((message.partition(), message.offset(), message.value()))
    finally:
        consumer.close()
    return [value for _, _, value in sorted(found)]
