"""The compiled kernels compared with their plain Python implementation, on valid and on hostile bytes."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import targets
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from log_world import header_of, opened_batches

from local.errors import Corrupt, InvalidRequest
from local.format.batch_header import HEADER_BYTES, seal
from local.format.columns import COLUMN_DTYPES, TABLE_DTYPES
from local.format.compression import Codec, compress
from local.format.crc32c import crc32c
from local.format.record import Record, TimestampType
from local.index.txn_index import AbortedTransaction
from local.kernels import dispatch as kernels
from local.kernels import pure_kernels
from local.records.batch import encode_batch, encode_marker, read_header
from tiered.spark.source.task import TYPES

compiled = pytest.importorskip("local.kernels._kernels", reason="the extension was not built")

LIMIT = 1 << 22
# Field sizes on both sides of the varint boundaries that are fast enough to test.
FIELDS = st.none() | st.binary(max_size=20) | st.sampled_from([0, 63, 64, 8191, 8192]).map(bytes)
HEADERS = st.lists(st.tuples(st.text(max_size=5), FIELDS), max_size=3).map(tuple)
TIMES = st.integers(0, 2**41) | st.sampled_from([-1, 0, 2**63 - 1])
RECORDS = st.lists(st.builds(Record, FIELDS, FIELDS, TIMES, HEADERS), min_size=1, max_size=12)
CODECS = st.sampled_from(Codec)


@pytest.fixture(autouse=True, scope="module")
def _few_decompressed_bytes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "DECOMPRESSED_BYTES_MAX", LIMIT)
        yield


def on(twin, call, *args, **options):
    """The result of `call` with this implementation, or its error."""
    chosen = kernels._chosen
    kernels._chosen = twin
    try:
        return call(*args, **options)
    except (Corrupt, InvalidRequest) as error:
        return error
    finally:
        kernels._chosen = chosen


def both(call, *args, **options):
    """The result that both implementations give, or their common error."""
    ours, oracle = on(compiled, call, *args, **options), on(pure_kernels, call, *args, **options)
    if isinstance(oracle, Exception):
        assert type(ours) is type(oracle)
        assert ours.attempt == oracle.attempt
        assert ours.facts == oracle.facts
        return oracle
    assert plain(ours) == plain(oracle)
    return ours


def encode_records(records):
    return kernels._chosen.encode_records(records)


def plain(value):
    """A comparable value: columns and tables as lists, with array types."""
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    if hasattr(value, "batch_ordinals"):
        columns = [plain(getattr(value, name)) for name in COLUMN_DTYPES]
        return columns, bytes(value.data), plain(value.table)
    if hasattr(value, "valid_bytes"):
        return [plain(getattr(value, name)) for name in TABLE_DTYPES], value.valid_bytes, value.problem
    return opened_batches(value) if isinstance(value, bytes) else value


@st.composite
def logs(draw):
    """A few batches of every kind, with ascending offsets and gaps."""
    parts, offset = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["records", "records", "append time", "marker", "empty", "compacted"]))
        if kind == "marker":
            batch = encode_marker(base_offset=offset, is_commit=True, timestamp_ms=5, producer_id=1, producer_epoch=0)
        elif kind == "append time":
            options = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time_ms": draw(st.integers(0, 2**42))}
            batch = encode_batch(draw(RECORDS), base_offset=offset, codec=draw(CODECS), **options)
        else:
            batch = encode_batch(draw(RECORDS), base_offset=offset, codec=draw(CODECS), producer_id=3)
        header = header_of(batch)
        if kind == "empty":
            batch = pure_kernels.emptied(header)
        if kind == "compacted" and header.record_count > 1:
            flags = np.arange(header.record_count) % 2 == draw(st.integers(0, 1))
            batch = kernels.filter_batches(batch, flags, keep_last_batch=True)
        parts.append(batch)
        offset = header.next_offset + draw(st.integers(0, 3))
    return b"".join(parts)


@st.composite
def hostile(draw):
    """A log with a few bytes changed, removed or repeated, often with recomputed checksums."""
    data = bytearray(draw(logs()))
    for _ in range(draw(st.integers(0, 3)) if data else 0):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["set", "bit", "cut", "repeat"])):
            case "set":
                data[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
            case "bit":
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at : at + draw(st.integers(1, 8))]
            case _:
                data[at:at] = data[at : at + draw(st.integers(1, 8))]
        if not data:
            break
    return bytes(resealed(data)) if draw(st.booleans()) else bytes(data)


def resealed(data):
    """Recompute the checksum of every batch with a valid length, so that damage reaches the check behind it."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big", signed=True)
        if size < HEADER_BYTES or at + size > len(data):
            break
        data[at + 17 : at + 21] = crc32c(bytes(data[at + 21 : at + size])).to_bytes(4, "big")
        at += size
    return data


