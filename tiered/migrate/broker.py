"""A broker's log directory, only read: check, closed segments, log starts, settings of its topics.

The settings come from the cluster metadata log. A broker of a KRaft cluster has it as a partition,
``__cluster_metadata-0``, in its ``metadata.log.dir`` (by default the first log directory). Its records:

| record | api key | use |
|---|---|---|
| TopicRecord | 2 | name and id: a topic that is created again has no settings of the previous one |
| ConfigRecord | 4 | of a topic: one setting, or its removal |
| PartitionRecord, PartitionChangeRecord | 3, 5 | the number of replicas of a partition |
| RemoveTopicRecord | 9 | removes the settings |

A record's value is frame version, api key, version (unsigned varints), then its fields: strings have their length + 1
before them (unsigned varint, 0 for null), a topic id is 16 bytes. Source: kafka `AbstractApiMessageSerde`,
``metadata/src/main/resources/common/metadata/*.json``, and `RaftSnapshotWriter` for ``.checkpoint`` files, which hold
the same batches.

Each refresh continues at the end of the previous one. An uncommitted tail counts: if the controllers withdraw a
setting, the next record corrects it. ``server.properties``, with the broker defaults, is not read. Records of unknown
versions are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise

from local import kernels, names
from local.errors import Corrupt, InvalidRequest, NotFound
from local.index.index_files import slices_of
from local.log import checkpoints
from local.log.leader_epochs import LeaderEpochs
from local.log.producer_state import ProducerEntry, decode_snapshot
from local.names import TopicPartition, parse_segment_file, segment_file
from local.records.batch_runs import BatchRuns
from local.storage import Storage, StorageFile, join
from policies.tier_relation import BrokerRetention, LogStartFacts
from tiered.config.config import Config, check_combination, resolve_rules
from tiered.config.properties import DEFAULTS, PROPERTIES, TABLE, nearest, parse
from tiered.serve.groups.coordinator_records import FieldReader

METADATA = "__cluster_metadata-0"
TOPIC_RECORD, PARTITION_RECORD, CONFIG_RECORD, PARTITION_CHANGE_RECORD, REMOVE_TOPIC_RECORD = 2, 3, 4, 5, 9
REPLICAS_TAG = 2  # of a PartitionChangeRecord
OF_TOPIC = 2  # ConfigResource.Type
_CHECKPOINT = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint", re.ASCII)
_OF_THE_TIER = ("remote.", "local.")  # settings of the broker's own tiered storage
INTERNAL = "__"  # the broker's internal topics
POLICY = "cleanup.policy"
UNKNOWN = (
    "name the log directory with __cluster_metadata-0 of the broker by --metadata, or state the policy, "
    "-X TOPIC:cleanup.policy=compact for a topic or -X cleanup.policy=delete for all"
)


class BrokerTopics:
    """The settings and replica counts of a broker's topics, by its metadata log. Not thread safe."""

    def __init__(self, storage: Storage, root: str) -> None:
        """`root` is the log directory that holds the metadata log."""
        self._storage, self._directory = storage, join(root, METADATA)
        self._settings: dict[str, dict[str, str]] = {}
        self._names: dict[bytes, str] = {}
        self._replicas: dict[bytes, dict[int, int]] = {}  # by topic id and partition
        self._read_upto = -1  # offset of the last record read
        self._where = (-1, 0)  # file and position to continue from

    def of(self, topic: str) -> dict[str, str]:
        """The topic's own settings at the broker, without unknown ones and the ones of the broker's tier."""
        found = {}
        for name, value in self._settings.get(topic, {}).items():
            entry = PROPERTIES.get(name)
            if entry is None or not entry.is_per_topic or name.startswith(_OF_THE_TIER):
                continue
            try:
                parse(name, value)
            except InvalidRequest:
                continue  # a value of a newer Kafka
            found[name] = value
        return found

    def replicas(self, name: TopicPartition) -> int | None:
        """The number of replicas of a partition; None if the metadata do not have it."""
        ids = [topic_id for topic_id, topic in self._names.items() if topic == name.topic]
        return self._replicas.get(ids[-1], {}).get(name.partition) if ids else None

    def refresh(self) -> bool:
        """Read new records; return whether a metadata log exists. Raises Corrupt if records cannot be decoded."""
        try:
            files = self._storage.list_files(self._directory)
        except NotFound:
            return False
        bases = sorted(each[0] for name in files if (each := parse_segment_file(name)) and each[1] == names.LOG)
        snapshots = sorted((int(match[1]), name) for name in files if (match := _CHECKPOINT.fullmatch(name)))
        if snapshots and (not bases or self._read_upto + 1 < bases[0] or self._read_upto < 0):
            # Records below the log are in the newest checkpoint, which covers everything below its offset.
            self._settings, self._names, self._replicas = {}, {}, {}
            self._take(snapshots[-1][1], 0, is_snapshot=True)
            self._read_upto = max(self._read_upto, snapshots[-1][0] - 1)
        for at, base in enumerate(bases):
            is_read = at + 1 < len(bases) and bases[at + 1] <= self._read_upto + 1
            if not is_read:
                start = self._where[1] if self._where[0] == base else 0
                self._where = base, self._take(f"{base:020d}{names.LOG}", start, is_snapshot=False)
        return True

    def _take(self, name: str, start: int, *, is_snapshot: bool) -> int:
        """Read the records of a file from position `start` on; return the end of its whole batches."""
        path = join(self._directory, name)
        try:
            file = self._storage.open_reader(path)
        except NotFound:
            return start  # deleted in between; the next refresh begins with a checkpoint
        with closing(file):
            walk = BatchRuns(file.read, file.size(), start=start)
            for run in walk:
                if run.damage is not None:
                    raise Corrupt(f"cannot read the metadata of the broker, {run.damage}", path=path, at=run.position)
                for record in kernels.decode_columns(run.data).records():
                    if is_snapshot or record.offset > self._read_upto:
                        try:
                            self._follow(bytes(record.value or b""))
                        except Corrupt as error:
                            raise error.restated(error.attempt, path=path, **error.facts) from None
                        self._read_upto = self._read_upto if is_snapshot else record.offset
            return walk.position

    def _follow(self, value: bytes) -> None:
        fields = _fields(value)
        if fields.varint() != 1:
            return
        kind, version = fields.varint(), fields.varint()
        if kind == PARTITION_RECORD:  # later versions add fields behind these
            partition, topic_id = fields.number(4), fields.take(16)
            self._replicas.setdefault(topic_id, {})[partition] = fields.length(4)
            return
        if version != 0 and kind != PARTITION_CHANGE_RECORD:
            return
        if kind == TOPIC_RECORD:
            name, topic_id = fields.nullable_text() or "", fields.take(16)
            self._settings.pop(name, None) if self._names.get(topic_id) != name else None
            self._names[topic_id] = name
        elif kind == PARTITION_CHANGE_RECORD:
            partition, topic_id = fields.number(4), fields.take(16)
            if (changed := fields.tags().get(REPLICAS_TAG)) is not None:
                self._replicas.setdefault(topic_id, {})[partition] = _fields(changed).length(4)
        elif kind == REMOVE_TOPIC_RECORD:
            topic_id = fields.take(16)
            self._replicas.pop(topic_id, None)
            self._settings.pop(self._names.pop(topic_id, ""), None)
        elif kind == CONFIG_RECORD and fields.take(1)[0] == OF_TOPIC:
            topic, name, setting = fields.nullable_text() or "", fields.nullable_text() or "", fields.nullable_text()
            own = self._settings.setdefault(topic, {})
            if setting is None:
                own.pop(name, None)
            else:
                own[name] = setting


