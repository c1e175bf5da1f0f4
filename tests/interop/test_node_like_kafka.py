"""A node and a real broker with the same directory answer the same requests of every version, field by field."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import kafka_clients as clients
import pytest
from kafka_artifacts import Kafka
from kafka_broker import KafkaBroker
from kafka_clients import Step
from kafka_requests import KafkaSocket, differences
from served_node import serving_node
from written_by_kafka import T0, sample_records

from local import kernels
from local.log.checkpoints import read_topic_id
from local.storage import DiskStorage
from tiered.config.config import Config
from tiered.manager.manager import LogManager
from tiered.node.topic_registry import Topic, TopicRegistry
from tiered.serve.messages.base import Api

pytestmark = pytest.mark.kafka
SEGMENTS = {"internal.segment.bytes": "12000", "index.interval.bytes": "700"}
FILLED = {"plain": SEGMENTS, "trimmed": SEGMENTS, "banking": SEGMENTS, "open": SEGMENTS}
TOPICS = (*FILLED, "empty")
TRIMMED_TO = 137
RETENTION = "log.retention.check.interval.ms=500\nlog.initial.task.delay.ms=100\n"
NAMES = (*TOPICS, "unknown")
OFFSETS = (-1, 0, 1, 60, 136, 137, 299, 300, 301, 100_000)
SESSION_VERSIONS = (7, 12, 13, 17)
Fields = Mapping[str, object]
Answers = dict[tuple[str, int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Pair:
    """The answers of both servers by request and version."""

    ours: Answers
    theirs: Answers


def _write(broker: KafkaBroker) -> None:
    """Two leader epochs: the broker restarts between two parts of the records."""
    clients.create_topics(broker.address, FILLED)
    for part in range(2):
        for topic in ("plain", "trimmed"):
            records = sample_records(150, start=part * 150)
            clients.produce(broker.address, topic, records, enable_idempotence=True, max_batch_size=3000)
        steps = [Step("a", "begin"), Step("b", "begin")]
        for each in "ab":
            steps.append(Step(each, "send", "banking", sample_records(20, start=part)))
        steps += [Step("a", "abort"), Step("b", "commit")]
        clients.transactions(broker.address, steps, max_batch_size=1000)
        if part == 0:
            broker.stop()
            broker.start()
            clients.wait_for_leaders(broker.address, FILLED)
    clients.create_topics(broker.address, {"empty": SEGMENTS})  # a log without records loses its epochs at a restart
    clients.produce(broker.address, "open", sample_records(30))
    clients.transactions(broker.address, [Step("c", "begin"), Step("c", "send", "open", sample_records(9))])
    clients.delete_records(broker.address, {"trimmed": TRIMMED_TO})
    # Kafka finds no record by time while a segment below the log start offset has not been deleted.
    clients.wait_until(lambda: _bases(broker, "trimmed")[1] > TRIMMED_TO, "deletion below the log start offset")


def _bases(broker: KafkaBroker, topic: str) -> list[int]:
    return sorted(int(path.stem) for path in (broker.log_dirs[0] / f"{topic}-0").glob("*.log"))


def _register(root: Path) -> dict[str, UUID]:
    """Make the topics of a broker's directory those of a node."""
    from tiered.serve.record_source import uuid_of

    ids = {}
    for topic in TOPICS:
        topic_id = read_topic_id(DiskStorage(), str(root / f"{topic}-0"))
        assert topic_id is not None
        found = uuid_of(topic_id)
        assert found is not None
        ids[topic] = found
        registry = TopicRegistry([(DiskStorage(), str(root))])
        registry.add(Topic(name=topic, topic_id=topic_id, partition_count=1))
    return ids


