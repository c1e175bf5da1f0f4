"""Appends from columns: the same log as from tuples, and the same bytes if batches have the same boundaries."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from disk_model import ModelDisk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_world import open_log, read_all

from local.errors import Corrupt, InvalidRequest
from local.format.columns import Columns
from local.format.compression import Codec
from local.format.record import Record, TimestampType
from local.kernels import dispatch as kernels
from local.kernels import pure_kernels
from local.log import encoding
from local.log.encoding import encode_column_batches
from local.names import TopicPartition
from local.records.batch import encode_batch, encode_marker
from local.records.record_columns import RecordColumns, of_columns, record_columns
from local.settings import LogSettings

NAME = TopicPartition("t", 0)
RECORDS = [
    Record(b"key", b"value", 1000),
    Record(None, b"no key", 1005),
    Record(b"tombstone", None, 990),
    Record(b"", b"", -1),
    Record(b"headers", b"v", 1001, (("first", b"1"), ("first", b"2"), ("null", None), ("ä", b""))),
    Record(b"long", bytes(range(256)) * 40, 2**62),
]
PLAIN = [record for record in RECORDS if not record.headers]


@pytest.fixture(autouse=True, params=["compiled", "pure"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pure":
        monkeypatch.setattr(kernels, "_chosen", pure_kernels)
    elif kernels.implementation() != "compiled":
        pytest.skip("the extension was not built")
    return str(request.param)


def columns_of(records: list[Record], codec: Codec = Codec.NONE) -> Columns:
    return kernels.decode_columns(encode_batch(records, codec=codec, base_offset=77))


def table_of(records: list[Record], kind: pa.DataType | None = None) -> pa.Table:
    kind = pa.binary() if kind is None else kind
    fields: dict[str, Any] = {
        "key": pa.array([record.key for record in records], pa.binary()).cast(kind),
        "value": pa.array([record.value for record in records], pa.binary()).cast(kind),
        "timestamp": pa.array([record.timestamp_ms for record in records], pa.int64()),
    }
    if any(record.headers for record in records):
        pairs = [[{"key": key, "value": value} for key, value in record.headers] for record in records]
        fields["headers"] = pa.array(pairs, pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))
    return pa.table(fields)


def made(data: object, **options: Any) -> list[bytes]:
    chunks = record_columns(data, now_ms=5)
    return [bytes(batch) for batch in encode_column_batches(chunks, LogSettings(**options), partition=NAME, now_ms=5)]


def records_in(batches: list[bytes]) -> list[Record]:
    read = [record for batch in batches for record in kernels.decode_columns(batch).records()]
    return [Record(record.key, record.value, record.timestamp_ms, record.headers) for record in read]


# -- the same records as from tuples


@pytest.mark.parametrize("source", [columns_of, table_of, lambda records: columns_of(records, Codec.LZ4)])
def test_columns_are_encoded_to_the_same_bytes_as_tuples(source: Callable[[list[Record]], object]) -> None:
    assert made(source(RECORDS)) == [encode_batch(RECORDS)]


@pytest.mark.parametrize("codec", Codec)
def test_columns_are_compressed_to_the_same_bytes_as_tuples(codec: Codec) -> None:
    assert made(table_of(RECORDS), compression=codec) == [encode_batch(RECORDS, codec=codec)]


def test_log_append_time_is_the_time_of_the_append() -> None:
    (batch,) = made(table_of(RECORDS), timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert batch == encode_batch(RECORDS, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=5)


KINDS = [
    pa.binary(),
    pa.large_binary(),
    pa.string(),
    pa.large_string(),
    pa.binary_view(),
    pa.string_view(),
]
TEXTS = [Record(b"a", b"text", 1), Record(None, None, 2), Record(b"", b"a longer text than fits inline", 3)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("cut", [slice(0, None), slice(1, None), slice(1, 2), slice(0, 2)], ids=str)
def test_every_arrow_binary_and_string_type_and_its_slices_are_encoded(kind: pa.DataType, cut: slice) -> None:
    table = table_of(TEXTS, kind)[cut.start : cut.stop]
    assert records_in(made(table)) == TEXTS[cut]
    assert records_in(made(table.to_batches()[0])) == TEXTS[cut]


def test_dictionary_fixed_size_and_null_columns_are_encoded_as_binary() -> None:
    values = pa.array([b"x", b"y", None, b"x"])
    assert records_in(made(pa.table({"value": values.dictionary_encode()}))) == [
        Record(None, value, 5) for value in (b"x", b"y", None, b"x")
    ]
    fixed = pa.array([b"abc", None], pa.binary(3))
    assert [record.key for record in records_in(made(pa.table({"key": fixed})))] == [b"abc", None]
    nothing = pa.table({"key": pa.nulls(2), "value": [b"a", b"b"]})
    assert [record[:2] for record in records_in(made(nothing))] == [(None, b"a"), (None, b"b")]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (pa.array([1, 2], pa.int32()), [1, 2]),
        (pa.array([1, 2], pa.uint64()), [1, 2]),
        (pa.array([1_700_000_000, 1], pa.timestamp("s")), [1_700_000_000_000, 1000]),
        (pa.array([1999, 2_000_999], pa.timestamp("us", tz="Europe/Berlin")), [1, 2000]),
        (pa.array([1_999_999, 2_000_000], pa.timestamp("ns")), [1, 2]),
        (pa.array([7, 8], pa.timestamp("ms")), [7, 8]),
        (None, [5, 5]),
    ],
)
def test_timestamps_of_every_unit_are_stored_as_milliseconds(times: pa.Array | None, expected: list[int]) -> None:
    columns = {"key": [b"a", b"b"]} | ({} if times is None else {"timestamp": times})
    assert [record.timestamp_ms for record in records_in(made(pa.table(columns)))] == expected


def test_headers_may_be_a_map_or_null() -> None:
    pairs = pa.array([[("a", b"1"), ("a", None)], None, []], pa.map_(pa.string(), pa.binary()))
    made_of = records_in(made(pa.table({"key": [b"1", b"2", b"3"], "headers": pairs})))
    assert [record.headers for record in made_of] == [(("a", b"1"), ("a", None)), (), ()]


def test_any_object_with_arrows_c_stream_interface_is_encoded() -> None:
    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return table_of(PLAIN).__arrow_c_stream__(requested_schema)

    assert records_in(made(Stream())) == PLAIN


def test_many_small_chunks_become_one_batch() -> None:
    table = pa.concat_tables([table_of(PLAIN)] * 50)
    assert table.column("key").num_chunks == 50
    assert len(made(table, batch_bytes=1 << 20)) == 1
    assert records_in(made(table)) == PLAIN * 50


# -- batches


@pytest.mark.parametrize("batch_bytes", [1, 61, 100, 200, 1000, 10**6])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_batches_are_as_large_as_batch_bytes_allows(batch_bytes: int, codec: Codec) -> None:
    records = [Record(b"%d" % at, b"v" * (at % 37), 1000 + at) for at in range(200)]
    batches = made(table_of(records), batch_bytes=batch_bytes, compression=codec)
    assert records_in(batches) == records
    if codec is Codec.NONE:
        for batch, following in itertools.pairwise(batches):
            count, more = len(kernels.decode_columns(batch)), kernels.decode_columns(following)
            assert count == 1 or len(batch) <= batch_bytes
            longer = [*records_in([batch]), Record(more.key(0), more.value(0), int(more.timestamps[0]))]
            assert len(encode_batch(longer)) > batch_bytes


def test_batches_continue_without_a_gap_across_encoding_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_RUN_BYTES", 500)
    records = [Record(b"%d" % at, b"v" * (at % 37), 1000 + at) for at in range(300)]
    assert records_in(made(table_of(records), batch_bytes=200)) == records
    assert records_in(made(table_of(records), batch_bytes=2000)) == records


def test_a_batch_above_the_limit_after_compression_is_halved() -> None:
    noise = np.random.default_rng(1).bytes(40_000)
    records = [Record(None, noise[at * 5000 : at * 5000 + 5000], 5) for at in range(8)]
    size = len(encode_batch(records[:4]))
    batches = made(table_of(records), compression=Codec.GZIP, max_message_bytes=size)
    assert len(batches) > 2
    assert max(map(len, batches)) <= size
    assert records_in(batches) == records


# -- refused before anything is appended

OTHERS = "its columns differ"
BAD: dict[str, tuple[Any, str]] = {
    "another column": (pa.table({"key": [b"a"], "offset": [1]}), OTHERS),
    "a column twice": (pa.Table.from_arrays([pa.array([b"a"])] * 2, names=["key", "key"]), "twice"),
    "numbers as values": (pa.table({"value": [1]}), "neither binary nor string"),
    "a null time": (pa.table({"key": [b"a", b"b"], "timestamp": [1, None]}), "a timestamp is null"),
    "a time below none": (pa.table({"key": [b"a"], "timestamp": [-2]}), "time is outside"),
    "a time above int64": (pa.table({"key": [b"a"], "timestamp": pa.array([2**64 - 1], pa.uint64())}), "cast failed"),
    "text as time": (pa.table({"key": [b"a"], "timestamp": ["now"]}), "neither timestamps nor integers"),
    "a header without key": (
        pa.table(
            {
                "headers": pa.array(
                    [[{"key": None, "value": b"v"}]], pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
                )
            }
        ),
        "not \\(string, binary\\)",
    ),
    "headers that are none": (pa.table({"key": [b"a"], "headers": [[1]]}), "neither a list of structs nor a map"),
    "nothing": (pa.table({"key": pa.array([], pa.binary())}), "no records"),
    "no columns": (pa.table({}), "no records"),
    "no table": (17, "neither Columns nor an Arrow table"),
    "a list": ([(b"a", b"b", 1)], "neither Columns nor an Arrow table"),
}


@pytest.mark.parametrize("case", BAD)
def test_columns_that_are_not_records_are_refused_and_nothing_is_appended(case: str) -> None:
    data, words = BAD[case]
    log = open_log(ModelDisk())
    with pytest.raises(InvalidRequest, match=words):
        log.append_columns(data, now_ms=5)
    assert log.next_offset == 0


def test_a_compacted_topic_refuses_columns_with_null_keys_and_names_the_records() -> None:
    table = pa.concat_tables([table_of(PLAIN), table_of(PLAIN)])
    with pytest.raises(InvalidRequest, match=r"a record has no key.*records=\[1, 6\]"):
        made(table, is_compacted=True)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_record_above_the_limit_is_refused_before_any_record_is_appended(codec: Codec) -> None:
    noise = np.random.default_rng(1).bytes(2000)
    log = open_log(ModelDisk(), LogSettings(max_message_bytes=1000, compression=codec))
    with pytest.raises(InvalidRequest, match=r"max\.message\.bytes"):
        log.append_columns(pa.table({"value": [b"a"] * 100 + [noise]}), now_ms=5)
    assert log.next_offset == 0


def test_control_records_of_another_log_are_refused() -> None:
    marker = encode_marker(base_offset=0, is_commit=True, timestamp_ms=5, producer_id=1, producer_epoch=0)
    with pytest.raises(InvalidRequest, match="control records"):
        made(kernels.decode_columns(marker, include_control=True))


# -- in a log


def test_columns_read_from_one_log_can_be_appended_to_another() -> None:
    source, target = (open_log(ModelDisk(), LogSettings(segment_bytes=12_000)) for _ in range(2))
    source.append(RECORDS, now_ms=5)
    while target.next_offset < source.next_offset:
        target.append_columns(kernels.decode_columns(source.read(target.next_offset)), now_ms=5)
    assert read_all(target) == read_all(source)


def test_selected_rows_of_columns_are_appended_in_the_selected_order() -> None:
    columns = columns_of(RECORDS).select(np.array([4, 0, 4]))
    assert records_in(made(columns)) == [RECORDS[4], RECORDS[0], RECORDS[4]]


def test_offsets_are_assigned_in_order_across_batches_and_segments() -> None:
    log = open_log(ModelDisk())
    records = [Record(b"%d" % at, b"v" * 50, 1000 + at) for at in range(500)]
    log.append([Record(b"first", None, 1)], now_ms=5)
    given = log.append_columns(table_of(records), now_ms=5)
    assert (given.base_offset, given.next_offset) == (1, 501)
    assert len(log.segments()) > 5
    read = read_all(log)
    assert [record.offset for record in read] == list(range(501))
    assert [Record(r.key, r.value, r.timestamp_ms) for r in read[1:]] == records


# -- invalid columns


def raw(**changes: Any) -> RecordColumns:
    fields: dict[str, Any] = {
        "key_data": memoryview(b"kk"),
        "key_starts": np.array([0, 1], np.int64),
        "key_lengths": np.array([1, 1], np.int32),
        "value_data": memoryview(b"vv"),
        "value_starts": np.array([0, 1], np.int64),
        "value_lengths": np.array([1, 1], np.int32),
        "timestamps": np.array([1, 2], np.int64),
    }
    return RecordColumns(**(fields | changes))


LONGS, INTS = (lambda *n: np.array(n, np.int64)), (lambda *n: np.array(n, np.int32))
HOSTILE = {
    "a start below 0": raw(key_starts=LONGS(0, -1)),
    "a start past the end": raw(value_starts=LONGS(0, 2)),
    "a start far away": raw(key_starts=LONGS(0, 2**63 - 1)),
    "a length past the end": raw(key_lengths=INTS(1, 2)),
    "a huge length": raw(value_lengths=INTS(2**31 - 1, 1)),
    "fewer lengths": raw(key_lengths=INTS(1)),
    "fewer starts": raw(value_starts=LONGS(1)),
    "headers without counts": raw(header_data=memoryview(b"\2\0\0"), header_starts=LONGS(0, 0)),
    "headers outside": raw(header_data=memoryview(b"\2\0\0"), header_starts=LONGS(0, 9), header_counts=INTS(1, 1)),
    "headers without data": raw(header_starts=LONGS(0, 0), header_counts=INTS(0, 1)),
    "another number of headers": raw(
        header_data=memoryview(b"\4\0\0"), header_starts=LONGS(0, 0), header_counts=INTS(1, 1)
    ),
    "a header cut off": raw(header_data=memoryview(b"\2\2"), header_starts=LONGS(0, 0), header_counts=INTS(1, 1)),
    "a header's key is null": raw(
        header_data=memoryview(b"\2\1\0"), header_starts=LONGS(0, 0), header_counts=INTS(1, 1)
    ),
    "many headers": raw(
        header_data=memoryview(b"\xfe\xff\xff\xff\x0f"), header_starts=LONGS(0, 0), header_counts=INTS(2**31 - 1, 0)
    ),
    "a time below none": raw(timestamps=LONGS(1, -2)),
    "a first time below none": raw(timestamps=LONGS(-(2**63), 1)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_columns_with_offsets_outside_their_data_are_refused(case: str) -> None:
    with pytest.raises(InvalidRequest):
        made([HOSTILE[case]])


def test_both_kernels_refuse_row_ranges_and_sizes_that_do_not_fit() -> None:
    for first, ends, size in [(0, [0], 80), (0, [3], 80), (1, [1], 80), (-1, [1], 80), (0, [], 0), (0, [2], 10)]:
        with pytest.raises(InvalidRequest):
            kernels.encode_columns(raw(), first, LONGS(*ends), size, 0, -1)
    # Far more than the announced size: without the check, the copy would crash the process.
    large = raw(key_data=memoryview(bytes(64 << 20)), key_lengths=INTS(64 << 20, 0))
    with pytest.raises(InvalidRequest, match="changed while they were encoded"):
        kernels.encode_columns(large, 0, LONGS(1), 100, 0, -1)
    _, sizes = kernels.cut_columns(raw(), 1000)
    for wrong in (-1, 1):
        with pytest.raises(InvalidRequest, match="changed while they were encoded"):
            kernels.encode_columns(raw(), 0, LONGS(2), int(sizes[0]) + wrong, 0, -1)


NUMBERS = st.integers(-2, 6) | st.sampled_from([2**31 - 1, -(2**31), 2**62])
ROWS = st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.integers(-2, 2**63 - 1), NUMBERS, st.integers(-1, 3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROWS, max_size=4), st.binary(max_size=8), st.integers(0, 200))
def test_both_kernels_give_the_same_result_for_any_columns(
    rows: list[tuple[int, ...]], data: bytes, batch_bytes: int
) -> None:
    kinds = (np.int64, np.int32, np.int64, np.int32, np.int64, np.int64, np.int32)
    numbers = [np.array([row[at] for row in rows], np.int64).astype(kind) for at, kind in enumerate(kinds)]
    view = memoryview(data)
    source = (view, numbers[0], numbers[1], view, numbers[2], numbers[3], numbers[4], view, numbers[5], numbers[6])
    columns = RecordColumns(
        **dict(zip(RecordColumns.__dataclass_fields__, source, strict=True))  # type: ignore[arg-type]
    )
    expected = outcome(pure_kernels, columns, batch_bytes)
    assert outcome(kernels._chosen, columns, batch_bytes) == expected
    if isinstance(expected, list):
        assert [len(kernels.decode_columns(batch, verify=True)) for batch in expected]


def outcome(twin: Any, columns: RecordColumns, batch_bytes: int) -> list[bytes] | tuple[str, dict[str, object]] | None:
    source = kernels._source(columns)
    try:
        ends, sizes = twin.cut_columns(source, batch_bytes)
        if not len(ends):
            return None
        body = twin.encode_columns(source, 0, ends, int(sizes.sum()), 0, -1).tobytes()
    except InvalidRequest as error:
        return error.attempt, error.facts
    bounds = [0, *np.cumsum(sizes).tolist()]
    return [body[start:end] for start, end in itertools.pairwise(bounds)]


def test_damaged_columns_of_another_log_are_refused() -> None:
    batch = bytearray(encode_batch(PLAIN))
    batch[-1] ^= 1
    with pytest.raises(Corrupt):
        of_columns(kernels.decode_columns(batch))
