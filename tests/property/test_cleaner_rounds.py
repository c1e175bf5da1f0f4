"""The cleaner on random logs in several passes, compared with an independent reference implementation."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from cleaner_oracle import Batch, Round, batches_of, expected
from disk_model import ModelDisk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from old_formats import OldLog, lay_down, old_log
from run_profile import deep_only, examples, seeds

from local.cleaner import cleaner
from local.cleaner.offset_map import Buffer
from local.format.compression import Codec
from local.format.record import Record, TimestampType
from local.log import Log
from local.names import TopicPartition
from local.records.batch import encode_batch
from local.records.isolation import Isolation
from local.settings import LogSettings
from local.storage import DiskStorage

NAME = TopicPartition("t", 0)
LIMITS = LogSettings(segment_bytes=900, index_interval_bytes=120, segment_index_bytes=400)
RETENTION_MS = 1000

KEYS = st.sampled_from([None, *[b"k%d" % at for at in range(6)]])
VALUES = st.sampled_from([None, None, b"", b"v", b"a longer value, of words"])
HEADERS = st.sampled_from([(), (("h", b"1"),), (("h", None), ("i", b""))])
RECORDS = st.lists(st.builds(Record, KEYS, VALUES, st.integers(0, 50_000), HEADERS), min_size=1, max_size=5)
PRODUCERS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("put"), RECORDS, st.sampled_from(Codec), st.booleans()),
    st.tuples(st.just("write"), PRODUCERS, RECORDS, st.sampled_from(Codec)),
    st.tuples(st.just("send"), PRODUCERS, RECORDS, st.sampled_from(Codec)),
    st.tuples(st.just("end"), PRODUCERS, st.booleans()),
    st.tuples(st.just("roll")),
    st.tuples(st.just("wait"), st.sampled_from([1, 500, 1000, 5000])),
    st.tuples(st.just("clean"), st.sampled_from([None, None, 0, 7, 25]), st.sampled_from([1 << 20, 260])),
)


@dataclass
class World:
    """A log and its producers. Ids from 0 write in transactions, ids from 10 without."""

    disk: ModelDisk | DiskStorage = field(default_factory=ModelDisk)
    directory: str = "./t-0"
    now_ms: int = 100_000
    sequences: dict[int, int] = field(default_factory=dict)
    old: OldLog = field(default_factory=OldLog)  # segments of formats 0 and 1 below all other records

    def __post_init__(self) -> None:
        lay_down(self.disk, self.directory, self.old.segments, modified_ms=self.now_ms - 5000)
        self.log = Log.open(self.disk, self.directory, NAME, LIMITS, now_ms=0)
        self.log.cleaner_offset = self.old.clean_to

    def put(self, records: list[Record], codec: Codec, is_append_time: bool) -> None:
        times = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time_ms": self.now_ms}
        batch = encode_batch(records, codec=codec, **(times if is_append_time else {}))
        self.log.append_encoded([bytearray(batch)], now_ms=self.now_ms)

    def write(self, producer: int, records: list[Record], codec: Codec) -> None:
        self._append(producer, records, codec, is_transactional=True)

    def send(self, producer: int, records: list[Record], codec: Codec) -> None:
        self._append(producer + 10, records, codec, is_transactional=False)

    def _append(self, producer: int, records: list[Record], codec: Codec, *, is_transactional: bool) -> None:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(records)
        batch = encode_batch(
            records,
            codec=codec,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=is_transactional,
        )
        self.log.append_encoded([bytearray(batch)], now_ms=self.now_ms)

    def end(self, producer: int, commit: bool) -> None:
        self.log.append_marker(producer, 0, commit=commit, now_ms=self.now_ms)

    def roll(self) -> None:
        self.log.roll(now_ms=self.now_ms)

    def wait(self, step_ms: int) -> None:
        self.now_ms += step_ms

    def clean(self, tombstones_below: int | None, buffer_bytes: int) -> None:
        """Clean the log and compare the result with the reference."""
        log = self.log
        log.roll(now_ms=self.now_ms)
        before, dirty_from = batches_of(log), log.cleaner_offset or 0
        bases = [segment.base_offset for segment in log.view.segments]
        dirty_base = max((base for base in bases if base <= dirty_from), default=0)
        aborted = [(a.producer_id, a.first_offset, a.last_offset) for a in log.aborted_transactions(0, log.next_offset)]
        producers = {p.producer_id: (p.producer_epoch, _known(p.last_offset)) for p in log.producers()}
        visible = committed_values(log)
        legacy_due = self._legacy_due(dirty_from)
        done = cleaner.clean(
            log,
            clean_from=0,
            now_ms=self.now_ms,
            delete_retention_ms=RETENTION_MS,
            tombstones_below=tombstones_below,
            buffer=Buffer(size_bytes=buffer_bytes),
        )
        log.remove_deleted(self.now_ms)
        if done is None:
            assert batches_of(log) == before
            return
        upto = done.cleaner_offset
        facts = Round(dirty_base, upto, self.now_ms, RETENTION_MS, tombstones_below, aborted, producers, legacy_due)
        flat = [batch for segment in before for batch in segment]
        wanted = expected([batch for batch in flat if batch.base_offset < upto], facts)
        rest = [batch for batch in flat if batch.base_offset >= upto]
        self._compare(wanted, rest, upto)
        assert committed_values(log) == visible
        return

    def _legacy_due(self, dirty_from: int) -> frozenset[int]:
        """Kafka's rule: the segment is older than the last segment of the clean part by at least the retention."""
        segments = [(segment.base_offset, segment.modified_ms) for segment in self.log.view.segments]
        clean = [modified_ms for base, modified_ms in segments if base < dirty_from]
        horizon_ms = clean[-1] - RETENTION_MS if clean else 0
        return frozenset(
            batch.last_offset
            for (_, modified_ms), batches in zip(segments, batches_of(self.log), strict=True)
            for batch in batches
            if modified_ms <= horizon_ms
        )

    def _compare(self, wanted: list[Batch], rest: list[Batch], upto: int) -> None:
        """The batches must be equal, with two exceptions.
        1. The only batch of a segment may stay although it is empty.
        2. Records that a record in a later segment supersedes may be missing."""
        found: list[Batch] = []
        for segment, batches in zip(self.log.view.segments, batches_of(self.log), strict=True):
            is_alone = len(batches) == 1 and not batches[0].records and batches[0] not in wanted
            if segment.base_offset < upto and not is_alone:
                found += batches
            elif segment.base_offset >= upto:
                assert batches == [batch for batch in rest if batch in batches]
        later = {record.key for batch in rest for record in batch.records}
        ours = {record.offset for batch in found for record in batch.records}
        for batch in wanted:
            for record in batch.records:
                assert record.offset in ours or record.key in later
        left = {record.offset for batch in wanted for record in batch.records}
        assert ours <= left, "the cleaner must remove every record that the reference removes"
        if ours == left:
            assert found == wanted

    def reopen(self) -> None:
        cleaned = self.log.cleaner_offset
        before = batches_of(self.log)
        assert self.log.close()
        self.log = Log.open(self.disk, self.directory, NAME, LIMITS, now_ms=0, was_clean=True)
        self.log.cleaner_offset = cleaned
        assert batches_of(self.log)[: len(before) - 1] == before[:-1]

    def play(self, steps: list[tuple]) -> None:
        """Run `steps`, end all transactions, and clean as often as the removal of tombstones needs."""
        for name, *words in steps:
            getattr(self, name)(*words)
        for wait in (500, 1000, 500, 1000):
            for producer in range(3):
                self.end(producer, True)
            self.wait(wait)
            self.clean(None, 1 << 20)
        self.reopen()


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None