def _fields(value: bytes) -> FieldReader:
    return FieldReader(value, "cannot read a metadata record of the broker", is_flexible=True, errors="strict")


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A closed segment of the broker with its files open; `is_settled`: no transaction is open at its end."""

    base_offset: int
    next_offset: int
    size_bytes: int
    log: StorageFile
    others: dict[str, bytes]
    is_settled: bool
    modified_ms: int = 0


@contextmanager
def open_closed(storage: Storage, directory: str, topic_id: str, reached: int) -> Iterator[list[ClosedSegment]]:
    """The closed segments from `reached` on, all of one moment; empty if the broker changed files."""
    before = log_sizes(storage, directory)
    bases = sorted(before)
    with ExitStack() as stack:
        found = []
        try:
            for base, following in pairwise(bases):
                if following > reached:
                    found.append(_open(storage, stack, directory, base, following, before[base]))
        except NotFound:
            found = []
        after = {base: size for base, size in log_sizes(storage, directory).items() if base < max(bases, default=0)}
        is_same_topic = checkpoints.read_topic_id(storage, directory) == topic_id
        if not is_same_topic or after != {base: before[base] for base in bases[:-1]}:
            found = []
        yield found


def _open(storage: Storage, stack: ExitStack, directory: str, base: int, following: int, size: int) -> ClosedSegment:
    file = storage.open_reader(join(directory, segment_file(base, names.LOG)))
    stack.callback(file.close)

    def read(suffix: str, offset: int) -> bytes:
        try:
            return storage.read(join(directory, segment_file(offset, suffix)))
        except NotFound:
            return b""

    others = {suffix: read(suffix, base) for suffix in (names.OFFSET_INDEX, names.TIME_INDEX, names.TXN_INDEX)}
    others[names.PRODUCER_SNAPSHOT] = read(names.PRODUCER_SNAPSHOT, following)
    producers = _decoded_producers(others[names.PRODUCER_SNAPSHOT])
    if producers is None:
        others[names.PRODUCER_SNAPSHOT] = b""
    is_settled = producers is not None and all(each.transaction_first_offset < 0 for each in producers)
    modified_ms = storage.modified_ms(join(directory, segment_file(base, names.LOG)))
    return ClosedSegment(base, following, size, file, others, is_settled, modified_ms)


def copy_batches(storage: Storage, each: ClosedSegment, path: str, *, from_offset: int) -> None:
    with closing(storage.create(path)) as file:
        for _, data, table in slices_of(each.log.read):
            skipped = int((table.base_offsets < from_offset).sum())
            if skipped < len(table):
                file.append(data[int(table.positions[skipped]) : table.valid_bytes])


def log_sizes(storage: Storage, directory: str, suffix: str = names.LOG) -> dict[int, int]:
    """Size in bytes of the files with that suffix, by their offset."""
    parsed = ((parse_segment_file(name), facts) for name, facts in storage.list_files(directory).items())
    return {each[0]: facts.size_bytes for each, facts in parsed if each is not None and each[1] == suffix}


def stable_offset(storage: Storage, directory: str) -> int:
    """The offset below which all transactions have ended, by the newest whole producer snapshot."""
    for offset in sorted(log_sizes(storage, directory, names.PRODUCER_SNAPSHOT), reverse=True):
        producers = _decoded_producers(storage.read(join(directory, segment_file(offset, names.PRODUCER_SNAPSHOT))))
        if producers is not None:
            open_from = (each.transaction_first_offset for each in producers if each.transaction_first_offset >= 0)
            return min([offset, *open_from])
    return 0


def _decoded_producers(snapshot: bytes) -> list[ProducerEntry] | None:
    try:
        return decode_snapshot(snapshot)
    except Corrupt:
        return None


def log_start_facts(
    storage: Storage, directory: str, sizes: dict[int, int], start: int, epochs: LeaderEpochs
) -> LogStartFacts | None:
    """The facts of a log start inside a segment, as after DeleteRecords; None if files or epochs contradict that."""
    bases = [base for base in sizes if base < start]
    if not bases or start <= min(sizes) or (epochs.entries and epochs.entries[0][1] < start):
        return None
    base = max(bases)
    newest, reached = None, base
    with closing(storage.open_reader(join(directory, segment_file(base, names.LOG)))) as file:
        for _, _, table in slices_of(file.read):
            below = table.max_timestamps[table.last_offsets < start]
            times = [newest if newest is not None else -1, *(below[below >= 0].tolist())]
            newest = max(times) if max(times) >= 0 else None
            reached = int(table.last_offsets[-1]) + 1
            if reached >= start:
                break
    if reached < start:
        return None
    return LogStartFacts(newest_below_ms=newest, bytes_from=sum(sizes[each] for each in sizes if each >= base))


def check_log_directory(storage: Storage, root: str, topics: Sequence[str] = ()) -> None:
    """Raises InvalidRequest if `root` is no broker's log directory, NotFound if it or a topic is absent."""
    hint = "name the log.dirs of a broker that contain its TOPIC-PARTITION directories"
    if not storage.is_directory(root):
        kind = InvalidRequest if storage.exists(root) else NotFound
        raise kind(f"cannot adopt, the directory does not exist: {hint}", directory=root)
    there = storage.list(root)
    if names.META_PROPERTIES not in there and not any(map(names.parse_partition_directory, there)):
        raise InvalidRequest(f"cannot adopt, the directory is not a Kafka log directory: {hint}", directory=root)
    known = adopted_topics(storage, root)
    for topic in topics:
        if topic not in known:
            facts = {"there_are": ", ".join(known[:10]) or "none", "did_you_mean": nearest(topic, known)}
            wrong = "cannot adopt the topic, the broker has no partition of it in this directory"
            raise NotFound(wrong, topic=topic, directory=root, **facts)


