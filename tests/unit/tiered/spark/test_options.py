"""Options of the Spark source and sink: Kafka's option names, defaults, a one-line error for each invalid option."""

from __future__ import annotations

import pickle
import tomllib

import pytest

from local.errors import InvalidRequest
from local.names import TopicPartition
from tiered.jobs.ingest import SPAN
from tiered.spark.options import EARLIEST, LATEST, PIN_MS, Bound, BoundKind, parse_options, parse_write_options

LEAST = {"path": "s3://b", "subscribe": "a"}


def test_defaults_equal_those_of_the_kafka_source():
    options = parse_options(LEAST)
    assert (options.bucket.url, options.topics, options.pattern, options.partitions) == ("s3://b", ("a",), None, None)
    assert (options.start, options.end) == (Bound(everywhere=EARLIEST), Bound(everywhere=LATEST))
    assert (options.include_headers, options.fail_on_data_loss, options.latest_without_match) == (False, True, False)
    assert (options.split_bytes, options.partitions_min, options.records_max) == (None, None, None)
    assert (options.is_committed, options.view, options.pins) == (False, None, {})
    assert (options.pin_ms, options.must_pin) == (PIN_MS, False)


def test_pin_option_sets_a_lifetime_or_disables_pins():
    assert (parse_options(LEAST | {"pin": "6h"}).pin_ms, parse_options(LEAST | {"pin": "6h"}).must_pin) == (
        21_600_000,
        True,
    )
    assert parse_options(LEAST | {"pin": "none"}).pin_ms is None


def test_isolation_and_view_options_are_parsed():
    asked = LEAST | {"KAFKA.isolation.level": "read_committed", "readCompacted": "true"}
    assert (parse_options(asked).is_committed, parse_options(asked).view) == (True, "compacted")


def test_option_names_ignore_case():
    options = parse_options(
        {"path": "s3://b", "subscribepattern": "a.*", "INCLUDEHEADERS": "True", "minpartitions": "4"}
    )
    assert (options.pattern, options.include_headers, options.partitions_min) == ("a.*", True, 4)


def test_offsets_timestamps_and_assignments_are_json():
    options = parse_options(
        {
            "url": "s3://b",
            "assign": '{"a":[1,0]}',
            "startingOffsets": '{"a":{"0":23,"1":-2}}',
            "endingOffsetsByTimestamp": '{"a":{"0":5,"1":6}}',
            "splitBytes": "32MiB",
        }
    )
    zero, one = TopicPartition("a", 0), TopicPartition("a", 1)
    assert options.partitions == (one, zero)
    assert options.start.by_partition == {zero: 23, one: EARLIEST}
    assert options.end == Bound(kind=BoundKind.TIMESTAMP, by_partition={zero: 5, one: 6})
    assert options.split_bytes == 32 << 20


def test_timestamp_takes_precedence_over_offsets_by_timestamp_and_offsets():
    offsets = {"startingOffsets": "earliest"}
    by_timestamp = {"startingOffsetsByTimestamp": '{"a":{"0":5}}'}
    timestamp = {"startingTimestamp": "7"}
    assert parse_options(LEAST | offsets | by_timestamp).start.by_partition == {TopicPartition("a", 0): 5}
    assert parse_options(LEAST | offsets | by_timestamp | timestamp).start.everywhere == 7


def test_kafka_client_options_are_accepted_and_ignored():
    assert parse_options(LEAST | {"kafka.bootstrap.servers": "x:9092", "groupIdPrefix": "g"}) == parse_options(LEAST)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"startngOffsets": "earliest"}, "unknown option: option=startngOffsets did_you_mean=startingOffsets"),
        ({"url": "s3://c"}, "exactly one of the options path and url"),
        ({"path": ""}, "exactly one of the options path and url"),
        ({"subscribePattern": "x"}, "given=subscribe,subscribePattern"),
        ({"subscribe": "a/b"}, "invalid topic name"),
        ({"subscribe": ""}, "it names no topic"),
        ({"startingOffsets": "latest"}, "takes only earliest or JSON: option=startingOffsets"),
        ({"endingOffsets": "earliest"}, "takes only latest or JSON: option=endingOffsets"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "option=startingOffsets"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "option=endingOffsets"),
        ({"startingOffsets": "{"}, "not JSON: option=startingOffsets"),
        ({"startingOffsets": '{"a":[1]}'}, 'it is not of the form {"topic":{"0":23}}'),
        ({"startingOffsets": '{"a":{"x":1}}'}, 'it is not of the form {"topic":{"0":23}}'),
        ({"startingOffsets": '{"a":{"0":true}}'}, 'it is not of the form {"topic":{"0":23}}'),
        ({"startingOffsets": '{"a":{"0":-3}}'}, 'it is not of the form {"topic":{"0":23}}'),
        (
            {"startingTimestamp": "soon"},
            "it is not a whole number of milliseconds: option=startingTimestamp value=soon",
        ),
        ({"startingOffsetsByTimestampStrategy": "never"}, "not one of error, latest"),
        ({"includeHeaders": "yes"}, "not one of false, true: option=includeHeaders value=yes"),
        ({"minPartitions": "0"}, "it is not a number above zero: option=minPartitions"),
        ({"splitBytes": "many"}, "it is not a number above zero: option=splitBytes"),
        ({"storeOptions": "[]"}, "it is not a JSON object: option=storeOptions"),
        ({"topicId": "x"}, "not 22 characters"),
        ({"kafka.isolation.level": "serializable"}, "not one of read_uncommitted, read_committed"),
        ({"view": "x"}, "it needs readCompacted=true: option=view"),
        ({"readCompacted": "true", "view": "/"}, "invalid view name"),
        ({"pin": "-1"}, "it is not a number above zero: option=pin"),
        ({"pin": "soon"}, "it is not a number above zero: option=pin"),
        ({"pins": '{"a/0/":7}'}, "it is not a result of tiered.spark.source.pinned_snapshots.pinned"),
        ({"maxRecordsPerPartition": "0"}, "it is not a number above zero: option=maxRecordsPerPartition"),
    ],
)
def test_invalid_option_is_named(changes, problem):
    with pytest.raises(InvalidRequest) as raised:
        parse_options(LEAST | changes)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ['{"a":"', '{"a":{"0":1}', '{"a":["0"]}', '{"a":3}'])