@pytest.fixture(scope="module")
def pair(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    home = tmp_path_factory.mktemp("broker")
    broker = KafkaBroker(kafka, home, settings=RETENTION)
    broker.format()
    broker.start()
    try:
        _write(broker)
        copied = tmp_path_factory.mktemp("ids") / "data"
        shutil.copytree(broker.log_dirs[0], copied)
        ids = _register(copied)
        with closing(KafkaSocket(broker.address)) as there:
            versions = _versions(there.versions())
            theirs = _answers(there, versions, ids)
        broker.stop()
        root = tmp_path_factory.mktemp("node") / "data"
        shutil.copytree(broker.log_dirs[0], root)
        _register(root)
        config = Config.load(None, {}, {}, local_dir=str(root))
        with (
            LogManager.open(config, now_ms=time.time_ns() // 1_000_000) as manager,
            serving_node(manager) as (address, _),
            closing(KafkaSocket(address)) as here,
        ):
            assert manager.problems == {}
            ours = _answers(here, versions, ids)
    finally:
        broker.stop()
    return Pair(ours, theirs)


def _versions(theirs: Mapping[int, tuple[int, int]]) -> dict[int, range]:
    """The versions of each API that both serve."""
    from tiered.serve.protocol import SERVED

    apis = (Api.LIST_OFFSETS, Api.OFFSET_FOR_LEADER_EPOCH, Api.METADATA, Api.FETCH)
    served = {api: (SERVED[api].min_version, SERVED[api].max_version) for api in apis}
    return {api: range(max(low, theirs[api][0]), min(high, theirs[api][1]) + 1) for api, (low, high) in served.items()}


def _answers(server: KafkaSocket, versions: Mapping[int, range], ids: Mapping[str, UUID]) -> Answers:
    found = {}
    for version in SESSION_VERSIONS:
        found |= _session(server, version, ids)
    for api, numbers in versions.items():
        for version in numbers:
            for label, fields in _requests(api, version, ids).items():
                found[label, version] = server.ask(api, version, fields)
    return found


def _requests(api: int, version: int, ids: Mapping[str, UUID]) -> dict[str, Fields]:
    match api:
        case Api.LIST_OFFSETS:
            return _list_offsets()
        case Api.OFFSET_FOR_LEADER_EPOCH:
            return _epoch_ends()
        case Api.METADATA:
            return _metadata(version, ids)
    return _fetches(version, ids)


def _list_offsets() -> dict[str, Fields]:
    found: dict[str, Fields] = {}
    specs = (-1, -2, -3, -4, -5, -6, -7, -100, 0, T0, T0 + 40_000, T0 + 10**9)
    for isolation in (0, 1):
        for spec in specs:
            for claimed in (-1, 0, 1, 2, 3):
                partitions = {
                    topic: [
                        {
                            "partition_index": number,
                            "current_leader_epoch": claimed,
                            "timestamp": spec,
                            "max_num_offsets": 1,
                        }
                        for number in (0, 1)
                    ]
                    for topic in NAMES
                }
                found[f"list-offsets isolation={isolation} spec={spec} claimed={claimed}"] = {
                    "replica_id": -1,
                    "isolation_level": isolation,
                    "topics": [{"name": topic, "partitions": each} for topic, each in partitions.items()],
                }
    twice = [{"partition_index": number, "current_leader_epoch": -1, "timestamp": -1} for number in (0, 0, 1)]
    found["list-offsets of a partition twice"] = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": twice} for topic in NAMES],
    }
    return found


def _epoch_ends() -> dict[str, Fields]:
    return {
        f"epochs requested={requested} claimed={claimed}": {
            "replica_id": -1,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [
                        {"partition": number, "current_leader_epoch": claimed, "leader_epoch": requested}
                        for number in (0, 1)
                    ],
                }
                for topic in NAMES
            ],
        }
        for requested in (-1, 0, 1, 2, 3, 9)
        for claimed in (-1, 0, 1, 2, 3)
    }


def _metadata(version: int, ids: Mapping[str, UUID]) -> dict[str, Fields]:
    def named(*names: str) -> list[Fields]:
        return [{"name": name, "topic_id": None} for name in names]

    more = {"allow_auto_topic_creation": False}
    found: dict[str, Fields] = {
        "metadata of topics": {"topics": named(*NAMES), **more},
        "metadata of invalid names": {"topics": named("..", "a b", "x" * 250), **more},
    }
    if version >= 1:
        found["metadata of no topic"] = {"topics": [], **more}
    if version >= 12:
        found["metadata by id"] = {
            "topics": [{"name": None, "topic_id": each} for each in (*ids.values(), UUID(int=77))],
            **more,
        }
    return found


def _fetches(version: int, ids: Mapping[str, UUID]) -> dict[str, Fields]:
    found: dict[str, Fields] = {}
    for isolation in (0, 1):
        for offset in OFFSETS:
            for limit in (1, 4000, 1 << 20):
                found[f"fetch isolation={isolation} offset={offset} limit={limit}"] = _fetch(
                    version, ids, isolation, dict.fromkeys(NAMES, offset), limit
                )
        for claimed in (0, 1, 2, 3):
            found[f"fetch isolation={isolation} claimed={claimed}"] = _fetch(
                version, ids, isolation, dict.fromkeys(NAMES, 0), 1, claimed
            )
    return found


def _fetch(
    version: int,
    ids: Mapping[str, UUID],
    isolation: int,
    offsets: Mapping[str, int],
    limit: int,
    claimed: int = -1,
    numbers: Sequence[int] = (0, 1),
) -> Fields:
    def topic(name: str) -> Fields:
        partitions = [
            {
                "partition": number,
                "current_leader_epoch": claimed,
                "fetch_offset": offsets[name],
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": limit,
            }
            for number in numbers
        ]
        return {"topic": name, "topic_id": ids.get(name, UUID(int=77)), "partitions": partitions}

    return {
        "replica_id": -1,
        "max_wait": timedelta(seconds=30),  # as long as a read takes; with `min_bytes` 0 no server waits for more
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": isolation,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [topic(name) for name in offsets],
        "forgotten_topics_data": (),
        "rack_id": "",
    }


