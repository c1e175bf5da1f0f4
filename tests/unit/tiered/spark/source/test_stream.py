"""Stream offsets, admission and restarts without Spark: every record is returned once under any interruption."""

from __future__ import annotations

import json

import pytest
from bucket_samples import SampleBucket, batch_at
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from manager_world import NAME, NOW, TIERED, World, send, settle
from run_profile import examples
from split_columns import split_columns

from local.errors import InvalidRequest, NotFound, OffsetOutOfRange
from local.names import TopicPartition
from remote.manifest.manifest_changes import expire_segments
from remote.store.memory_store import MemoryStore
from tiered.spark.options import EARLIEST, LATEST, Bound, parse_stream_options
from tiered.spark.source.stream import LIST_MS, POLL_MS, StreamPlanner, StreamPosition, prorated

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


class CountingStore(MemoryStore):
    """A store that records its requests."""

    def __init__(self):
        super().__init__("memory://counted")
        self.asked = []

    def get(self, key):
        self.asked.append(key)
        return super().get(key)

    def list(self, prefix, *, start_after=""):
        self.asked.append("list " + prefix)
        return super().list(prefix, start_after=start_after)

    def list_prefixes(self, prefix):
        self.asked.append("list " + prefix)
        return super().list_prefixes(prefix)


@pytest.fixture
def bucket():
    return SampleBucket(CountingStore())


class Clock:
    def __init__(self):
        self.ms = NOW

    def __call__(self):
        return self.ms


def stream(bucket, clock=None, **options):
    asked = {"path": "memory://b", "subscribe": "orders", "startingOffsets": "earliest"} | options
    return StreamPlanner(bucket.store, parse_stream_options(asked), clock or Clock())


def add(bucket, count, partition=0, *, batch=10, segments=1):
    rows = bucket.segments.get(("orders", partition), [])
    at = rows[-1].next_offset if rows else 0
    for _ in range(segments):
        parts = [batch_at(at + number * batch, batch) for number in range(count // batch)]
        bucket.add("orders", partition, parts, chunk_bytes=512)
        at += count


def read(bucket, splits):
    return [
        (split.partition, int(offset))
        for split in splits
        for part in split_columns(bucket.store, split)
        for offset in part.offsets
    ]


def following(planner, start, offsets_max=None, bytes_max=None):
    """The next position after a round trip through the checkpoint as JSON."""
    end = planner.next_end(start, offsets_max=offsets_max, bytes_max=bytes_max)
    return start if end is start else StreamPosition.decode(json.loads(json.dumps(end.encode())))


def initial(planner):
    return StreamPosition.decode(json.loads(json.dumps(planner.initial().encode())))


# --- offsets ---------------------------------------------------------------------------------------------------------


def test_offsets_are_json_like_the_kafka_source_with_topic_ids():
    position = StreamPosition(offsets={ONE: 7, ZERO: 120}, topic_ids={"orders": "I"}, since={ZERO: 3}, is_initial=True)
    assert json.dumps(position.encode()) == (
        '{"orders": {"0": 120, "1": 7}, "@ids": {"orders": "I"}, "@since": {"orders": {"0": 3}}, "@initial": true}'
    )
    assert StreamPosition.decode(position.encode()) == position
    assert StreamPosition.decode({"orders": {"0": 5}}) == StreamPosition(offsets={ZERO: 5}, topic_ids={})


@pytest.mark.parametrize(
    "given", [{"logOffset": 5}, {"orders": {"x": 1}}, {"orders": {"0": None}}, {"@ids": 5}, 5, [1], "x", None]
)
def test_checkpoint_of_another_source_is_refused(given):
    with pytest.raises(InvalidRequest, match="not an offset of this source"):
        StreamPosition.decode(given)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=9), st.integers(1, 5_000))
def test_offset_limit_is_prorated_and_every_partition_progresses(sizes, limit):
    names = [TopicPartition("orders", number) for number in range(len(sizes))]
    ends = prorated(dict.fromkeys(names, 5), {name: 5 + size for name, size in zip(names, sizes, strict=True)}, limit)
    gained = {name: ends[name] - 5 for name in names}
    assert sum(gained.values()) <= max(limit, 0) + len(names)
    assert all(0 < gained[name] <= size for name, size in zip(names, sizes, strict=True) if size)
    if sum(sizes) <= limit:
        assert list(gained.values()) == sizes