def test_invalid_assignment_is_named(text):
    with pytest.raises(InvalidRequest, match="option=assign"):
        parse_options({"path": "s3://b", "assign": text})


def test_a_secret_in_the_store_options_is_never_shown():
    with pytest.raises(InvalidRequest) as raised:
        parse_options(LEAST | {"storeOptions": '{"secret":"hunter2"'})
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None
    options = parse_options(LEAST | {"storeOptions": '{"secret":"hunter2"}'})
    assert "hunter2" not in repr(options)
    assert pickle.loads(pickle.dumps(options)).bucket.options == {"secret": "hunter2"}


# --- writes ---------------------------------------------------------------------------------------------------------

LEAST_WRITE = {"path": "s3://b", "topic": "t"}


def test_defaults_of_the_write_options():
    options = parse_write_options(LEAST_WRITE)
    assert (options.bucket.url, options.topic, options.span) == ("s3://b", "t", SPAN)
    assert (options.create_partitions, options.job_id, options.takes_leadership) == (None, None, True)
    assert options.settings == {}


def test_option_names_ignore_case_and_include_topic_properties():
    options = parse_write_options(
        {
            **LEAST_WRITE,
            "CreatePartitions": "3",
            "JOBID": "j",
            "takeleadership": "False",
            "offsets": "DENSE",
            "topicId": "A" * 22,
            "Segment.Bytes": "64MiB",
            "remote.compression": "zstd",
            "storeOptions": '{"anon": true}',
            "checkpointlocation": "/x",
        }
    )
    assert (options.create_partitions, options.job_id, options.takes_leadership, options.span) == (3, "j", False, None)
    assert options.settings == {"segment.bytes": "64MiB", "remote.compression": "zstd"}
    assert options.bucket.options == {"anon": True}
    assert options.bucket.settings == options.settings
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"topic": None}, "the option topic is required"),
        ({"path": None}, "exactly one of the options path and url"),
        ({"url": "s3://c"}, "exactly one of the options path and url"),
        ({"topic": "a/b"}, "topic"),
        ({"topicId": "x"}, "topic id"),
        ({"createPartitions": "0"}, "it is not a number above zero"),
        ({"createPartitions": "two"}, "it is not a number above zero"),
        ({"offsetsPerTask": "-1"}, "it is not a number above zero"),
        ({"offsetsPerTask": "1_000"}, "it is not a number above zero"),
        ({"offsetsPerTask": " 7 "}, "it is not a number above zero"),
        ({"createPartitions": "+3"}, "it is not a number above zero"),
        ({"createPartitions": "\u0663"}, "it is not a number above zero"),
        ({"offsets": "any"}, "not one of ranges, dense"),
        ({"offsets": "dense", "offsetsPerTask": "5"}, "offsetsPerTask requires"),
        ({"takeLeadership": "perhaps"}, "not one of true, false"),
        ({"storeOptions": "[1]"}, "it is not a JSON object"),
        ({"jobid_": "x"}, "did_you_mean=jobId"),
        ({"segment.byte": "1"}, "did_you_mean=segment.bytes"),
        ({"segment.bytes": "1"}, "segment.bytes"),
        ({"subscribe": "t"}, "unknown option"),
    ],
)
def test_invalid_write_option_is_named(change, wrong):
    given = {name: value for name, value in {**LEAST_WRITE, **change}.items() if value is not None}
    with pytest.raises(InvalidRequest, match=wrong):
        parse_write_options(given)


def test_secret_in_the_store_options_is_not_shown():
    options = parse_write_options({**LEAST_WRITE, "storeOptions": '{"secret": "hush"}'})
    assert "hush" not in repr(options)
    with pytest.raises(InvalidRequest) as raised:
        parse_write_options({**LEAST_WRITE, "storeOptions": '{"secret": "hush"'})
    assert "hush" not in str(raised.value)


def test_pyspark_discovers_the_source_by_its_package_name():
    pytest.importorskip("pyspark")
    from tiered.spark.discovery import DefaultSource

    with open("pyproject.toml", "rb") as file:
        places = tomllib.load(file)["tool"]["setuptools"]
    assert DefaultSource.name() == "tiered"
    assert places["package-dir"] == {"pyspark_tiered": "tiered/spark/discovery"}
    assert "pyspark_tiered" in places["packages"]
