"""While a store call hangs, only its caller waits. Appends, status and other topics continue."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from manager_world import HOUR, NAME, NOW, TIERED, World, send, settle
from test_waiting_for_the_store import LIMIT_S, Gate, Hooked

from local.names import TopicPartition
from tiered.config.config import Config
from tiered.jobs.key_rotation import rotate_keys
from tiered.jobs.view_jobs import build_views, drop_views, plan_views
from tiered.manager.manager import LogManager
from tiered.status.status_report import status_report

GRACE = {**TIERED, "remote.log.delete.grace.ms": "1h"}
OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
OTHER = TopicPartition("o", 0)
KEY = "remote.encryption.key.id"
RING = ";".join(f"{name} {base64.b64encode(name.encode() * 16).decode()}" for name in ("k1", "k2"))
RETURNS_S = 20.0  # Each call runs in its own thread. A call that takes longer waits for the store.

Deed = Callable[[LogManager], object]


@dataclass(frozen=True, kw_only=True)
class Case:
    """An action, its first store call that hangs, and the condition that holds afterwards."""

    deed: Deed
    verb: str
    prefix: str = "t-"
    skips: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    is_done: Callable[[LogManager], bool]


CASES = {
    "a view is dropped": Case(
        deed=lambda manager: drop_views(manager, "t", now_ms=NOW),
        verb="put_if_absent",
        is_done=lambda manager: manager.partitions.find(NAME).manifest().views == (),  # type: ignore[union-attr]
    ),
    "keys are rotated": Case(
        deed=lambda manager: rotate_keys(manager, ["t"], now_ms=NOW),
        verb="put_if_absent",
        settings={KEY: "k1"},
        is_done=lambda manager: {entry.key_id for entry in manager.partitions.find(NAME).manifest().segments} == {"k2"},  # type: ignore[union-attr]
    ),
    "records expire before they may be compacted": Case(
        deed=lambda manager: manager.maintenance.delete_records({NAME: 25}, now_ms=NOW),
        verb="put_if_absent",
        is_done=lambda manager: (
            manager.reader().offsets(NAME)[0] == manager.partitions.find(NAME).log.log_start_offset == 25
        ),
    ),
    "a topic is deleted": Case(
        deed=lambda manager: manager.topics.delete("t", now_ms=NOW),
        verb="put_if_absent",
        is_done=lambda manager: "t" not in {topic.name for topic in manager.topics.all()},
    ),
    "a topic is to be tiered, its bucket looked at": Case(
        deed=lambda manager: manager.topics.alter("plain", GRACE, now_ms=NOW),
        verb="list",
        prefix="plain-",
        is_done=lambda manager: manager.partitions.find(TopicPartition("plain", 0)).is_writer,
    ),
    "a topic is to be tiered, and taken up": Case(
        deed=lambda manager: manager.topics.alter("plain", GRACE, now_ms=NOW),
        verb="put_if_absent",
        prefix="plain-",
        is_done=lambda manager: manager.partitions.find(TopicPartition("plain", 0)).is_writer,
    ),
    "a topic is created, its bucket looked at": Case(
        deed=lambda manager: manager.topics.create("n", 1, GRACE, now_ms=NOW),
        verb="list",
        prefix="n-",
        is_done=lambda manager: manager.partitions.find(TopicPartition("n", 0)).is_writer,
    ),
    "a topic is created, and taken up": Case(
        deed=lambda manager: manager.topics.create("n", 1, GRACE, now_ms=NOW),
        verb="put_if_absent",
        prefix="n-",
        is_done=lambda manager: manager.partitions.find(TopicPartition("n", 0)).is_writer,
    ),
    "the tier is given up": Case(
        deed=lambda manager: manager.tick(NOW, waits=False),
        verb="put_if_absent",
        skips=1,  # the first call writes the settings of the topic to the bucket
        is_done=lambda manager: manager.partitions.find(NAME).log.log_start_offset > 0,
    ),
    "settings of all topics are taken anew": Case(
        deed=lambda manager: manager.topics.reload(_enabled(manager), now_ms=NOW),
        verb="put_if_absent",
        prefix="plain-",
        is_done=lambda manager: manager.partitions.find(TopicPartition("plain", 0)).is_writer,
    ),
}


def _enabled(manager: LogManager) -> Config:
    config = manager.config
    return replace(config, overrides={**config.overrides, "remote.storage.enable": "true"})


OTHERS: dict[str, Deed] = {
    "appends": lambda manager: [
        send(manager, 5, topic=topic.name, start=900) for topic in manager.topics.all() if topic.name != "n"
    ],
    "its own settings": lambda manager: (
        manager.topics.alter("t", {"flush.ms": "1s"}, now_ms=NOW)
        if "t" in {topic.name for topic in manager.topics.all()}
        else None
    ),
    "rolls": lambda manager: manager.partitions.roll("o", now_ms=NOW),
    "status": lambda manager: status_report(manager, NOW, storage=manager.directories.first_online()[0]),
    "another topic's settings": lambda manager: manager.topics.alter("o", {"flush.ms": "1s"}, now_ms=NOW),
    "another topic's records are deleted": lambda manager: manager.maintenance.delete_records({OTHER: 15}, now_ms=NOW),
    "a new topic": lambda manager: manager.topics.create("fresh", 1, GRACE, now_ms=NOW),
    "a round": lambda manager: manager.tick(NOW, waits=False),
    "another topic is deleted": lambda manager: manager.topics.delete("o", now_ms=NOW),
}


def _filled(manager: LogManager, own_settings: dict[str, str]) -> None:
    for topic, own in {"t": {**GRACE, **own_settings}, "o": GRACE, "plain": {}}.items():
        manager.topics.create(topic, 1, own, now_ms=NOW)
        send(manager, 40, topic=topic)
        manager.partitions.roll(topic, now_ms=NOW)
    settle(manager)
    assert build_views(manager, plan_views(manager, "t", now_ms=NOW)).decisions


@pytest.mark.parametrize("what", CASES)
def test_only_the_caller_waits_for_a_hanging_store(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERED_KEYS", RING)
    case, world = CASES[what], World()
    store = Hooked(world.store)
    with world.open(store=store) as manager:  # type: ignore[arg-type]
        _filled(manager, case.settings)
        if case.settings:
            World.made.remove(world)  # The check of encrypted buckets needs the key ring. Other tests do it.
            manager.topics.alter("t", {KEY: "k2"}, now_ms=NOW)
            settle(manager)
        if what == "the tier is given up":
            manager.topics.alter("t", OFF, now_ms=NOW)
        left = iter(range(case.skips + 1))
        gate = Gate(
            lambda asked, key: asked == case.verb and key.startswith(case.prefix) and next(left) == case.skips,
        )
        store.before = gate
        errors: list[BaseException] = []

        def in_thread(deed: Deed) -> threading.Thread:
            def run() -> None:
                try:
                    deed(manager)
                except BaseException as error:  # noqa: BLE001 - asserted below
                    errors.append(error)

            turn = threading.Thread(target=run, daemon=True)
            turn.start()
            return turn

        caller = in_thread(case.deed)
        waiting = []
        try:
            assert gate.reached.wait(LIMIT_S), errors
            for name, deed in OTHERS.items():
                turn = in_thread(deed)
                turn.join(RETURNS_S)
                waiting += [name] if turn.is_alive() else []
        finally:
            gate.opened.set()
        caller.join(LIMIT_S)
        assert waiting == []
        assert errors == []
        assert not caller.is_alive()
        assert manager.maintenance.tasks.wait_idle(LIMIT_S)
        assert case.is_done(manager)
        settle(manager, NOW + 3 * HOUR)
        assert {topic.name for topic in manager.topics.all()} >= {"plain", "fresh"}