def adopted_partitions(storage: Storage, root: str, topics: Sequence[str] = ()) -> list[TopicPartition]:
    """The partitions of a log directory that a sidecar copies: of the named topics, or of all but internal ones."""
    found = (names.parse_partition_directory(name) for name in storage.list(root))
    there = (each for each in found if each is not None and not each.topic.startswith(INTERNAL))
    return sorted(each for each in there if not topics or each.topic in topics)


def adopted_topics(storage: Storage, root: str, topics: Sequence[str] = ()) -> list[str]:
    return sorted({each.topic for each in adopted_partitions(storage, root, topics)})


class AdoptSettings:
    """The settings of adopted topics, from all layers. `has_broker`: the broker's own are known. Not thread safe.

    Precedence, highest first: ``-X topic:key=value``, ``-X key=value``, then the layers of `tiered.config.config`, with
    the broker's settings as the topic's own.
    """

    def __init__(
        self, storage: Storage, metadata: str, options: Mapping[str, str], config: Config | None = None
    ) -> None:
        """`metadata` is the log directory with the broker's metadata log. Without `config`: built-in defaults alone.

        Raises InvalidRequest for an unknown option or a wrong value, Corrupt for metadata that cannot be decoded.
        """
        self._all: dict[str, str] = {}
        self._one: dict[str, dict[str, str]] = {}
        self._config = config if config is not None else Config(data_dir="")
        for key, value in options.items():
            topic, colon, name = key.rpartition(":")
            entry = PROPERTIES.get(name)
            if entry is None or not entry.is_per_topic:
                near = nearest(name, PROPERTIES)
                raise InvalidRequest("cannot adopt, this is not a setting of topics", setting=name, did_you_mean=near)
            parse(name, value)
            (self._one.setdefault(topic, {}) if colon else self._all)[name] = value
        self._broker = BrokerTopics(storage, metadata)
        self.refresh()

    def refresh(self) -> None:
        self.has_broker = self._broker.refresh()

    def of(self, topic: str) -> dict[str, str]:
        """The settings that some layer names and that a topic can have of its own, for the manifest."""
        return {name: value for name, value in self._given(topic).items() if PROPERTIES[name].is_per_topic}

    def effective(self, topic: str) -> dict[str, str]:
        """Every effective setting of a topic; of all topics for an empty name.

        Raises InvalidRequest if settings contradict each other, or if a sidecar cannot honour one. Raises it also if
        the broker's metadata are absent and no layer sets the cleanup policy: a compacted topic would count as plain.
        """
        given = self._given(topic)
        if topic and not self.has_broker and POLICY not in given:
            raise InvalidRequest(f"cannot adopt the topic, its cleanup.policy is unknown: {UNKNOWN}", topic=topic)
        values = DEFAULTS | given
        check_combination(values)
        for row in TABLE:
            if row.adopt_refusal and parse(row.name, values[row.name]) != parse(row.name, row.default):
                wrong = f"cannot adopt the topic, a sidecar does not support this setting: {row.adopt_refusal}"
                raise InvalidRequest(wrong, topic=topic, **{row.name: values[row.name]})
        return values

    def retention(self, name: TopicPartition) -> BrokerRetention:
        rules = resolve_rules(self._broker.of(name.topic))
        replicas = self._broker.replicas(name)
        return BrokerRetention(
            retention_ms=rules.retention_ms, retention_bytes=rules.retention_bytes, replicas=replicas
        )

    def _given(self, topic: str) -> dict[str, str]:
        own = self._config.given_properties(topic, self._broker.of(topic))
        return {**own, **self._all, **self._one.get(topic, {})}