# --- batches ---------------------------------------------------------------------------------------------------------


def test_stream_begins_at_the_starting_offsets_and_continues(bucket):
    add(bucket, 30)
    planner = stream(bucket)
    start = initial(planner)
    assert start.offsets == {ZERO: 0}
    end = following(planner, start)
    assert read(bucket, planner.splits(start, end)) == [(0, offset) for offset in range(30)]
    assert following(planner, end) is end, "without new records the same position object must be returned"
    assert initial(stream(bucket, startingOffsets="latest")).offsets == {ZERO: 30}
    assert initial(stream(bucket, startingOffsets='{"orders":{"0":12}}')).offsets == {ZERO: 12}


def test_new_records_are_found_by_one_get_per_partition_each_second(bucket):
    add(bucket, 30)
    add(bucket, 30, partition=1)
    clock = Clock()
    planner = stream(bucket, clock)
    end = following(planner, initial(planner))
    bucket.store.asked.clear()
    for _ in range(50):
        clock.ms += POLL_MS // 100
        assert following(planner, end) is end
    assert bucket.store.asked == []
    clock.ms += POLL_MS
    add(bucket, 10)
    bucket.store.asked.clear()
    clock.ms += POLL_MS
    assert following(planner, end).offsets == {ZERO: 40, ONE: 30}
    asked = list(bucket.store.asked)
    assert len([key for key in asked if "/1/" in key]) == 1, asked
    assert len([key for key in asked if "/0/meta/head/" in key]) == 2, (
        "only the new manifest and the absence of its successor may be requested"
    )
    assert not [key for key in asked if key.startswith("list")]


def test_new_partitions_are_read_from_their_beginning(bucket):
    add(bucket, 30)
    clock = Clock()
    planner = stream(bucket, clock, startingOffsets="latest")
    start = initial(planner)
    add(bucket, 20, partition=1)
    clock.ms += LIST_MS
    end = following(planner, start)
    assert end.offsets == {ZERO: 30, ONE: 20}
    assert end.since[ONE] == 0
    assert read(bucket, planner.splits(start, end)) == [(1, offset) for offset in range(20)]