# -- round trips


@given(RECORDS, CODECS, st.integers(0, 2**62))
def test_encoded_records_are_decoded_again(records, codec, base_offset):
    batch = both(encode_batch, records, base_offset=base_offset, codec=codec)
    columns = both(kernels.decode_columns, batch)
    read = [Record(r.key, r.value, r.timestamp_ms, r.headers) for r in columns.records()]
    assert read == records
    assert columns.offsets.tolist() == [base_offset + i for i in range(len(records))]
    assert columns.next_offset == base_offset + len(records)
    assert header_of(batch).max_timestamp_ms == max(r.timestamp_ms for r in records)


@given(RECORDS)
def test_both_kernels_encode_the_same_bytes(records):
    both(encode_records, records)
    both(encode_records, [tuple(r)[:3] for r in records])


ODD = st.none() | st.text(max_size=3) | st.integers() | st.floats() | st.binary(max_size=3).map(bytearray)
ODD_HEADERS = st.lists(st.tuples(st.text(st.characters(), max_size=3) | ODD, FIELDS | ODD) | ODD, max_size=2)


@given(
    st.lists(
        st.tuples(FIELDS | ODD, FIELDS, TIMES | ODD, HEADERS | ODD_HEADERS.map(tuple) | ODD_HEADERS | ODD), max_size=3
    )
)
def test_both_kernels_refuse_the_same_records(records):
    both(encode_records, records)


# -- reading


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(hostile(), st.booleans())
def test_both_kernels_give_the_same_scan(data, verify):
    table = both(kernels.scan_batches, data, verify=verify)
    assert 0 <= table.valid_bytes <= len(data)
    for entry in range(len(table)):
        header = read_header(data, int(table.positions[entry]))
        assert header.is_legacy or table.row(entry) == header  # the entry of a wrapper has facts of its inner messages


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(hostile(), st.booleans(), st.booleans())
def test_both_kernels_decode_the_same_records_or_report_corrupt(data, verify, include_control):
    options = {"verify": verify, "include_control": include_control}
    columns = both(kernels.decode_columns, data, **options)
    if isinstance(columns, Corrupt):
        assert {"at", "base_offset"} <= columns.facts.keys()
        return
    for starts, lengths in ((columns.key_starts, columns.key_lengths), (columns.value_starts, columns.value_lengths)):
        assert (starts >= 0).all()
        assert (starts + np.maximum(lengths, 0) <= len(columns.data)).all()
        offsets, gathered = both(kernels.gather, columns.data, starts, lengths)
        assert gathered.tobytes() == b"".join(
            bytes(columns.data[s : s + max(n, 0)]) for s, n in zip(starts, lengths, strict=True)
        )
        assert offsets[-1] == len(gathered)
    assert len(list(columns.records())) == len(columns)
    assert (np.diff(columns.offsets) > 0).all()


SECTIONS = st.lists(
    st.sampled_from(
        [b"\x00", b"\x01", b"\x02", b"\x0c", b"\x10", b"\x7f", b"\x80", b"\xff", b"\x0e\x00\x00\x00\x02k\x01\x00"]
    )
    | st.binary(max_size=4),
    max_size=24,
).map(b"".join)


@given(SECTIONS, st.integers(0, 6), st.integers(0, 6), st.sampled_from([Codec.NONE, Codec.LZ4]), st.integers(0, 127))
@example(b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 2, 2, Codec.NONE, 0)
def test_both_kernels_agree_on_record_sections_made_of_varints(section, count, last_delta, codec, bits):
    header = header_of(encode_batch([(None, None, 1000)]))
    header = header._replace(record_count=count, last_offset_delta=last_delta, attributes=(bits & ~7) | codec)
    batch = seal(header, compress(codec, section))
    columns = both(kernels.decode_columns, batch, include_control=True)
    if not isinstance(columns, Corrupt):
        for every in (1, 2, 3):
            both(kernels.filter_batches, batch, np.arange(len(columns)) % every == 0, keep_last_batch=True)
    else:
        both(kernels.filter_batches, batch, np.arange(count) % 2 == 0, keep_last_batch=True)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    hostile() | SECTIONS.map(lambda section: seal(header_of(encode_batch([(None, None, 1000)] * 3)), section)),
    st.lists(
        st.sampled_from(["topic", "key", "value", "offset", "partition", "timestamp", "timestampType", "headers"]),
        unique=True,
    ),
    st.just((0, 2**63 - 1)) | st.tuples(st.integers(0, 9), st.integers(0, 20)),
    st.integers(1, 30),
    st.sampled_from([1, 200, 1 << 20]),
)
def test_the_fused_kernel_builds_the_rows_that_columns_give(data, names, offsets, rows_max, bytes_max):
    task = pytest.importorskip("tiered.spark.source.task")
    base = int(np.append(kernels.scan_batches(data, verify=False).base_offsets, 0)[0]) if offsets[0] else 0
    rows = partial(
        targets.arrow_rows, data, True, base + offsets[0], min(base + offsets[1], 2**63 - 1), names=tuple(names)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "BATCH_ROWS", rows_max)
        patch.setattr(task, "BUILT_BYTES", bytes_max)
        both(rows)