def committed_values(log: Log) -> dict[bytes | None, bytes]:
    """The table of newest committed values of the log. Records without a key do not count."""
    latest = {r.key: r.value for r in log.records(log.log_start_offset, isolation=Isolation.READ_COMMITTED)}
    return {key: value for key, value in latest.items() if value is not None and key is not None}


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=25))
def test_the_cleaner_keeps_the_same_batches_as_the_reference_in_any_number_of_passes(steps: list[tuple]) -> None:
    World().play(steps)


def drawn(seed: int) -> list[tuple]:
    """A long sequence with many passes, delete horizons and ends of transactions."""
    rng = random.Random(seed)

    def record() -> Record:
        key = None if rng.random() < 0.05 else b"k%d" % rng.randrange(8)
        value = None if rng.random() < 0.3 else bytes(rng.randrange(40))
        return Record(key, value, rng.randrange(50_000), (("h", b"1"),) if rng.random() < 0.2 else ())

    def step() -> tuple:
        records, codec = [record() for _ in range(rng.randint(1, 5))], rng.choice([Codec.NONE, Codec.NONE, *Codec])
        producer = rng.randrange(3)
        return rng.choices(
            [
                ("put", records, codec, rng.random() < 0.2),
                ("write", producer, records, codec),
                ("send", producer, records, codec),
                ("end", producer, rng.random() < 0.5),
                ("roll",),
                ("wait", rng.choice([1, 500, 500, 1000])),
                ("clean", rng.choice([None, None, 0, rng.randrange(100)]), rng.choice([1 << 20, 1 << 20, 260])),
            ],
            [4, 5, 2, 5, 1, 3, 3],
        )[0]

    return [step() for _ in range(80)]