def test_offset_and_byte_limits_bound_a_batch_and_the_rest_follows(bucket):
    add(bucket, 100, segments=3)
    add(bucket, 100, partition=1)
    stored = sum(row.size_bytes for rows in bucket.segments.values() for row in rows)
    for limits in ({"offsets_max": 37}, {"bytes_max": stored // 9}, {"offsets_max": 50, "bytes_max": stored // 5}):
        planner = stream(bucket)
        position, found, sizes = initial(planner), [], []
        while (end := following(planner, position, **limits)) is not position:
            batch = read(bucket, planner.splits(position, end))
            sizes.append(len(batch))
            found += batch
            position = end
        assert sorted(found) == sorted((p, o) for p, count in ((0, 300), (1, 100)) for o in range(count))
        assert max(sizes) <= limits.get("offsets_max", 400 // 9 + 2)
        assert len(sizes) >= 9 or "offsets_max" in limits


def test_byte_limit_reads_no_manifest_page_and_no_index_beyond_the_batch(bucket):
    add(bucket, 100, segments=4)
    planner = stream(bucket)
    start = initial(planner)
    bucket.store.asked.clear()
    following(planner, start, bytes_max=1000)
    assert bucket.store.asked == []


def test_available_now_reads_the_records_at_its_start_and_ends(bucket):
    add(bucket, 50)
    clock = Clock()
    planner = stream(bucket, clock)
    planner.freeze()
    add(bucket, 50)
    add(bucket, 50, partition=1)
    clock.ms += LIST_MS
    position, found = initial(planner), []
    while (end := following(planner, position, offsets_max=20)) is not position:
        found += read(bucket, planner.splits(position, end))
        position = end
    assert found == [(0, offset) for offset in range(50)]


def test_min_offsets_per_trigger_waits_at_most_the_max_trigger_delay(bucket):
    add(bucket, 50)
    clock = Clock()
    planner = stream(bucket, clock, minOffsetsPerTrigger="60", maxTriggerDelay="1m")
    start = initial(planner)
    assert following(planner, start) is start
    clock.ms += 59_000
    assert following(planner, start) is start
    clock.ms += 1_000
    end = following(planner, start)
    assert end.offsets == {ZERO: 50}
    add(bucket, 60)
    clock.ms += POLL_MS
    assert following(planner, end).offsets == {ZERO: 110}
    frozen = stream(bucket, clock, minOffsetsPerTrigger="600")
    frozen.freeze()
    assert following(frozen, initial(frozen)).offsets == {ZERO: 110}


# --- restarts --------------------------------------------------------------------------------------------------------


def test_planned_batch_is_the_same_after_a_restart_even_from_latest(bucket):
    add(bucket, 30)
    clock = Clock()
    planner = stream(bucket, clock, startingOffsets="latest")
    start = initial(planner)
    add(bucket, 10)
    clock.ms += POLL_MS
    end = following(planner, start)
    add(bucket, 10)
    again = stream(bucket, clock, startingOffsets="latest")
    assert initial(again).offsets == {ZERO: 50}, "Spark asks for the initial position again if no batch was finished"
    assert read(bucket, again.splits(initial(again), end)) == [(0, offset) for offset in range(30, 40)]
    assert following(again, end).offsets == {ZERO: 50}


class Query:
    """The Spark side: offsets are logged before a batch runs, its commit after. A crash may come between."""

    def __init__(self, bucket, clock, **options):
        self._make = lambda: stream(bucket, clock, **options)
        self._bucket = bucket
        self.planned, self.done, self.sink = [], 0, {}
        self.restart()

    def restart(self):
        self.planner = self._make()
        self._first = None

    def start(self):
        if self.done:
            return self.planned[self.done - 1]
        self._first = self._first or initial(self.planner)
        return self._first

    def step(self, *, offsets_max, bytes_max, crash):
        if self.done == len(self.planned):
            end = following(self.planner, self.start(), offsets_max, bytes_max)
            if end is self.start():
                return False
            self.planned.append(end)
            if crash == "planned":
                return self.restart()
        batch = read(self._bucket, self.planner.splits(self.start(), self.planned[self.done]))
        self.sink[self.done] = batch  # the sink is idempotent by batch, as Spark requires
        if crash == "written":
            return self.restart()
        self.done += 1
        if crash == "committed":
            self.restart()
        return True


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([0, 1]), st.integers(1, 4)),
        st.tuples(
            st.just("step"),
            st.sampled_from([None, 7, 25]),
            st.sampled_from([None, 300, 2000]),
            st.sampled_from([None, None, "planned", "written", "committed"]),
        ),
        st.tuples(st.just("wait"), st.sampled_from([POLL_MS, LIST_MS])),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_steps, st.sampled_from(["earliest", "latest"]))
def test_stream_restarted_at_any_step_returns_every_record_once(steps, starting):
    bucket, clock = SampleBucket(MemoryStore("memory://any")), Clock()
    add(bucket, 20)
    query = Query(bucket, clock, startingOffsets=starting)
    first = query.start().offsets
    for step in steps:
        if step[0] == "add":
            add(bucket, step[2] * 10, step[1])
        elif step[0] == "wait":
            clock.ms += step[1]
        else:
            query.step(offsets_max=step[1], bytes_max=step[2], crash=step[3])
            if not query.planned and starting == "latest":
                first = query.start().offsets  # no offset was logged yet
    clock.ms += LIST_MS
    while query.step(offsets_max=None, bytes_max=None, crash=None) is not False:
        pass
    found = [each for number in range(query.done) for each in query.sink[number]]
    want = [
        (partition, offset)
        for (_, partition), rows in bucket.segments.items()
        for offset in range(first.get(TopicPartition("orders", partition), 0), rows[-1].next_offset)
    ]
    assert sorted(found) == sorted(want)


# --- data loss -------------------------------------------------------------------------------------------------------


def expire(bucket, upto):
    _, log = bucket.log("orders", 0)
    gone = [row.ulid for row in bucket.segments["orders", 0] if row.next_offset <= upto]
    log.commit(expire_segments(gone, now_ms=NOW, log_start_offset=upto), NOW)


def test_offsets_expired_before_the_read_are_an_error_or_left_out(bucket):
    add(bucket, 30, segments=3)
    start = StreamPosition(offsets={ZERO: 10}, topic_ids={})
    expire(bucket, 30)
    with pytest.raises(OffsetOutOfRange, match="offset=10 log_start_offset=30"):
        following(stream(bucket), start)
    planner = stream(bucket, failOnDataLoss="false")
    end = following(planner, start)
    assert read(bucket, planner.splits(start, end)) == [(0, offset) for offset in range(30, 90)]
    assert end.since == {ZERO: 30}, "the batch must be the same after a restart"


def test_deleted_partition_is_an_error_or_left_out(bucket):
    add(bucket, 30)
    start = StreamPosition(offsets={ZERO: 10, ONE: 5}, topic_ids={})
    with pytest.raises(NotFound, match=r"one of its partitions no longer exists; data was lost.*orders/1"):
        following(stream(bucket), start)
    planner = stream(bucket, failOnDataLoss="false")
    assert following(planner, start).offsets == {ZERO: 30}


def test_recreated_topic_is_an_error_or_read_from_its_beginning(bucket):
    add(bucket, 30)
    before = StreamPosition(offsets={ZERO: 10}, topic_ids={"orders": "B" * 22})
    with pytest.raises(NotFound, match="deleted and created again; data was lost"):
        following(stream(bucket), before)
    planner = stream(bucket, failOnDataLoss="false")
    end = following(planner, before)
    assert read(bucket, planner.splits(before, end)) == [(0, offset) for offset in range(30)]
    assert end.topic_ids == {"orders": "A" * 22}


def test_a_position_beyond_the_log_is_an_error(bucket):
    add(bucket, 30)
    ahead = StreamPosition(offsets={ZERO: 31}, topic_ids={})
    with pytest.raises(OffsetOutOfRange):
        following(stream(bucket), ahead)


def test_committed_stream_ends_before_an_open_transaction():
    from test_planning import transactions

    world = World()
    transactions(world)
    options = {"path": "memory://b", "subscribe": "t", "startingOffsets": "earliest"}
    for level, ended in (("read_committed", 450), ("read_uncommitted", 451)):
        planner = StreamPlanner(world.store, parse_stream_options({**options, "kafka.isolation.level": level}), Clock())
        start = initial(planner)
        assert following(planner, start).offsets == {NAME: ended}


def test_stream_across_a_compaction_returns_the_remaining_records():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "cleanup.policy": "compact"}, now_ms=NOW)
        send(manager, 200)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
    options = parse_stream_options({"path": "memory://b", "subscribe": "t", "startingOffsets": "earliest"})
    planner = StreamPlanner(world.store, options, Clock())
    position, found = initial(planner), []
    while (end := following(planner, position, offsets_max=30)) is not position:
        for split in planner.splits(position, end):
            for columns in split_columns(world.store, split):
                found += columns.offsets.tolist()
        position = end
    assert found == sorted(set(found))
    assert len(found) < 200


# --- options ---------------------------------------------------------------------------------------------------------


def test_stream_defaults_to_latest_and_has_its_own_options():
    least = {"path": "s3://b", "subscribe": "a"}
    assert parse_stream_options(least).read.start == Bound(everywhere=LATEST)
    assert parse_stream_options(least | {"startingOffsets": "earliest"}).read.start == Bound(everywhere=EARLIEST)
    both = parse_stream_options(least | {"startingOffsets": '{"a":{"0":-1,"1":-2}}'}).read.start
    assert list(both.by_partition.values()) == [LATEST, EARLIEST]
    limits = parse_stream_options(
        least | {"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "1MiB", "maxTriggerDelay": "30s"}
    )
    assert (limits.offsets_max, limits.bytes_max, limits.delay_max_ms) == (5, 1 << 20, 30_000)
    assert limits.read.pin_ms is None
    for wrong in ({"endingOffsets": "latest"}, {"endingTimestamp": "5"}, {"readCompacted": "true"}):
        with pytest.raises(InvalidRequest, match="streams do not support this option"):
            parse_stream_options(least | wrong)