@pytest.mark.parametrize("columns", [("offset",), ("key", "value"), ("timestampType", "topic", "timestamp")])
def test_the_fused_kernel_omits_control_records_of_aborted_transactions_and_other_offsets(columns):
    task = pytest.importorskip("tiered.spark.source.task")
    records = [(b"k%d" % n, None if n % 3 else b"v" * n, n) for n in range(10)]
    facts = {"is_transactional": True, "producer_epoch": 0, "base_sequence": 0}
    parts = [encode_batch(records, base_offset=at, producer_id=at, **facts) for at in (0, 10, 20)]
    parts.append(encode_marker(base_offset=30, is_commit=False, timestamp_ms=5, producer_id=10, producer_epoch=0))
    (sections,) = kernels.sections_in_steps(b"".join(parts), step_bytes=1 << 20)
    skipped = np.array([False, True, False, True])
    where = sections.data, sections.table, sections.starts, sections.ends
    made = compiled.arrow_buffers(*where, skipped.view(np.uint8), 0, 4, 27, 31, 1000, 1 << 20, verify=True)
    row, count, (keys, values, (_, offsets), (_, times), (_, types), headers) = made
    assert headers is None
    assert (row, count) == (4, 13)
    assert offsets.tolist() == [*range(4, 10), *range(20, 27)]
    assert times.tolist() == [at % 10 * 1000 for at in offsets.tolist()]
    assert not types.any()
    assert keys[0] is None
    assert bytes(keys[2]) == b"".join(b"k%d" % (at % 10) for at in offsets.tolist())
    is_there = np.unpackbits(values[0], bitorder="little")[:count].tolist()
    assert is_there == [at % 10 % 3 == 0 for at in offsets.tolist()]
    aborted = [AbortedTransaction(producer_id=10, first_offset=10, last_offset=30, last_stable_offset=0)]
    how = {"names": columns, "topic": "orders", "partition": 3}
    both(lambda: [each.to_pylist() for each in task.built_batches(sections, aborted, 4, 27, **how)])


def test_the_fused_kernel_builds_every_column_of_every_kind_of_batch():
    options = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "append_time_ms": 77}
    headers = (("h", b"1"), ("", None), ("long", bytes(300)))
    records = [(b"k" * size, b"v" * (40 - size), size, headers if size % 2 else ()) for size in range(20)]
    parts = [encode_batch(records, base_offset=30 * n, codec=codec, **options) for n, codec in enumerate(Codec)]
    parts.append(encode_batch(records, base_offset=900))
    parts.append(encode_batch([(None, None, 1, (("\u00e4", b"not ASCII"),))], base_offset=990))
    times, types = ((rows := both(targets.arrow_rows, b"".join(parts)))[1], rows[4])
    assert set(types[:100]) == {1}
    assert set(times[:100]) == {77_000}
    assert set(types[100:]) == {0}
    assert rows[5][-2:] == [
        [{"key": key, "value": value} for key, value in headers],
        [{"key": "\u00e4", "value": b"not ASCII"}],
    ]


@pytest.mark.skipif(kernels.implementation() == "pure", reason="the compiled kernel only")
@pytest.mark.parametrize("names", [("offset", "topic", "partition"), ("topic", "partition")])
def test_columns_of_one_value_are_as_large_as_a_piece_of_a_batch_not_as_the_batch(names):
    """A compressed batch may have 2^24 records: the topic of each would take gigabytes, beyond 32-bit offsets."""
    data, topic = encode_batch([(None, None, 1)] * 5000, codec=Codec.GZIP), "t" * 249
    (sections,) = kernels.sections_in_steps(data, step_bytes=1 << 20)
    fields = {name: TYPES[name] for name in names}
    none, constants = np.zeros(1, np.bool_), {"topic": topic, "partition": 3}
    row, batches = sections.arrow_batch(none, 0, 0, 5000, fields, constants, 100, 1 << 20)
    assert (row, [each.num_rows for each in batches]) == (1, [100] * 50)
    for each in batches:
        assert each.column(each.schema.get_field_index("topic")).to_pylist() == [topic] * 100
        assert sum(part.size for part in each.column(each.schema.get_field_index("topic")).buffers() if part) < 50_000