@pytest.mark.parametrize("seed", seeds(30))
def test_messages_of_old_formats_are_cleaned_like_others_and_become_batches(seed: int) -> None:
    story = World(old=old_log(random.Random(seed)))
    assert {batch.magic for segment in batches_of(story.log) for batch in segment} <= {0, 1}
    story.play(drawn(seed))
    assert {batch.magic for segment in batches_of(story.log) for batch in segment} == {2}


@pytest.mark.parametrize("seed", seeds(60))
def test_cleaning_of_transactions_and_horizons_keeps_the_references_batches(seed: int) -> None:
    World().play(drawn(seed))


@pytest.mark.parametrize("seed", seeds(10))
@pytest.mark.parametrize("buffer_bytes", [60, *deep_only(120)])
def test_a_log_cleaned_in_parts_keeps_the_same_records_as_in_one_pass(seed: int, buffer_bytes: int) -> None:
    """The same sequence with a buffer for a few keys and with a buffer for all keys, tombstones and markers
    included."""
    steps = [step for step in drawn(seed) if step[0] != "clean"]
    whole, parts = World(), World()
    for world in (whole, parts):
        for name, *words in steps:
            getattr(world, name)(*words)
        for producer in range(3):
            world.end(producer, True)
    for _ in range(2):
        whole.clean(None, 1 << 20)
        while _part(parts, buffer_bytes):
            pass
        assert _data(parts.log) == _data(whole.log)
        for world in (whole, parts):
            world.wait(5 * RETENTION_MS)
            world.log.cleaner_offset = 0


def _part(world: World, buffer_bytes: int) -> bool:
    """One pass that may end inside a segment. The committed values must not change."""
    log = world.log
    log.roll(now_ms=world.now_ms)
    before, visible, offset = _data(log), committed_values(log), log.cleaner_offset or 0
    committed = set(_data(log, Isolation.READ_COMMITTED))
    buffer = Buffer(size_bytes=buffer_bytes)
    done = cleaner.clean(log, now_ms=world.now_ms, delete_retention_ms=RETENTION_MS, tombstones_below=None,
                         buffer=buffer)  # fmt: skip
    log.remove_deleted(world.now_ms)
    if done is None:
        return False
    after = _data(log)
    assert offset < done.cleaner_offset
    assert committed_values(log) == visible
    assert set(after) <= set(before)
    assert [each for each in before if each >= done.cleaner_offset] == [
        each for each in after if each >= done.cleaner_offset
    ], "every record from the first one without room in the buffer must stay"
    assert set(_data(log, Isolation.READ_COMMITTED)) <= committed, "no aborted record may become visible"
    return True


def _data(log: Log, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> dict[int, tuple[bytes | None, bytes | None]]:
    """The data records by offset."""
    records = log.records(log.log_start_offset, isolation=isolation)
    return {record.offset: (record.key, record.value) for record in records}
