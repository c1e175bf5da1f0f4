"""kill -9 of a node while a client changes topics: acknowledged changes are there, and at most the running one more."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka_requests import KafkaSocket
from run_profile import KILLS
from running_node import LIMIT_S, running

from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.serve.messages.base import Api

pytestmark = pytest.mark.server
CHANGES_BEFORE_A_KILL = 12
CONFIG = '[local]\ndirs = ["one", "two"]\n'


class State(NamedTuple):
    partitions: int
    settings: dict[str, str]


Topics = dict[str, State]


@dataclass(frozen=True)
class Step:
    """A request, and its effect on the topics."""

    api: Api
    version: int
    request: dict[str, Any]
    effect: Callable[[Topics], Topics]


@dataclass
class Client:
    """Makes changes one after the other until the node ends."""

    address: str
    topics: Topics
    steps: Iterator[Step]
    acked: int = 0
    running: Step | None = None
    error: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def work(self) -> None:
        try:
            with closing(KafkaSocket(self.address)) as client:
                for step in self.steps:
                    self.running = step
                    answer = client.ask(step.api, step.version, step.request)
                    assert not _errors(answer), (step, answer)
                    self.topics, self.running = step.effect(self.topics), None
                    self.acked += 1
        except Exception as error:  # noqa: BLE001 - the test reports it
            is_killed = isinstance(error, OSError) or "the server closed the connection" in str(error)
            self.error = None if is_killed else error
        finally:
            self.ended.set()


def _errors(value: Any) -> list[int]:
    if isinstance(value, dict):
        own = [value["error_code"]] if value.get("error_code") else []
        return own + [each for one in value.values() for each in _errors(one)]
    return [each for one in value for each in _errors(one)] if isinstance(value, list) else []


def steps(start: int) -> Iterator[Step]:
    """Create a topic, grow it, change it, and delete every other one."""
    for number in range(start, start + 10_000):
        name, value = f"topic-{number}", str(1000 + number)
        yield create(name, value)
        yield grow(name, 2 + number % 3)
        yield alter(name, value)
        if number % 2:
            yield delete(name)


def create(name: str, value: str) -> Step:
    configs = [{"name": "segment.ms", "value": value}]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}
    request = {"timeout": 60_000, "topics": [topic]}
    return Step(Api.CREATE_TOPICS, 7, request, lambda topics: {**topics, name: State(1, {"segment.ms": value})})


def grow(name: str, count: int) -> Step:
    request = {"timeout": 60_000, "topics": [{"name": name, "count": count, "assignments": None}]}
    return Step(
        Api.CREATE_PARTITIONS, 3, request, lambda topics: {**topics, name: topics[name]._replace(partitions=count)}
    )


def alter(name: str, value: str) -> Step:
    configs = [{"name": "retention.ms", "config_operation": 0, "value": value}]
    request = {"resources": [{"resource_type": 2, "resource_name": name, "configs": configs}]}

    def effect(topics: Topics) -> Topics:
        settings = {**topics[name].settings, "retention.ms": value}
        return {**topics, name: topics[name]._replace(settings=settings)}

    return Step(Api.INCREMENTAL_ALTER_CONFIGS, 1, request, effect)


def delete(name: str) -> Step:
    request = {"timeout": 60_000, "topics": [{"name": name}]}
    return Step(
        Api.DELETE_TOPICS, 6, request, lambda topics: {key: each for key, each in topics.items() if key != name}
    )


def found(config: Config) -> Topics:
    with LogManager.open(config, now_ms=time.time_ns() // 10**6) as manager:
        assert manager.problems == {}
        names = [name for topic in manager.topics.all() for name in topic.partitions()]
        assert [each.name for each in manager.partitions.all()] == sorted(names)
        return {each.name: State(each.partition_count, dict(each.properties)) for each in manager.topics.all()}


def test_acknowledged_changes_of_a_killed_node_are_there(tmp_path: Path) -> None:
    (tmp_path / "tiered.toml").write_text(CONFIG)
    config = Config.load(str(tmp_path / "tiered.toml"), {}, {})
    rng, topics = random.Random(3), Topics()
    for kill in range(KILLS):
        with running(tmp_path, 0) as (process, port):
            client = Client(f"127.0.0.1:{port}", topics, steps(kill * 10_000))
            worker = threading.Thread(target=client.work, daemon=True)
            worker.start()
            due = time.monotonic() + LIMIT_S
            while client.acked < CHANGES_BEFORE_A_KILL + rng.randrange(8):
                assert not client.ended.is_set(), client.error
                assert time.monotonic() < due, client.acked
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.wait()
            worker.join(LIMIT_S)
        assert client.error is None, client.error
        possible = [client.topics]
        if client.running is not None:
            possible.append(client.running.effect(client.topics))
        topics = found(config)
        assert topics in possible
