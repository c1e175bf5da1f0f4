"""`tiered dump` of files: intact, damaged, in a bucket, filtered, and in the format of Kafka's tool."""

from __future__ import annotations

import base64
import csv
import io
import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from remote_samples import table_of

from local import kernels
from local.errors import Corrupt, InvalidRequest
from local.format.columns import TORN, joined_tables
from local.format.crc32c import crc32c
from local.index import txn_index
from local.index.index_files import build_indexes
from local.log import checkpoints
from local.log.producer_state import ProducerEntry, encode_snapshot
from local.records.batch import HEADER_BYTES, Codec, encode_batch, encode_marker
from local.records.batch_runs import DISORDER, BatchRuns
from local.verify.findings import Severity
from local.verify.segment_checks import check_offset_index, check_time_index
from remote.segments.stored_segment import IndexBundle, encode_bundle
from remote.store.open_store import open_store
from tiered.cli import render
from tiered.cli.errors import Exit
from tiered.cli.main import invoke
from tiered.cli.render import Column, print_table
from tiered.inspect.dump_sources import Kind, kind_of, open_file, split_object_url
from tiered.inspect.dumping import DECODERS, Filter, LogDump, encode, sequence_of
from tiered.serve.groups.coordinator_records import decode_offsets_record, decode_transaction_record

BASE = 100
T0 = 1_700_000_000_000


def batches(count: int = 40, codec: Codec = Codec.NONE, each: int = 3) -> list[bytes]:
    made = []
    for at in range(count):
        records = [
            (
                b"k%d" % ((at * each + n) % 7),
                b"value %d" % (at * each + n),
                T0 + at * 10 + n,
                (("h", b"x"),) if n else (),
            )
            for n in range(each)
        ]
        made.append(encode_batch(records, base_offset=BASE + at * each, leader_epoch=at // 10, codec=codec))
    return made


def write(folder: Path, body: bytes, *, interval: int = 300) -> Path:
    """Writes a segment with its correct indexes."""
    path = folder / f"{BASE:020d}.log"
    path.write_bytes(body)
    indexes = build_indexes(kernels.scan_batches(body), BASE, interval)
    path.with_suffix(".index").write_bytes(indexes.offset)
    path.with_suffix(".timeindex").write_bytes(indexes.time)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders-0").mkdir()
    return tmp_path


@pytest.fixture
def segment(home: Path) -> Path:
    return write(home / "orders-0", b"".join(batches()))


def run(capfd, *words: str, code: int = 0) -> str:
    capfd.readouterr()
    got = invoke(list(words))
    out, err = capfd.readouterr()
    assert got == code, err
    run.err = err  # type: ignore[attr-defined]
    return out


def dump_of(path: Path, chosen: Filter | None = None) -> LogDump:
    return LogDump.of_file(open_file(str(path)), chosen or Filter())


# -- iteration over batches


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1000, 1 << 20])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_batch_runs_return_every_batch_once_for_any_chunk_size(chunk_bytes: int, codec: Codec) -> None:
    parts = batches(codec=codec)
    body = b"".join(parts)
    walk = BatchRuns(lambda start, length: body[start : start + length], len(body), chunk_bytes=chunk_bytes)
    found = []
    for each in walk:
        assert each.damage is None
        found += [(each.position + int(at)) for at in each.table.positions]
    assert found == [sum(map(len, parts[:at])) for at in range(len(parts))]
    assert (walk.position, walk.problem) == (len(body), None)


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_batch_with_a_wrong_crc_is_a_run_of_its_own_and_iteration_continues(chunk_bytes: int) -> None:
    parts = batches()
    parts[5] = parts[5][:-1] + bytes([parts[5][-1] ^ 1])
    parts[6] = parts[6][:-1] + bytes([parts[6][-1] ^ 1])
    body = b"".join(parts)
    walk = BatchRuns(lambda start, length: body[start : start + length], len(body), chunk_bytes=chunk_bytes)
    runs = list(walk)
    assert sum(len(each.table) for each in runs) == len(parts)
    assert [int(each.table.base_offsets[0]) for each in runs if each.damage == "crc differs"] == [BASE + 15, BASE + 18]
    assert walk.problem is None


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_batch_with_a_lower_offset_is_reported_and_the_rest_returned(chunk_bytes: int) -> None:
    parts = batches(10)
    body = b"".join([*parts[:6], *parts[3:]])
    runs = list(BatchRuns(lambda start, length: body[start : start + length], len(body), chunk_bytes=chunk_bytes))
    assert [int(each.table.base_offsets[0]) for each in runs if each.damage == DISORDER] == [BASE + 9]
    assert sum(len(each.table) for each in runs) == 13


