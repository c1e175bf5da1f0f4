"""Columns of records as text, against the formatting of one record after another."""

from __future__ import annotations

import base64
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from local.format.columns import Columns
from local.format.record import Header, Record, StoredRecord, TimestampType
from local.log.encoding import encode_batches
from local.names import TopicPartition
from local.settings import LogSettings
from tiered.cli.records import parse_template, show_json
from tiered.config.units import rfc3339
from tiered.read.reader import decoded
from tiered.serve.node.following import PART_RECORDS, parts_of

NAME = TopicPartition("orders", 3)
NOW = 1_795_176_000_000
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

contents = st.none() | st.binary(max_size=12) | st.text(max_size=6).map(str.encode)
headers = st.lists(st.tuples(st.text(max_size=4), contents), max_size=3).map(tuple)
records = st.builds(Record, contents, contents, st.integers(0, 2**45), st.just(()) | headers)
signs = st.sampled_from([f"%{each}" for each in "TpokvtdhKS%"] + [f"\\{each}" for each in "ntr0\\"] + ["é", "x", "{}"])


def columns_of(given: list[Record], of_log: bool) -> Columns:
    kind = TimestampType.LOG_APPEND_TIME if of_log else TimestampType.CREATE_TIME
    settings = LogSettings(timestamp_type=kind, batch_bytes=1 << 20)
    (batch,) = encode_batches(given, settings, partition=NAME, now_ms=NOW)
    (columns,) = decoded(memoryview(batch), NAME)
    return columns


def field_of(sign: str, record: StoredRecord) -> bytes:
    texts = {
        "T": NAME.topic.encode(),
        "p": b"%d" % NAME.partition,
        "o": b"%d" % record.offset,
        "k": record.key or b"",
        "v": record.value or b"",
        "t": b"%d" % record.timestamp_ms,
        "d": rfc3339(record.timestamp_ms).encode(),
        "h": b",".join(name.encode() + b"=" + (b"NULL" if at is None else at) for name, at in record.headers),
        "K": b"%d" % (-1 if record.key is None else len(record.key)),
        "S": b"%d" % (-1 if record.value is None else len(record.value)),
        "%": b"%",
    }
    return texts[sign[1]] if sign[0] == "%" else ESCAPES[sign[1]] if sign[0] == "\\" else sign.encode()


def json_of(value: bytes | None) -> object:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value or b"").decode()}


def headers_of(pairs: tuple[Header, ...]) -> list[object]:
    return [{"key": name, "value": json_of(value)} for name, value in pairs]


@hypothesis.settings(max_examples=150)
@hypothesis.given(st.lists(records, min_size=1, max_size=6), st.lists(signs, min_size=1, max_size=6), st.booleans())
def test_a_template_prints_columns_as_it_prints_each_record(given: list[Record], form: list[str], of_log: bool) -> None:
    columns = columns_of(given, of_log)
    expected = b"".join(field_of(sign, record) for record in columns.records() for sign in form)
    assert parse_template("".join(form))(NAME, columns) == expected


@hypothesis.settings(max_examples=150)
@hypothesis.given(st.lists(records, min_size=1, max_size=6), st.booleans())
def test_json_lines_of_columns_are_those_of_each_record(given: list[Record], of_log: bool) -> None:
    columns = columns_of(given, of_log)
    rows = [
        {
            "topic": NAME.topic,
            "partition": NAME.partition,
            "offset": each.offset,
            "timestamp": each.timestamp_ms,
            "timestampType": int(each.timestamp_type),
            "key": json_of(each.key),
            "value": json_of(each.value),
            "headers": headers_of(each.headers),
        }
        for each in columns.records()
    ]
    expected = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    assert show_json()(NAME, columns).decode() == expected


RECORD = Record(b"k", None, NOW, (("h", b"x"), ("n", None)))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%T/%p@%o\\n", "orders/3@0\n"),
        ("%k|%v|%K|%S", "k||1|-1"),
        ("%t %d", f"{NOW} 2026-11-20T12:00:00.000Z"),
        ("%h\\t100%%\\\\", "h=x,n=NULL\t100%\\"),
        ("é", "é"),
    ],
)
def test_template_prints_the_named_fields(template: str, text: str) -> None:
    assert parse_template(template)(NAME, columns_of([RECORD], of_log=False)).decode() == text


def test_bytes_that_are_not_text_are_printed_as_base64() -> None:
    (line,) = show_json()(NAME, columns_of([RECORD._replace(value=b"\xff")], of_log=False)).splitlines()
    assert json.loads(line)["value"] == {"base64": "/w=="}
    assert json.loads(line)["headers"] == [{"key": "h", "value": "x"}, {"key": "n", "value": None}]


def test_parts_are_the_same_records_in_order() -> None:
    columns = columns_of([Record(None, b"%d" % number, NOW) for number in range(2 * PART_RECORDS + 1)], of_log=False)
    assert [len(part) for part in parts_of(columns)] == [PART_RECORDS, PART_RECORDS, 1]
    assert [each for part in parts_of(columns) for each in part.records()] == list(columns.records())
