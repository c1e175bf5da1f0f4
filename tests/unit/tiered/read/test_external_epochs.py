"""External buckets with wrong leader epochs: the batches are authoritative, and no wrong epoch hides a record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from bucket_truth import assert_sound
from external_samples import NAME, NOW, TOPIC_ID, Files, Sample, put_aiven, put_kafka_local, write_log
from external_truth import assert_reads

from local.log.leader_epochs import LeaderEpochs
from local.verify.findings import Severity
from remote.external.external_formats import external_format
from remote.external.external_layout import ExternalSegment, KnownSegment, LayoutOptions
from remote.store.memory_store import MemoryStore
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.migrate.import_bucket import plan_import, run_import
from tiered.read.bucket_reader import RemoteLog
from tiered.read.external_partition import hidden

Epochs = dict[int, int]
SEGMENTS = 5


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Sample:
    found = write_log(tmp_path_factory.mktemp("log") / NAME.directory, epochs=(0, 2, 5))
    assert len(found.segments) >= SEGMENTS
    return found


def _opened(store, layout: str = "aiven") -> RemoteLog:
    return RemoteLog(store, layout=LayoutOptions(layout=layout))


def _true_epochs(sample: Sample, files: Files) -> Epochs:
    lines = sample.segments[-1].epochs.decode().split("\n")[2:]
    entries = tuple((int(one), int(two)) for one, two in (line.split() for line in lines if line))
    return dict(LeaderEpochs(entries).between(files.base, files.next))


LIES: dict[str, Callable[[Epochs, Files], dict]] = {
    "too high": lambda own, files: {9: files.base},
    "far too high": lambda own, files: {2**31 - 1: files.base},
    "absurd": lambda own, files: {10**20: files.base},
    "too low": lambda own, files: {0: files.base},
    "between": lambda own, files: {1: files.base},
    "rising too early": lambda own, files: {min(own): files.base, 9: files.base + 1},
    "falling": lambda own, files: {3: files.base + 2, 4: files.base + 1},
    "before the segment": lambda own, files: {max(own): 0},
    "negative": lambda own, files: {-1: files.base},
    "beyond the end": lambda own, files: {0: files.next + 10},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("number", range(SEGMENTS))
def test_wrong_epochs_in_one_manifest_hide_no_record(sample, lie: str, number: int) -> None:
    store = MemoryStore()
    for at, files in enumerate(sample.segments):
        own = LIES[lie](_true_epochs(sample, files), files) if at == number else None
        put_aiven(store, files, number=at, epochs=own)
    with _opened(store) as bucket:
        assert bucket.gaps(NAME) == []
        assert_reads(bucket, sample)
        assert all(each.severity is Severity.WARNING for each in bucket.findings(NAME))


@pytest.mark.parametrize("count", [2, SEGMENTS])
def test_wrong_epochs_in_several_manifests_hide_no_record(sample, count: int) -> None:
    store = MemoryStore()
    for at, files in enumerate(sample.segments):
        put_aiven(store, files, number=at, epochs={90 - at: files.base} if at < count else None)
    with _opened(store) as bucket:
        assert_reads(bucket, sample)
        found = bucket.findings(NAME)
        assert len(found) >= count
        bucket.refresh()
        assert bucket.findings(NAME) == found, "a second read must give the same findings"


@pytest.mark.parametrize("more", [1, 60, 10**6])
@pytest.mark.parametrize("number", range(SEGMENTS - 1))
def test_end_offset_that_is_too_high_hides_no_record(sample, number: int, more: int) -> None:
    store = MemoryStore()
    for at, files in enumerate(sample.segments):
        own = _true_epochs(sample, files)
        put_aiven(store, replace(files, next=files.next + more) if at == number else files, number=at, epochs=own)
    with _opened(store) as bucket:
        assert bucket.reader().offsets(NAME) == (0, sample.end)
        assert list(bucket.reader().records(NAME, 0)) == sample.records


def test_wrong_epoch_is_a_finding_that_names_the_object(sample, tmp_path, capfd) -> None:
    """The command that found this case: exit code 0, and no missing records."""
    (tmp_path / "theirs").mkdir()
    url = (tmp_path / "theirs").as_uri()
    store = open_store(url)
    stems = [
        put_aiven(store, files, number=at, epochs={77: files.base} if at == 1 else None)
        for at, files in enumerate(sample.segments)
    ]
    store.close()
    assert invoke(["remote", "ls", url, "-o", "json"]) == 3
    out, err = capfd.readouterr()
    (entry,) = json.loads(out)["partitions"]
    assert (entry["next_offset"], entry["missing_offsets"]) == (sample.end, 0)
    assert stems[1] in err
    assert "its leader epochs contradict its batches: claimed=77@" in err
    words = ["consume", f"{NAME.topic}/{NAME.partition}", "--remote", url, "--layout", "aiven", "-f", "%o\\n"]
    assert invoke(words) == 0
    assert capfd.readouterr().out.split() == [str(each.offset) for each in sample.records]


# --- an unreadable manifest is left out, and the rest is read --------------------------------------------------------


BROKEN = {"not json": b"\x00\xff", "another version": b'{"version":"7"}', "too large": b" " * ((16 << 20) + 1)}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("number", [0, 2, -1])
def test_broken_manifest_blocks_only_its_own_segment(sample, what: str, number: int) -> None:
    store = MemoryStore()
    stems = [put_aiven(store, files, number=at) for at, files in enumerate(sample.segments)]
    store.put(stems[number] + ".rsm-manifest", BROKEN[what])
    lost = sample.segments[number]
    with _opened(store) as bucket:
        (found,) = bucket.findings(NAME)
        assert (found.severity, found.where) == (Severity.CORRUPT, stems[number] + ".rsm-manifest")
        start = bucket.reader().offsets(NAME)[0]
        read = [each.offset for each in bucket.reader().records(NAME, start)]
        assert read == [each.offset for each in sample.records if not lost.base <= each.offset < lost.next]
        good = MemoryStore()
        put_aiven(good, lost, number=number % len(stems))
        for suffix in (".rsm-manifest", ".log", ".indexes"):
            store.put(stems[number] + suffix, good.get(stems[number] + suffix))
        bucket.refresh()
        assert bucket.findings(NAME) == [], "the repaired manifest must be read again"
        assert_reads(bucket, sample)


@pytest.mark.parametrize("body", [b"", b"0\nx\n", b"0\n1\n7 zero\n", b"0\n2\n5 10\n2 20\n", b"0\n1\n%d 0\n" % 10**20])
@pytest.mark.parametrize("layout", ["aiven", "local-tiered-storage"])
def test_broken_epoch_checkpoint_blocks_no_segment(sample, body: bytes, layout: str) -> None:
    if layout != "aiven" and not body:
        return  # that layout needs a checkpoint in every segment
    store = MemoryStore()
    for at, files in enumerate(sample.segments):
        broken = replace(files, epochs=body) if at == len(sample.segments) - 1 else files
        if layout == "aiven":
            put_aiven(store, broken, number=at, epochs=_true_epochs(sample, files))
        else:
            put_kafka_local(store, broken, number=at)
    with _opened(store, layout) as bucket:
        assert list(bucket.reader().records(NAME, 0)) == sample.records
        assert bool(bucket.findings(NAME)) == bool(body)


@pytest.mark.parametrize("body", [b"0\n2\n0 0\n9 20\n", b"0\n1\n9 0\n", b"0\n3\n0 0\n1 30\n5 300\n"])
def test_checkpoint_that_contradicts_its_batches_hides_no_record(sample, body: bytes) -> None:
    store = MemoryStore()
    for at, files in enumerate(sample.segments):
        wrong = at == len(sample.segments) - 1
        put_aiven(store, replace(files, epochs=body) if wrong else files, number=at, epochs=_true_epochs(sample, files))
    with _opened(store) as bucket:
        lost = {each.offset for each in sample.records} - {each.offset for each in bucket.reader().records(NAME, 0)}
        told = [each.offsets for each in bucket.findings(NAME) if each.offsets is not None]
        assert bucket.findings(NAME)
        assert all(any(start <= offset < end for start, end in told) for offset in lost)


@pytest.mark.parametrize("number", [0, 3])
def test_import_stops_before_an_unreadable_segment_and_continues_after_a_repair(sample, number: int) -> None:
    source, target = MemoryStore("memory://theirs"), MemoryStore("memory://ours")
    stems = [put_aiven(source, files, number=at) for at, files in enumerate(sample.segments)]
    good = source.get(stems[number] + ".rsm-manifest")
    source.put(stems[number] + ".rsm-manifest", b"{}")
    layout = external_format(source, LayoutOptions(layout="aiven"))
    (name,) = layout.partitions(source)

    def run():
        plan = plan_import(source, layout, name, target, topic_id=TOPIC_ID, now_ms=NOW)
        return plan, run_import(source, layout, target, plan, now_ms=lambda: NOW)

    plan, outcome = run()
    assert plan.blocked_from == sample.segments[number].base
    assert (outcome.is_complete, outcome.next_offset) == (False, sample.segments[number].base)
    source.put(stems[number] + ".rsm-manifest", good)
    plan, outcome = run()
    assert (plan.blocked_from, plan.findings, outcome.is_complete) == (None, (), True)
    assert outcome.next_offset == sample.end
    assert_sound(target)


def test_import_with_a_blocked_segment_exits_4(sample, tmp_path, capfd) -> None:
    for each in ("theirs", "ours"):
        (tmp_path / each).mkdir()
    store = open_store((tmp_path / "theirs").as_uri())
    stems = [put_aiven(store, files, number=at) for at, files in enumerate(sample.segments)]
    store.put(stems[2] + ".rsm-manifest", b"{}")
    store.close()
    words = ["import", (tmp_path / "theirs").as_uri(), "--yes", "--remote", (tmp_path / "ours").as_uri(), "-o", "json"]
    assert invoke(words) == 4
    out, err = capfd.readouterr()
    (entry,) = json.loads(out)["partitions"]
    assert (entry["next_offset"], entry["is_complete"]) == (sample.segments[2].base, False)
    assert f"the import ends before offset {sample.segments[2].base}" in err
    assert stems[2] in err


# --- hidden offsets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranges", "chosen", "expected"),
    [
        ([(0, 10), (10, 20)], [(0, 10), (1, 20)], []),
        ([(0, 10), (10, 20)], [(0, 10)], [(10, 20)]),
        ([(0, 10), (5, 20)], [(0, 5), (1, 20)], []),
        ([(0, 10), (0, 10)], [(1, 10)], []),
        ([(0, 10), (20, 30)], [(0, 7), (1, 30)], [(7, 10)]),
        ([(0, 10), (10, 20), (20, 30)], [], [(0, 30)]),
        ([(0, 30), (10, 20)], [(1, 20)], [(0, 10), (20, 30)]),
    ],
)
def test_hidden_offsets_are_the_offsets_of_copies_that_are_not_read(ranges, chosen, expected) -> None:
    copies = [
        KnownSegment(
            segment=ExternalSegment(data_key="a", base_offset=base, size_bytes=1, stored_bytes=1),
            next_offset=end,
            size_bytes=1,
            max_timestamp_ms=None,
            epochs=(),
        )
        for base, end in ranges
    ]
    assert hidden(copies, [(copies[number], end) for number, end in chosen]) == expected
