"""Options of a write: names, defaults, and a one-line error for each invalid option."""

from __future__ import annotations

import pickle

import pytest

from local.errors import InvalidRequest
from tiered.jobs.ingest import SPAN
from tiered.spark.sink.sink_options import NAMES, parse_write_options

LEAST = {"path": "s3://b", "topic": "t"}


def test_defaults_of_the_write_options():
    options = parse_write_options(LEAST)
    assert (options.bucket.url, options.topic, options.span) == ("s3://b", "t", SPAN)
    assert (options.create_partitions, options.job_id, options.takes_leadership) == (None, None, True)
    assert options.settings == {}


def test_option_names_ignore_case_and_include_topic_properties():
    options = parse_write_options(
        {
            **LEAST,
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
    given = {name: value for name, value in {**LEAST, **change}.items() if value is not None}
    with pytest.raises(InvalidRequest, match=wrong):
        parse_write_options(given)


def test_secret_in_the_store_options_is_not_shown():
    options = parse_write_options({**LEAST, "storeOptions": '{"secret": "hush"}'})
    assert "hush" not in repr(options)
    with pytest.raises(InvalidRequest) as raised:
        parse_write_options({**LEAST, "storeOptions": '{"secret": "hush"'})
    assert "hush" not in str(raised.value)


def test_every_write_option_is_in_the_reference_table():
    from pathlib import Path

    text = (Path(__file__).parents[5] / "docs/reference/spark.md").read_text().partition("## Writing")[2]
    assert [name for name in NAMES if f"`{name}`" not in text] == []