def test_implausible_batch_length_ends_the_iteration() -> None:
    parts = batches(10)
    for length in (48, 2**31 - 1, 200):
        broken = parts[4][:8] + struct.pack(">i", length) + parts[4][12:]
        body = b"".join([*parts[:4], broken, *parts[5:]])
        walk = BatchRuns(lambda start, length, body=body: body[start : start + length], len(body))
        assert sum(len(each.table) for each in walk) == 4
        assert walk.problem is not None
        assert walk.position == sum(map(len, parts[:4]))


@pytest.mark.parametrize("bit", range(0, 8 * 200, 7))
def test_flipped_bit_never_raises_or_loses_the_batches_before_it(bit: int) -> None:
    parts = batches(12)
    body = bytearray(b"".join(parts))
    body[len(parts[0]) + bit // 8] ^= 1 << bit % 8
    walk = BatchRuns(lambda start, length: bytes(body[start : start + length]), len(body), chunk_bytes=500)
    runs = list(walk)
    assert int(runs[0].table.base_offsets[0]) == BASE
    assert walk.position <= len(body)


# -- batches and records


def test_dump_has_every_batch_field_of_kafkas_tool_in_its_order(segment: Path, capfd) -> None:
    rows = json.loads(run(capfd, "dump", str(segment), "-o", "json"))["batches"]
    assert list(rows[0]) == [
        *("baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId", "producerEpoch"),
        *("partitionLeaderEpoch", "isTransactional", "isControl", "deleteHorizonMs", "position", "timestampType"),
        *("maxTimestamp", "size", "magic", "compresscodec", "crc", "isvalid"),
    ]
    assert len(rows) == 40
    assert all(row["isvalid"] for row in rows)


def test_deep_iteration_prints_the_lines_of_kafkas_tool(home: Path, capfd) -> None:
    first = encode_batch(
        [(b"k", b"v", T0, (("a", b"1"), ("b", None))), (None, None, T0 + 5)],
        base_offset=BASE,
        producer_id=9,
        producer_epoch=3,
        base_sequence=2**31 - 1,
        is_transactional=True,
    )
    marker = encode_marker(
        base_offset=BASE + 2, is_commit=True, timestamp_ms=T0, producer_id=9, producer_epoch=3, coordinator_epoch=4
    )
    path = write(home / "orders-0", first + marker)
    crcs = [row.crc for row in dump_of(path).batches()]
    assert run(capfd, "dump", str(path), "--deep-iteration", "--print-data-log").splitlines() == [
        f"Dumping {path}",
        f"Log starting offset: {BASE}",
        "baseOffset: 100 lastOffset: 101 count: 2 baseSequence: 2147483647 lastSequence: 0 producerId: 9 producerEpoch:"
        " 3 partitionLeaderEpoch: 0 isTransactional: true isControl: false deleteHorizonMs: OptionalLong.empty"
        f" position: 0 CreateTime: {T0 + 5} size: {len(first)} magic: 2 compresscodec: none crc: {crcs[0]}"
        " isvalid: true",
        f"| offset: 100 CreateTime: {T0} keySize: 1 valueSize: 1 sequence: 2147483647 headerKeys: [a,b]"
        " key: k payload: v",
        f"| offset: 101 CreateTime: {T0 + 5} keySize: -1 valueSize: -1 sequence: 0 headerKeys: []",
        "baseOffset: 102 lastOffset: 102 count: 1 baseSequence: -1 lastSequence: -1 producerId: 9 producerEpoch: 3"
        " partitionLeaderEpoch: 0 isTransactional: true isControl: true deleteHorizonMs: OptionalLong.empty"
        f" position: {len(first)} CreateTime: {T0} size: 78 magic: 2 compresscodec: none crc: {crcs[1]} isvalid: true",
        f"| offset: 102 CreateTime: {T0} keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] endTxnMarker: COMMIT"
        " coordinatorEpoch: 4",
    ]
    (*_, control) = [json.loads(line) for line in run(capfd, "dump", str(path), "-o", "jsonl").splitlines()]
    assert control["control"] == {"type": "COMMIT", "coordinatorEpoch": 4}
    assert len(run(capfd, "dump", str(path), "--records").splitlines()) == 2


def test_sequence_after_the_maximum_is_zero() -> None:
    assert [sequence_of(2**31 - 2, delta) for delta in range(4)] == [2**31 - 2, 2**31 - 1, 0, 1]
    assert sequence_of(-1, 5) == -1


@pytest.mark.parametrize("codec", list(Codec))
def test_jsonl_has_one_object_per_record_with_its_batch(home: Path, capfd, codec: Codec) -> None:
    path = write(home / "orders-0", b"".join(batches(codec=codec)))
    rows = [json.loads(line) for line in run(capfd, "dump", str(path), "-o", "jsonl").splitlines()]
    assert [row["offset"] for row in rows] == list(range(BASE, BASE + 120))
    assert rows[4] | {"batch": None} == {
        "topic": "orders",
        "partition": 0,
        "offset": BASE + 4,
        "timestamp": T0 + 11,
        "timestampType": 0,
        "key": "k4",
        "value": "value 4",
        "headers": [{"key": "h", "value": "x"}],
        "keySize": 2,
        "valueSize": 7,
        "sequence": -1,
        "batch": None,
        "control": None,
    }
    assert rows[4]["batch"]["baseOffset"] == BASE + 3
    assert rows[4]["batch"]["compresscodec"] == codec.name.lower()


def test_every_output_format_has_the_same_records(segment: Path, capfd) -> None:
    lines = [json.loads(line) for line in run(capfd, "dump", str(segment), "-o", "jsonl").splitlines()]
    table = csv.DictReader(io.StringIO(run(capfd, "dump", str(segment), "--deep", "-o", "csv")))
    whole = json.loads(run(capfd, "dump", str(segment), "--deep", "-o", "json"))["records"]
    assert [row["offset"] for row in whole] == [row["offset"] for row in lines] == [int(row["offset"]) for row in table]
    assert [row["value"] for row in whole] == [row["value"] for row in lines]
    text = run(capfd, "dump", str(segment), "--deep", "-o", "table").splitlines()
    assert len(text) == 1 + len(lines)


@pytest.mark.parametrize(
    ("encoding", "shown"), [("utf8", {"base64": "/w=="}), ("base64", "/w=="), ("hex", "ff")], ids=["utf8", "b64", "hex"]
)
def test_bytes_that_are_not_text_are_encoded_and_null_stays_null(home: Path, capfd, encoding: str, shown) -> None:
    record = (None, b"\xff", T0, (("h", b"\xff"), ("n", None)))
    path = write(home / "orders-0", encode_batch([record, (b"", None, T0)], base_offset=BASE))
    first, second = (
        json.loads(line) for line in run(capfd, "dump", str(path), "-o", "jsonl", "--encoding", encoding).splitlines()
    )
    assert (first["key"], first["value"]) == (None, shown)
    assert first["headers"] == [{"key": "h", "value": shown}, {"key": "n", "value": None}]
    assert (second["key"], second["value"]) == ("", None)
    text = run(capfd, "dump", str(path), "--print-data-log", "--encoding", encoding)
    assert ("payload: base64:/w==" if encoding == "utf8" else f"payload: {shown}") in text


@pytest.mark.parametrize(
    ("decoder", "data", "shown"),
    [
        ("short", b"\xff\xfe", -2),
        ("integer", struct.pack(">i", -7), -7),
        ("long", struct.pack(">q", 2**62), 2**62),
        ("double", struct.pack(">d", 1.5), 1.5),
        ("float", struct.pack(">f", float("inf")), {"base64": "f4AAAA=="}),
        ("long", b"123", {"base64": "MTIz"}),
        ("json", b'{\n "a": [1, null]}', {"a": [1, None]}),
        ("json", b"{", {"base64": "ew=="}),
        ("hex", b"\0\xff", "00ff"),
    ],
)
def test_decoder_falls_back_to_base64_for_invalid_bytes(decoder: str, data: bytes, shown: object) -> None:
    assert DECODERS[decoder](data) == shown


def test_damaged_batch_is_marked_invalid_and_only_its_records_are_left_out(home: Path, capfd) -> None:
    parts = batches()
    parts[3] = parts[3][:-1] + bytes([parts[3][-1] ^ 1])
    path = home / "orders-0" / f"{BASE:020d}.log"
    path.write_bytes(b"".join(parts))
    rows = json.loads(run(capfd, "dump", str(path), "-o", "json", code=Exit.CORRUPTION))["batches"]
    assert [row["isvalid"] for row in rows] == [at != 3 for at in range(40)]
    assert f"crc differs: path={path} at={sum(map(len, parts[:3]))}" in run.err  # type: ignore[attr-defined]
    records = run(capfd, "dump", str(path), "-o", "jsonl", code=Exit.CORRUPTION).splitlines()
    assert len(records) == 117
    text = run(capfd, "dump", str(path), "--deep", code=Exit.CORRUPTION)
    assert text.count("isvalid: false") == 1
    assert text.count("\n| ") == 117


def test_undecodable_records_are_reported_and_the_others_shown(home: Path, capfd) -> None:
    parts = batches(6)
    # A batch with a correct checksum and invalid records: the length of the first record is too large.
    broken = bytearray(parts[2])
    broken[HEADER_BYTES] = 0x7E
    struct.pack_into(">I", broken, 17, crc32c(memoryview(broken)[21:]))
    parts[2] = bytes(broken)
    path = home / "orders-0" / f"{BASE:020d}.log"
    path.write_bytes(b"".join(parts))
    assert len(run(capfd, "dump", str(path), "-o", "jsonl", code=Exit.CORRUPTION).splitlines()) == 15
    text = run(capfd, "dump", str(path), "--deep", code=Exit.CORRUPTION)
    assert (text.count("baseOffset"), text.count("\n| ")) == (6, 15)
    (row,) = dump_of(path, Filter(key=b"no such key")).batches()
    assert row.base_offset == BASE + 6, "a batch that may have a matching record must be shown"


def test_torn_tail_is_a_finding_with_the_number_of_its_bytes(segment: Path, capfd) -> None:
    segment.write_bytes(segment.read_bytes() + b"\0" * 10)
    run(capfd, "dump", str(segment), code=Exit.FINDINGS)
    assert "found 10 invalid bytes at the end of" in run.err  # type: ignore[attr-defined]


def test_offset_gap_is_reported_as_information(home: Path, capfd) -> None:
    parts = batches()
    path = write(home / "orders-0", b"".join(parts[:3] + parts[5:]))
    run(capfd, "dump", str(path), "--deep")
    assert "1 non-consecutive offsets" in run.err  # type: ignore[attr-defined]
    assert "108 is followed by 115" in run.err  # type: ignore[attr-defined]
    run(capfd, "dump", str(path))
    assert "non-consecutive" not in run.err  # type: ignore[attr-defined]


# -- filters


RECORDS = [(BASE + n, T0 + n // 3 * 10 + n % 3, b"k%d" % (n % 7)) for n in range(120)]


@pytest.mark.parametrize(
    ("chosen", "rule"),
    [
        (Filter(from_offset=150), lambda offset, time, key: offset >= 150),
        (Filter(to_offset=131), lambda offset, time, key: offset < 131),
        (Filter(since_ms=T0 + 111), lambda offset, time, key: time >= T0 + 111),
        (Filter(until_ms=T0 + 111), lambda offset, time, key: time < T0 + 111),
        (Filter(key=b"k3"), lambda offset, time, key: key == b"k3"),
        (Filter(key=b"k", is_key_prefix=True), lambda offset, time, key: True),
        (Filter(key=b"", is_key_prefix=False), lambda offset, time, key: False),
        (
            Filter(from_offset=110, to_offset=190, since_ms=T0 + 50, until_ms=T0 + 200, key=b"k1"),
            lambda offset, time, key: 110 <= offset < 190 and T0 + 50 <= time < T0 + 200 and key == b"k1",
        ),
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_filter_returns_only_matching_records_and_their_batches(
    home: Path, codec: Codec, chosen: Filter, rule: Callable[..., bool]
) -> None:
    path = write(home / "orders-0", b"".join(batches(codec=codec)))
    expected = [offset for offset, *rest in RECORDS if rule(offset, *rest)]
    assert [row.offset for row in dump_of(path, chosen).records()] == expected
    holding = sorted({BASE + (offset - BASE) // 3 * 3 for offset in expected})
    assert [row.base_offset for row in dump_of(path, chosen).batches()] == holding
    both = list(dump_of(path, chosen).batches_and_records())
    assert [row.offset for row in both if hasattr(row, "offset")] == expected
    assert [row.base_offset for row in both if not hasattr(row, "offset")] == holding


def test_filter_options_are_parsed(segment: Path, capfd) -> None:
    def offsets(*words: str) -> list[int]:
        out = run(capfd, "dump", str(segment), "-o", "jsonl", *words)
        return [json.loads(line)["offset"] for line in out.splitlines()]

    assert offsets("--key", "k6", "-n", "2") == [106, 113]
    assert offsets("--key", "6b36", "--encoding", "hex", "--to-offset", "114") == [106, 113]
    assert offsets("--key-prefix", "k", "--from-offset", "218") == [218, 219]
    assert offsets("--since", f"@{T0 + 391}") == [218, 219]
    assert offsets("--until", "2023-11-14T22:13:20.002Z") == [100, 101]
    run(capfd, "dump", str(segment), "--key", "zz", "--encoding", "hex", code=2)
    run(capfd, "dump", str(segment), "--key", "a", "--key-prefix", "a", code=2)


# -- indexes


def test_indexes_are_compared_with_their_log(segment: Path, capfd) -> None:
    for suffix in (".index", ".timeindex"):
        path = segment.with_suffix(suffix)
        assert json.loads(run(capfd, "dump", str(path), "-o", "json"))["entries"]
        assert run(capfd, "dump", str(path), "--verify-index-only") == ""
        assert run(capfd, "dump", str(path), "--index-sanity-check") == ""
        assert "passed the sanity check" in run.err  # type: ignore[attr-defined]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_every_wrong_byte_in_an_index_is_found(segment: Path, capfd, suffix: str) -> None:
    path = segment.with_suffix(suffix)
    body = path.read_bytes()
    for at in range(len(body)):
        path.write_bytes(body[:at] + bytes([body[at] ^ 0x11]) + body[at + 1 :])
        run(capfd, "dump", str(path), "--verify-index-only", code=Exit.CORRUPTION)
        assert "index entry" in run.err  # type: ignore[attr-defined]


def test_zeros_at_the_end_of_an_index_are_reported_and_no_damage(segment: Path, capfd) -> None:
    for suffix, size in ((".index", 8), (".timeindex", 12)):
        path = segment.with_suffix(suffix)
        rows = json.loads(run(capfd, "dump", str(path), "-o", "json"))["entries"]
        path.write_bytes(path.read_bytes() + bytes(size * 5))
        assert json.loads(run(capfd, "dump", str(path), "-o", "json"))["entries"] == rows
        assert "5 empty slots at the end" in run.err  # type: ignore[attr-defined]
        run(capfd, "dump", str(path), "--index-sanity-check")


def test_index_entries_of_whole_appends_are_valid() -> None:
    body = b"".join(batches(12))
    table = kernels.scan_batches(body)
    places = joined_tables([table])
    # As a broker of version 3.x writes them: the position of an append of three batches, the last offset of the third.
    entries = [(int(table.last_offsets[at + 2]) - BASE, int(table.positions[at])) for at in (3, 6)]
    index = b"".join(struct.pack(">ii", *each) for each in entries)
    assert {each.severity for each in check_offset_index(index, BASE, places, path="x")} == {Severity.INFO}
    times = b"".join(
        struct.pack(">qi", int(table.max_timestamps[at]), int(table.last_offsets[at]) - BASE) for at in (5, 11)
    )
    assert check_time_index(times, BASE, places, path="x") == []


def test_index_without_its_log_is_checked_for_order(home: Path, capfd) -> None:
    path = home / f"{BASE:020d}.index"
    path.write_bytes(struct.pack(">iiii", 5, 100, 4, 200))
    run(capfd, "dump", str(path), code=Exit.CORRUPTION)
    run(capfd, "dump", str(path), "--verify-index-only", code=2)


def test_time_index_of_a_closed_segment_without_its_last_entry_is_a_finding(segment: Path, capfd) -> None:
    path = segment.with_suffix(".timeindex")
    path.write_bytes(path.read_bytes()[:-12])
    run(capfd, "dump", str(path))
    (segment.parent / f"{BASE + 120:020d}.log").write_bytes(b"")
    run(capfd, "dump", str(path), code=Exit.FINDINGS)
    assert "the last entry is missing" in run.err  # type: ignore[attr-defined]


# -- the other files


def test_other_files_of_a_log_directory_are_dumped_as_rows(home: Path, capfd) -> None:
    def rows(path: Path, what: str) -> list[dict[str, object]]:
        return json.loads(run(capfd, "dump", str(path), "-o", "json"))[what]

    (path := home / f"{BASE:020d}.txnindex").write_bytes(
        txn_index.AbortedTransaction(producer_id=9, first_offset=100, last_offset=110, last_stable_offset=100).pack()
    )
    assert rows(path, "transactions") == [
        {"version": 0, "producerId": 9, "firstOffset": 100, "lastOffset": 110, "lastStableOffset": 100}
    ]
    entry = ProducerEntry(
        producer_id=9,
        producer_epoch=1,
        last_sequence=1,
        last_offset=110,
        offset_delta=3,
        timestamp_ms=T0,
        coordinator_epoch=2,
        transaction_first_offset=-1,
    )
    (path := home / f"{BASE:020d}.snapshot").write_bytes(encode_snapshot([entry]))
    (row,) = rows(path, "producers")
    assert (row["firstSequence"], row["lastSequence"], row["currentTxnFirstOffset"]) == (2**31 - 2, 1, None)
    (path := home / "leader-epoch-checkpoint").write_bytes(checkpoints.encode_epochs([(0, 0), (2, 50)]))
    assert rows(path, "entries") == [{"epoch": 0, "startOffset": 0}, {"epoch": 2, "startOffset": 50}]
    for name in ("recovery-point", "log-start", "cleaner", "replication"):
        (path := home / f"{name}-offset-checkpoint").write_text("0\n1\nsome-topic 3 77\n")
        assert rows(path, "entries") == [{"topic": "some-topic", "partition": 3, "offset": 77}]
        path.write_text("0\n2\nsome-topic 3 77\n")
        run(capfd, "dump", str(path), code=Exit.CORRUPTION)
    (path := home / "partition.metadata").write_text("version: 0\ntopic_id: abc\n")
    assert rows(path, "fields")[1] == {"name": "topic_id", "value": "abc"}
    (path := home / "meta.properties").write_text("#Sat\nversion=1\ncluster.id=x=y\n")
    assert rows(path, "fields")[1] == {"name": "cluster.id", "value": "x=y"}
    for name in ("partition.metadata", "meta.properties"):
        (path := home / name).write_bytes(b"\xff\x00garbage\n\x80")
        run(capfd, "dump", str(path), code=Exit.CORRUPTION)
    (path := home / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    assert rows(path, "fields")[1] == {"name": "brokerEpoch", "value": 5}
    run(capfd, "dump", str(home / "leader-epoch-checkpoint"), "-o", "text")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("a-0/00000000000000000001.log", Kind.LOG),
        ("a-0/00000000000000000001.log.swap", Kind.LOG),
        ("a-0/00000000000000000001.index.deleted", Kind.OFFSET_INDEX),
        ("00000000000000000000-0000000000.checkpoint", Kind.LOG),
        ("s3://b/p/t-x/0/meta/head/00000000000000000007", Kind.MANIFEST),
        ("data/00-1-2-Z.indexes", Kind.INDEXES),
        ("orders", None),
        ("readme.md", None),
    ],
)
def test_kind_of_a_file_follows_from_its_name(path: str, kind: Kind | None) -> None:
    assert kind_of(path) is kind


def test_unknown_and_missing_files_are_refused(home: Path, capfd) -> None:
    (home / "notes.txt").write_text("x")
    run(capfd, "dump", "notes.txt", code=2)
    run(capfd, "dump", "file:///x/y.log", code=1)
    run(capfd, "dump", "s3://bucket", code=2)
    assert split_object_url("s3://b/p/q.log") == ("s3://b", "p/q.log")
    assert split_object_url("file:///a/b/c.log") == ("file:///a/b", "c.log")


# -- the bucket


STEM = f"t-{'A' * 22}/3/data/{BASE:020d}-{BASE + 119:020d}-0000000001-01ARZ3NDEKTSV4RRFFQ69G5FAV"


def test_objects_are_read_in_ranges_of_the_chunk_size(capfd) -> None:
    body = b"".join(batches(400, each=20))
    store = open_store("memory://ranged")
    store.put(STEM + ".log", body)
    asked: list[int] = []
    real = store.get_range

    def get_range(key: str, start: int, length: int) -> bytes:
        asked.append(length)
        return real(key, start, length)

    store.get_range = get_range  # type: ignore[method-assign]
    try:
        from tiered.inspect.dump_sources import open_object

        source = open_object(store, STEM + ".log")
        walk = BatchRuns(source.read, source.size_bytes, chunk_bytes=10_000)
        assert sum(len(each.table) for each in walk) == 400
        assert max(asked) == 10_000
    finally:
        del store.get_range
    (first, *_) = run(capfd, "dump", f"memory://ranged/{STEM}.log", "-o", "jsonl").splitlines()
    assert (json.loads(first)["topic"], json.loads(first)["partition"]) == ("t", 3)
    store.put(STEM + ".log", body[:-1])
    run(capfd, "dump", f"memory://ranged/{STEM}.log", code=Exit.CORRUPTION)


def test_index_bundle_is_dumped_by_section(capfd) -> None:
    body = b"".join(batches())
    indexes = build_indexes(kernels.scan_batches(body), BASE, 300)
    bundle = IndexBundle(
        offset=bytes(indexes.offset),
        time=bytes(indexes.time),
        txn=b"",
        producers=b"",
        epochs=checkpoints.encode_epochs([(0, 0)]),
        chunks=table_of(body, 1000),
    )
    open_store("memory://bundles").put(STEM + ".indexes", encode_bundle(bundle)[0])
    url = f"memory://bundles/{STEM}.indexes"
    whole = json.loads(run(capfd, "dump", url, "-o", "json"))
    assert [len(whole[name]) for name in ("offset", "time", "txn", "producers", "epochs", "chunks")] == [
        *(len(indexes.offset) // 8, len(indexes.time) // 12, 0, 0, 1, -(-len(body) // 1000))
    ]
    assert whole["offset"][0]["offset"] >= BASE
    assert json.loads(run(capfd, "dump", url, "-o", "json", "--section", "epochs"))["epochs"] == whole["epochs"]
    assert run(capfd, "dump", url, "-o", "csv", "--section", "epochs") == "epoch,startOffset\n0,0\n"
    assert run(capfd, "dump", url, "-o", "csv", "--section", "producers").count(",") == 9, (
        "an empty section must have the same columns"
    )
    run(capfd, "dump", url, "-o", "csv", code=2)
    assert "chunks:" in run(capfd, "dump", url)
    lines = [json.loads(line) for line in run(capfd, "dump", url, "-o", "jsonl").splitlines()]
    assert {row["section"] for row in lines} == {"offset", "time", "epochs", "chunks"}


# -- coordinators


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def test_committed_offsets_are_decoded_in_every_version() -> None:
    key = struct.pack(">h", 1) + text("group") + text("topic") + struct.pack(">i", 5)
    for version in range(5):
        value = struct.pack(">hq", version, 77)
        value += struct.pack(">i", 4) if version >= 3 else b""
        value += text("meta") if version < 4 else b"\x05meta"
        value += struct.pack(">q", T0)
        value += struct.pack(">q", T0 + 1) if version == 1 else b""
        value += b"\x01\x00\x01!" if version == 4 else b""  # one tagged field: tag 0, one byte
        manifest, body = decode_offsets_record(key, value)
        assert manifest == {"type": 1, "data": {"group": "group", "topic": "topic", "partition": 5}}
        assert body is not None
        assert body["version"] == version
        expected = {"offset": 77, "metadata": "meta", "commitTimestamp": T0}
        expected |= {"leaderEpoch": 4} if version >= 3 else {}
        expected |= {"expireTimestamp": T0 + 1} if version == 1 else {}
        expected |= {"unknownTaggedFields": {"0": "IQ=="}} if version == 4 else {}
        assert body["data"] == expected
    assert decode_offsets_record(key, None)[1] is None


def test_groups_are_decoded_in_every_version() -> None:
    key = struct.pack(">h", 2) + text("group")
    for version in range(4):
        value = struct.pack(">h", version) + text("consumer") + struct.pack(">i", 3) + text("range") + text("m")
        value += struct.pack(">q", T0) if version >= 2 else b""
        value += struct.pack(">i", 1) + text("m")
        value += struct.pack(">h", -1) if version >= 3 else b""
        value += text("client") + text("/host")
        value += struct.pack(">i", 60) if version >= 1 else b""
        value += struct.pack(">i", 30) + struct.pack(">i", 2) + b"ab" + struct.pack(">i", 0)
        manifest, body = decode_offsets_record(key, value)
        assert manifest == {"type": 2, "data": {"group": "group"}}
        assert body is not None
        (member,) = body["data"]["members"]  # type: ignore[index,call-overload]
        assert (member["memberId"], member["subscription"], member["assignment"]) == ("m", "YWI=", "")


def test_transactions_are_decoded_in_both_versions() -> None:
    key = struct.pack(">h", 0) + text("txn-1")
    plain = struct.pack(">hqhib", 0, 9, 3, 60_000, 4) + struct.pack(">i", 1) + text("orders")
    plain += struct.pack(">iii", 2, 0, 5) + struct.pack(">qq", T0 + 1, T0)
    flexible = struct.pack(">hqhib", 1, 9, 3, 60_000, 4) + b"\x02\x07orders" + b"\x03" + struct.pack(">ii", 0, 5)
    flexible += b"\x00" + struct.pack(">qq", T0 + 1, T0) + b"\x01\x00\x08" + struct.pack(">q", 8)
    expected = {
        "producerId": 9,
        "producerEpoch": 3,
        "transactionTimeoutMs": 60_000,
        "transactionStatus": "CompleteCommit",
        "transactionPartitions": [{"topic": "orders", "partitionIds": [0, 5]}],
        "transactionLastUpdateTimestampMs": T0 + 1,
        "transactionStartTimestampMs": T0,
    }
    assert decode_transaction_record(key, plain)[1] == {"version": 0, "data": expected}
    assert decode_transaction_record(key, flexible)[1] == {"version": 1, "data": {**expected, "previousProducerId": 8}}
    assert decode_transaction_record(key, plain)[0] == {"type": 0, "data": {"transactionalId": "txn-1"}}


def test_coordinator_decoders_raise_only_corrupt_for_random_bytes() -> None:
    rng = random.Random(7)
    key = struct.pack(">h", 2) + text("group")
    for _ in range(3000):
        noise = struct.pack(">h", rng.randrange(6)) + rng.randbytes(rng.randrange(60))
        for decode in (decode_offsets_record, decode_transaction_record):
            for pair in ((noise, noise), (key, noise), (struct.pack(">h", 0) + text("t"), noise), (None, noise)):
                try:
                    decode(*pair)
                except Corrupt:
                    continue


def test_dump_with_the_offsets_decoder_shows_committed_offsets(home: Path, capfd) -> None:
    key = struct.pack(">h", 1) + text("group") + text("topic") + struct.pack(">i", 5)
    value = struct.pack(">hqi", 3, 77, 4) + text("") + struct.pack(">q", T0)
    unknown = struct.pack(">h", 9) + b"xyz"
    body = encode_batch([(key, value, T0), (key, None, T0), (unknown, b"v", T0), (b"?", b"v", T0)], base_offset=BASE)
    path = write(home / "orders-0", body)
    rows = [json.loads(line) for line in run(capfd, "dump", str(path), "--offsets-decoder", "-o", "jsonl").splitlines()]
    assert rows[0]["key"]["data"] == {"group": "group", "topic": "topic", "partition": 5}
    assert rows[0]["value"]["data"]["offset"] == 77
    assert rows[1]["value"] is None
    assert base64.b64decode(rows[2]["key"]["base64"]) == unknown
    assert rows[3]["key"] == "?"
    assert '"offset":77' in run(capfd, "dump", str(path), "--offsets-decoder")


def test_encode_parses_a_key_in_the_given_encoding() -> None:
    assert encode("é", "utf8") == "é".encode()
    with pytest.raises(InvalidRequest):
        encode("=", "base64")


def test_dump_of_randomly_damaged_segments_never_raises(home: Path) -> None:
    rng = np.random.default_rng(5)
    body = np.frombuffer(b"".join(batches(10)), np.uint8)
    path = home / "orders-0" / f"{BASE:020d}.log"
    for _ in range(200):
        damaged = body.copy()
        damaged[rng.integers(0, len(body), 3)] ^= rng.integers(1, 255, 3).astype(np.uint8)
        path.write_bytes(damaged.tobytes()[: rng.integers(1, len(body))])
        dump = dump_of(path)
        list(dump.batches_and_records())
        assert dump.problem is not None or dump.invalid_bytes == 0 or dump.problem == TORN


def test_old_message_formats_are_printed_with_kafkas_old_lines(home: Path, capfd) -> None:
    def message(magic: int, offset: int) -> bytes:
        body = struct.pack(">bb", magic, 0) + (struct.pack(">q", T0) if magic else b"") + b"\0\0\0\1k\0\0\0\1v"
        return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body

    path = home / "orders-0" / f"{BASE:020d}.log"
    path.write_bytes(message(0, BASE) + message(1, BASE + 1) + encode_batch([(b"a", b"b", T0)], base_offset=BASE + 2))
    lines = run(capfd, "dump", str(path), "--print-data-log").splitlines()[2:]
    assert lines[0].startswith(f"offset: {BASE} position: 0 ")
    assert " magic: 0 " in lines[0]
    assert lines[1].endswith("keySize: 1 valueSize: 1 key: k payload: v")
    assert lines[2].startswith(f"offset: {BASE + 1} position: 28 CreateTime: {T0} ")
    assert len(lines) == 6
    broken = bytearray(path.read_bytes())
    broken[27] ^= 1
    path.write_bytes(broken)
    rows = json.loads(run(capfd, "dump", str(path), "-o", "json", code=Exit.CORRUPTION))["batches"]
    assert [(row["magic"], row["isvalid"]) for row in rows] == [(0, False), (1, True), (2, True)]


@pytest.mark.parametrize("option", ["--verify-index-only", "--index-sanity-check", "--section=offset"])
def test_option_for_another_kind_of_file_is_refused(home: Path, capfd, option: str) -> None:
    (path := home / f"{BASE:020d}.log").write_bytes(b"")
    run(capfd, "dump", str(path), option, code=Exit.USAGE)


def test_long_table_is_printed_in_aligned_parts(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    columns = (Column("n", "N", is_number=True), Column("text", "TEXT"), Column("last", "LAST"))
    rows = [{"n": 10 ** (at % 7), "text": "é" * (12 - at % 5), "last": at} for at in range(50)]
    print_table(rows, columns)
    whole = capsys.readouterr().out
    monkeypatch.setattr(render, "ROWS_AT_ONCE", 7)
    seen = []
    print_table((seen.append(len(capsys.readouterr().out)) or row for row in rows), columns)
    assert len([size for size in seen if size]) == 50 // 7, "lines must be printed before the last row is known"
    capsys.readouterr()
    print_table(rows, columns)
    assert capsys.readouterr().out.splitlines() == whole.splitlines()
    for none in ([], iter(())):
        print_table(none, columns)
        assert capsys.readouterr().out.split() == ["N", "TEXT", "LAST"]