def test_the_fused_kernel_refuses_arrays_that_do_not_fit():
    (sections,) = kernels.sections_in_steps(encode_batch([(b"key", b"value", 1)]), step_bytes=1 << 20)

    def fill(flags=1, row=0, rows_max=10, bytes_max=100, **changed):
        step = replace(sections, **changed)
        where = step.data, step.table, step.starts, step.ends, np.zeros(flags, np.uint8)
        return compiled.arrow_buffers(*where, row, 0, 9, 63, rows_max, bytes_max, verify=True)

    for wrong in ({"flags": 0}, {"row": 1}, {"row": -1}, {"starts": sections.starts[:0]}):
        with pytest.raises(InvalidRequest):
            fill(**wrong)
    for change in ({"ends": sections.ends + 1}, {"starts": sections.starts - 100}, {"starts": sections.ends + 1}):
        assert fill(**change) is None
    assert fill()[:2] == fill(rows_max=1, bytes_max=1)[:2] == (1, 1), "a batch alone may exceed the limits"


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_only_corrupt(data):
    both(kernels.decode_columns, data)
    both(kernels.decode_columns, data[:8] + b"\0\0\0\x40" + data[12:16] + b"\2" + data[17:], verify=False)


@given(
    st.binary(max_size=40),
    st.lists(st.tuples(st.integers(-2, 45) | st.just(2**63 - 1), st.integers(-2, 45)), max_size=6),
)
def test_both_kernels_gather_the_same_bytes_or_refuse(data, ranges):
    starts, lengths = np.array([s for s, _ in ranges], np.int64), np.array([n for _, n in ranges], np.int32)
    both(kernels.gather, data, starts, lengths)


# -- filtering


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(logs(), st.randoms(use_true_random=False), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), st.booleans())
def test_a_filter_keeps_exactly_the_selected_records(data, random, share, keep_last):
    columns = on(compiled, kernels.decode_columns, data, include_control=True)
    keep = np.array([random.random() < share for _ in range(len(columns))], bool)
    made = both(kernels.filter_batches, data, keep, keep_last_batch=keep_last)
    is_control = (columns.table.attributes[columns.batch_ordinals] & 0x20) != 0
    expected = list(columns.select(keep | is_control).records())
    after = both(kernels.decode_columns, made, include_control=True)
    assert list(after.records()) == expected
    if keep_last and data:
        assert after.next_offset == columns.next_offset
    # A second filter that keeps all records changes nothing except empty batches that are no longer last.
    if (after.table.record_counts > 0).all():
        assert both(kernels.filter_batches, made, np.ones(len(after), bool), keep_last_batch=keep_last) == made


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(logs(), st.randoms(use_true_random=False), st.integers(0, 400))
def test_rebuilt_parts_of_any_size_add_up_to_the_whole_filter_result(data, random, room):
    table = on(compiled, kernels.scan_batches, data)
    keep = np.array([random.random() < 0.5 for _ in range(int(table.record_counts.sum()))], bool)
    bits = np.packbits(keep, bitorder="little")
    counts = both(kernels.count_bits, bits, table.record_counts)
    actions = np.full(len(table), pure_kernels.REBUILD, np.uint8)
    actions[counts == 0] = pure_kernels.EMPTY

    def parts():
        out = np.empty(room, np.uint8)
        return b"".join(map(bytes, kernels.rebuilt_batches(data, bits, actions, 7, out)))

    whole = both(kernels.filter_batches, data, keep, actions=actions, horizon_ms=7)
    assert opened_batches(both(parts)) == opened_batches(whole)
    sizes = both(kernels.kept_bytes, data, table, bits)
    kept = on(compiled, kernels.scan_batches, whole).sizes - HEADER_BYTES
    is_plain = (table.attributes & 7) == 0
    assert (kept[is_plain] <= sizes[is_plain] + 12 * counts[is_plain]).all()


@given(st.binary(max_size=9), st.lists(st.integers(-1, 40), max_size=6))
def test_both_kernels_count_the_same_bits(bits, counts):
    both(kernels.count_bits, np.frombuffer(bits, np.uint8), np.array(counts, np.int32))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(hostile(), st.integers(1, 3))
def test_both_kernels_filter_hostile_bytes_alike(data, every):
    table = on(compiled, kernels.scan_batches, data, verify=False)
    flags = np.arange(int(table.record_counts.sum(dtype=np.int64)))[:100_000] % every == 0
    both(kernels.filter_batches, data, flags, keep_last_batch=True)


# -- checksum


@given(st.binary(max_size=64), st.integers(0, 10_000), st.integers(0, 9), st.integers(0, 2**32 - 1))
def test_both_implementations_of_the_checksum_agree(noise, length, skip, seed):
    data = memoryview((noise + b"\x5a") * (1 + length // (len(noise) + 1)))[skip:]
    expected = crc32c(data, seed)
    assert compiled.crc32c_of(data, seed) == expected
    assert compiled.crc32c_of(data, seed, by_tables=True) == expected