def _session(server: KafkaSocket, version: int, ids: Mapping[str, UUID]) -> Answers:
    """One talk with fetch sessions. Ids of sessions, which are random, are replaced by whether there is one."""
    found: Answers = {}

    def ask(what: str, session: int, epoch: int, offsets: Mapping[str, int], *forgotten: str, by: int = version) -> int:
        fields = {
            **_fetch(by, ids, 0, offsets, 1 << 20, numbers=(0,)),
            "session_id": session,
            "session_epoch": epoch,
            "forgotten_topics_data": [{"topic": t, "topic_id": ids[t], "partitions": (0,)} for t in forgotten],
        }
        answer = server.ask(Api.FETCH, by, fields)
        session_id = int(answer.pop("session_id"))
        found[f"session {what}", version] = {**answer, "has_session": session_id != 0, "is_same": session_id == session}
        return session_id

    first = ask("begins", 0, 0, {"plain": 300, "trimmed": 300, "banking": 84})
    ask("without news", first, 1, {})
    ask("with another offset", first, 2, {"plain": 290})
    ask("with that offset again", first, 3, {})
    ask("forgets", first, 4, {}, "plain")
    ask("with an old epoch", first, 4, {})
    ask("with a later epoch", first, 9, {})
    ask("that never was", first + 1, 1, {})
    ask("by other names", first, 5, {}, by=12 if version >= 13 else 13)
    ask("adds an offset out of range", first, 5, {"open": 1000})
    ask("has the error again", first, 6, {})
    ask("has the error no more", first, 7, {"open": 39})
    ask("is quiet again", first, 8, {})
    ask("forgets all", first, 9, {}, "trimmed", "banking", "open")
    ask("after its end", first, 10, {})
    second = ask("begins without a partition", 0, 0, {})
    ask("without a partition", second, 1, {})
    third = ask("begins again", 0, 0, {"plain": 300})
    fourth = ask("takes the place of another", third, 0, {"plain": 300})
    ask("that was replaced", third, 1, {})
    ask("ends", fourth, -1, {"plain": 300})
    ask("that ended", fourth, 1, {})
    return found


@pytest.mark.parametrize("area", ["list-offsets", "epochs", "metadata", "fetch", "session"])
def test_the_node_answers_as_the_broker_with_the_same_data(pair: Pair, area: str) -> None:
    wrong: dict[str, list[str]] = {}
    compared = 0
    for (label, version), theirs in pair.theirs.items():
        if not label.startswith(area):
            continue
        compared += 1
        ours, expected = _comparable(pair.ours[label, version]), _comparable(theirs)
        if area in ("fetch", "session"):
            _compare_records(ours, expected, label)
        for line in differences(ours, expected):
            wrong.setdefault(f"{label}: {line}", []).append(str(version))
    assert compared > 20
    assert not wrong, "\n".join(f"{line} (versions {','.join(versions)})" for line, versions in wrong.items())


def _compare_records(ours: dict[str, Any], theirs: dict[str, Any], label: str) -> None:
    """Both have records or neither; the shorter ones begin the longer ones. Makes the answers equal in these.

    A reader may return fewer batches than its limit admits, and Kafka's may end inside a batch. Kafka names the aborted
    transactions up to the next index entry, so it may name more.
    """
    for our_topic, their_topic in zip(ours["responses"], theirs["responses"], strict=True):
        for our, their in zip(our_topic["partitions"], their_topic["partitions"], strict=True):
            found, expected = our["records"] or b"", their["records"] or b""
            expected = expected[: kernels.scan_batches(expected).valid_bytes]
            assert bool(found) == bool(expected), (label, our_topic, our["error_code"])
            length = min(len(found), len(expected))
            assert found[:length] == expected[:length], (label, our_topic)
            our["records"] = their["records"] = None
            if "limit=1048576" in label:
                assert found == expected, (label, our_topic)
            else:
                aborted, theirs_aborted = (each.pop("aborted_transactions") for each in (our, their))
                assert (aborted is None) == (theirs_aborted is None), (label, our_topic)
                assert all(each in theirs_aborted for each in aborted or ()), (label, our_topic)


def _comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without the address, which differs, and with topics and partitions in one order: Kafka's is that of a table."""
    found = copy.deepcopy(answer)
    if "node_endpoints" in found:
        found["node_endpoints"] = [{**each, "host": "", "port": 0} for each in found["node_endpoints"]]
    if "brokers" in found:
        found["brokers"] = [{**each, "host": "", "port": 0} for each in found["brokers"]]
    for name in {"topics", "responses"} & set(found):
        by_topic: dict[str, dict[str, Any]] = {}
        for topic in found[name]:
            key = str([topic.get(each) for each in ("name", "topic", "topic_id")])
            known = by_topic.setdefault(key, {**topic, "partitions": []})
            known["partitions"] += topic["partitions"]
        for topic in by_topic.values():
            topic["partitions"].sort(key=lambda each: each.get("partition_index", each.get("partition")))
        found[name] = [by_topic[key] for key in sorted(by_topic)]
    return found
