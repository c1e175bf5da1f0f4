"""A script of transactional requests for two servers whose responses must be equal, errors included.

Producer ids and times differ between servers. Each producer id is replaced by its position among all seen ones.
"""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka_requests import KafkaSocket
from kio.index import load_response_schema

from local.records.batch import encode_batch
from tiered.serve.codec import Cursor, reader_of
from tiered.serve.messages.base import Api
from tiered.serve.messages.transactions import DescribeTransactionsResponse

TOPIC = "orders"  # it exists with two partitions
GROUP = "billing"
SECONDS_MAX = 60
_BUSY = (14, 15, 16, 51)  # a coordinator that loads, is unknown or works on the id: repeat the call
_INIT, _ADD, _END = Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN
Fields = dict[str, Any]


class Producer(NamedTuple):
    """An id with its producer id and epoch."""

    name: str
    producer_id: int
    epoch: int

    def at(self, epoch: int) -> Producer:
        return self._replace(epoch=epoch)


class Requests(KafkaSocket):
    """Reads DescribeTransactions by this project's codec: `kio` refuses the time -1, a transaction without a start."""

    def ask(self, api: int, version: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        if api != Api.DESCRIBE_TRANSACTIONS:
            return super().ask(api, version, fields)
        names = [name.encode() for name in fields["transactional_ids"]]
        body = b"".join(bytes((len(name) + 1,)) + name for name in names)
        head = struct.pack(">hhih", api, version, 0, -1) + b"\0"
        frame = head + bytes((len(names) + 1,)) + body + b"\0"
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        data = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        cursor = Cursor(memoryview(data)[5:])  # after the correlation id and the tags of the header
        found = reader_of(load_response_schema(api, version), DescribeTransactionsResponse)(cursor)
        return dataclasses.asdict(found)


def create_topic(requests: Requests) -> None:
    topic = {"name": TOPIC, "num_partitions": 2, "replication_factor": 1}
    found = requests.ask(Api.CREATE_TOPICS, 4, {"topics": [topic], "timeout": 30_000})
    assert [each["error_code"] for each in found["topics"]] == [0], found


class Script:
    """Runs the calls on one server; `seen` has every step with its response as comparable plain values."""

    def __init__(self, address: str) -> None:
        self._requests = Requests(address)
        self._ids: dict[int, str] = {-1: "none"}
        self.seen: list[tuple[str, Any]] = []

    def close(self) -> None:
        self._requests.close()

    def call(self, label: str, api: Api, version: int, **values: Any) -> Fields:
        """One call; it is repeated while the server asks for it, unless the label says so."""
        due = time.monotonic() + SECONDS_MAX
        while True:
            response = self._requests.ask(api, version, values)
            if not _is_busy(response) or "busy" in label:
                break
            assert time.monotonic() < due, f"{label}: {response}"
            time.sleep(0.02)
        self.seen.append((f"{label}, version {version}", self._comparable(response)))
        return response

    def note(self, label: str, value: object) -> None:
        self.seen.append((label, self._comparable(value)))

    def _comparable(self, value: Any) -> Any:
        match value:
            case Mapping():
                return {key: self._field(key, each) for key, each in value.items()}
            case list() | tuple():
                return sorted((self._comparable(each) for each in value), key=_number)
        return value

    def _field(self, key: str, value: Any) -> Any:
        if key in ("producer_id", "producerId", "nextProducerId", "previousProducerId") and isinstance(value, int):
            return self._ids.setdefault(value, f"producer {len(self._ids)}")
        if key in ("transaction_start_time", "last_timestamp", "log_append_time_ms") or "Timestamp" in key:
            return "set" if value > 0 else "not set"
        return self._comparable(value)

    def find_coordinators(self) -> None:
        """Let the server create the topics of both coordinators, and wait for them."""
        due = time.monotonic() + SECONDS_MAX
        for key_type, name in enumerate((GROUP, "any id")):
            asked = {"key": name, "key_type": key_type}
            while (found := self._requests.ask(Api.FIND_COORDINATOR, 3, asked))["error_code"]:
                assert time.monotonic() < due, found
                time.sleep(0.05)

    # Requests

    def init(self, label: str, name: str | None, version: int = 4, **more: Any) -> Producer:
        values = {"transactional_id": name, "transaction_timeout": 60_000, **more}
        found = self.call(label, _INIT, version, **values)
        return Producer(name or "", found["producer_id"], found["producer_epoch"])

    def add(self, label: str, producer: Producer, *partitions: int, version: int = 3, topic: str = TOPIC) -> None:
        topics = [{"name": topic, "partitions": partitions or (0,)}]
        self.call(
            label,
            _ADD,
            version,
            v3_and_below_transactional_id=producer.name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
        )

    def end(self, label: str, producer: Producer, version: int, *, commit: bool) -> Producer:
        found = self.call(
            label,
            _END,
            version,
            transactional_id=producer.name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            committed=commit,
        )
        self.settle(producer.name)
        if version < 5 or found["error_code"]:
            return producer
        return Producer(producer.name, found["producer_id"], found["producer_epoch"])

    def produce(self, label: str, producer: Producer, sequence: int, version: int, *, partition: int = 0) -> None:
        batch = encode_batch(
            [(b"key", b"value", 1_700_000_000_000)],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        data = [{"index": partition, "records": batch}]
        topics = [{"name": TOPIC, "partition_data": data}]
        self.call(
            label,
            Api.PRODUCE,
            version,
            transactional_id=producer.name,
            acks=-1,
            timeout=30_000,
            topic_data=topics,
        )

    def commit_offset(self, label: str, producer: Producer, version: int, **more: Any) -> None:
        partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "note"}
        values = {
            "transactional_id": producer.name,
            "group_id": GROUP,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "topics": [{"name": TOPIC, "partitions": [partition]}],
            **({"generation_id": -1} if version >= 3 else {}),
            **more,
        }
        self.call(label, Api.TXN_OFFSET_COMMIT, version, **values)

    def fetch_offset(self, label: str, *, stable: bool = False) -> None:
        wanted = {"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
        self.call(f"{label} (may be busy)", Api.OFFSET_FETCH, 8, groups=[wanted], require_stable=stable)

    def describe(self, label: str, *names: str) -> list[Fields]:
        found = self.call(label, Api.DESCRIBE_TRANSACTIONS, 0, transactional_ids=names)
        states = found["transaction_states"]
        assert isinstance(states, list | tuple)
        return list(states)

    def settle(self, name: str) -> None:
        """Wait until no transaction of the id is between its outcome and its end."""
        due = time.monotonic() + SECONDS_MAX
        while True:
            found = self._requests.ask(Api.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [name]})
            (state,) = found["transaction_states"]
            if not state["transaction_state"].startswith("Prepare"):
                return
            assert time.monotonic() < due, state
            time.sleep(0.02)


def _number(value: Any) -> int:
    """Kafka gives the partitions of one topic in any order."""
    return int(value.get("partition_index", 0)) if isinstance(value, dict) else 0


def _is_busy(value: Any) -> bool:
    match value:
        case Mapping():
            codes = (each for key, each in value.items() if key.endswith("error_code"))
            return any(each in _BUSY for each in codes) or any(_is_busy(each) for each in value.values())
        case list():
            return any(_is_busy(each) for each in value)
    return False


def run(address: str) -> list[tuple[str, Any]]:
    """All steps in order."""
    script = Script(address)
    try:
        script.find_coordinators()
        for part in (_wrong_inits, _version_0, _version_2, _fencing, _appends, _offsets, _lists, _markers):
            part(script)
    finally:
        script.close()
    return script.seen


def _wrong_inits(script: Script) -> None:
    for version in range(6):
        script.init("a producer without id", None, version)
    script.init("an empty id", "")
    for timeout_ms in (0, -1, 900_001):
        script.init(f"timeout {timeout_ms}", "timeouts", transaction_timeout=timeout_ms)
    script.init("a producer id without epoch", "half", producer_id=5)
    script.init("an epoch without producer id", "half", producer_epoch=5)
    script.init("a new id of a producer that continues", "continued", producer_id=4711, producer_epoch=5)


def _version_0(script: Script) -> None:
    producers = [script.init("init", f"init {version}", version) for version in range(6)]
    producer = producers[0]
    name = producer.name
    for commit in (True, False):
        script.end(f"end without a partition, commit {commit}", producer, 3, commit=commit)
    script.add("add a partition that does not exist", producer, 9)
    script.add("add a missing partition with another one", producer, 0, 9)
    script.add("add to an unknown topic", producer, topic="unknown")
    script.add("add to an unknown id", producer._replace(name="unknown"))
    script.add("add to an empty id", producer._replace(name=""))
    for version in range(4):
        script.add("add by another producer id", producer._replace(producer_id=10**6), version=version)
        script.add("add with another epoch", producer.at(7), version=version)
        script.add("add", producer, 0, 1, version=version)
    script.describe("describe an ongoing one", name)
    for version in range(5):
        script.end("end with another epoch", producer.at(7), version, commit=True)
        script.end("end by another producer id", producer._replace(producer_id=10**6), version, commit=True)
    script.end("end of an unknown id", producer._replace(name="unknown"), 3, commit=True)
    script.end("end of an empty id", producer._replace(name=""), 3, commit=True)
    for version, one in enumerate(producers[1:]):
        commit = version % 2 == 0
        script.add("add", one, 1)
        script.end(f"end, commit {commit}", one, version, commit=commit)
        script.describe("describe an ended one", one.name)
        script.end("the same again", one, version, commit=commit)
        script.end("the opposite", one, version, commit=not commit)
        script.add("add to the next", one, 0)
        script.end("end the next", one, version, commit=True)
    script.end("end", producer, 3, commit=False)


def _version_2(script: Script) -> None:
    producer = script.init("init", "version 2", 5)
    script.end("commit nothing", producer, 5, commit=True)
    aborted = script.end("abort nothing", producer, 5, commit=False)
    script.end("abort nothing again", producer, 5, commit=False)
    script.end("commit what was aborted", producer, 5, commit=True)
    script.describe("describe", producer.name)
    script.add("add with the old epoch", producer, 0)
    script.add("add", aborted, 0)
    script.end("end with the old epoch", producer, 5, commit=True)
    script.end("end with a higher epoch", aborted.at(9), 5, commit=True)
    committed = script.end("commit", aborted, 5, commit=True)
    script.end("commit again", aborted, 5, commit=True)
    script.end("abort what was committed", aborted, 5, commit=False)
    script.end("commit the next without a partition", committed, 5, commit=True)
    script.end("abort the next without a partition", committed, 5, commit=False)
    script.describe("describe", producer.name)


def _fencing(script: Script) -> None:
    old = script.init("init", "fenced")
    new = script.init("init again", "fenced")
    for version in range(4):
        script.add("add by a fenced producer", old, version=version)
    for version in range(6):
        script.end("end by a fenced producer", old, version, commit=True)
    continued = {"producer_id": new.producer_id, "producer_epoch": new.epoch}
    script.init("a producer continues", "fenced", **continued)
    script.init("a producer continues again", "fenced", **continued)
    for version in (3, 4, 5):
        fenced = {"producer_id": old.producer_id, "producer_epoch": old.epoch}
        script.init("a fenced producer continues", "fenced", version, **fenced)
    script.init("another producer continues", "fenced", producer_id=10**6, producer_epoch=0)
    now = script.init("init", "fenced")
    script.add("add", now, 0, 1)
    script.call("init is busy", _INIT, 4, transactional_id="fenced", transaction_timeout=60_000)
    script.settle("fenced")
    script.describe("describe what init aborted", "fenced")
    script.init("init after the abort", "fenced")
    script.end("end by a fenced producer", now, 3, commit=True)
    script.end("end by a fenced producer", now, 5, commit=True)
    script.describe("describe", "fenced")
    latest = script.init("init", "fenced")
    script.produce("produce adds its partition", latest, 0, 12)
    script.call("init is busy", _INIT, 4, transactional_id="fenced", transaction_timeout=60_000)
    script.settle("fenced")
    script.describe("describe what init aborted in version 2", "fenced")


def _appends(script: Script) -> None:
    producer = script.init("init", "appends")
    for version in (3, 9, 10, 11):
        script.produce("produce without a transaction", producer, 0, version)
    script.add("add", producer, 0)
    script.produce("produce", producer, 0, 9)
    script.produce("produce again", producer, 0, 9)
    script.produce("produce with another epoch", producer.at(7), 0, 9)
    script.produce("produce to another partition", producer, 0, 11, partition=1)
    producers = [{"name": TOPIC, "partition_indexes": [0, 9]}, {"name": "unknown", "partition_indexes": [0]}]
    script.call("describe producers", Api.DESCRIBE_PRODUCERS, 0, topics=producers)
    script.end("commit", producer, 3, commit=True)
    script.produce("produce after the end", producer, 1, 11)
    second = script.init("init", "appends")
    script.produce("produce adds its partition", second, 0, 12)
    script.produce("produce to another partition adds it", second, 0, 12, partition=1)
    script.produce("produce more", second, 1, 12)
    script.describe("describe", "appends")
    third = script.end("commit", second, 5, commit=True)
    script.produce("produce with the epoch before the end", second, 2, 12)
    script.produce("produce with the next epoch", third, 0, 12)
    fourth = script.end("abort", third, 5, commit=False)
    script.produce("produce by an unknown id", fourth._replace(name="unknown"), 0, 12)
    script.produce("produce by another producer id", fourth._replace(producer_id=10**6), 0, 12)
    script.describe("describe", "appends")


def _offsets(script: Script) -> None:
    producer = script.init("init", "offsets")
    for version in range(5):
        script.commit_offset("commit an offset without a transaction", producer, version)
    group = {"group_id": GROUP}
    names = {"transactional_id": producer.name, "producer_id": producer.producer_id}
    for version in range(5):
        add = {**names, **group, "producer_epoch": producer.epoch}
        script.call("add offsets with another epoch", Api.ADD_OFFSETS_TO_TXN, version, **{**add, "producer_epoch": 9})
        script.call("add offsets", Api.ADD_OFFSETS_TO_TXN, version, **add)
    for version in range(5):
        script.commit_offset("commit an offset", producer, version)
        script.commit_offset("commit an offset with another epoch", producer.at(9), version)
    script.commit_offset("commit for an unknown member", producer, 3, generation_id=4, member_id="nobody")
    script.commit_offset("commit without a group", producer, 3, group_id="")
    missing = [{"partition_index": 9, "committed_offset": 1, "committed_metadata": None}]
    script.commit_offset("commit for a missing partition", producer, 3, topics=[{"name": TOPIC, "partitions": missing}])
    script.fetch_offset("fetch the pending offset")
    script.fetch_offset("fetch the pending offset", stable=True)
    script.describe("describe", producer.name)
    script.end("commit", producer, 3, commit=True)
    script.fetch_offset("fetch the committed offset", stable=True)
    second = script.init("init", "offsets")
    script.commit_offset("commit an offset, which adds its partition", second, 5)
    third = script.end("abort", second, 5, commit=False)
    script.fetch_offset("fetch after an abort", stable=True)
    script.commit_offset("commit an offset with the epoch before the end", second, 5)
    script.commit_offset("commit an offset with the next epoch", third, 5)
    script.end("commit", third, 5, commit=True)
    script.fetch_offset("fetch after a commit", stable=True)


def _lists(script: Script) -> None:
    producer = script.init("init", "listed")
    script.add("add", producer, 0)
    script.describe("describe some", "listed", "unknown", "", "listed")
    filters: list[Fields] = [
        {"state_filters": ("Ongoing", "Open")},
        {"state_filters": ("Open",)},
        {"producer_id_filters": (producer.producer_id, 10**6)},
        {"producer_id_filters": (10**6,)},
        {"duration_filter": 10**9},
        {"duration_filter": 10**9, "state_filters": ("Ongoing",)},
        {"transactional_id_pattern": "list.*"},
        {"transactional_id_pattern": "list"},
        {"transactional_id_pattern": "("},
        {},
    ]
    for values in filters:
        version = 2 if "transactional_id_pattern" in values else 1 if "duration_filter" in values else 0
        found = script._requests.ask(Api.LIST_TRANSACTIONS, version, values)
        found["transaction_states"].sort(key=lambda each: each["transactional_id"])
        script.note(f"list with {sorted(values)}", found)
    script.end("commit", producer, 3, commit=True)


def _markers(script: Script) -> None:
    producer = script.init("init", "marked")
    script.add("add", producer, 0)
    script.produce("produce", producer, 0, 9)

    def write(label: str, epoch: int, *partitions: int, topic: str = TOPIC, coordinator_epoch: int = 1000) -> None:
        marker = {
            "producer_id": producer.producer_id,
            "producer_epoch": epoch,
            "transaction_result": False,
            "coordinator_epoch": coordinator_epoch,
            "topics": [{"name": topic, "partition_indexes": partitions}],
        }
        script.call(label, Api.WRITE_TXN_MARKERS, 1, markers=[marker])

    write("write a marker", producer.epoch, 0)
    write("write it again", producer.epoch, 0)
    write("write one of an older coordinator", producer.epoch, 0, coordinator_epoch=1)
    write("write one with a higher epoch", producer.epoch + 2, 0)
    write("write one with an older epoch", producer.epoch, 0)
    write("write to a missing partition", producer.epoch, 9)
    write("write to an unknown topic", producer.epoch, 0, topic="unknown")
