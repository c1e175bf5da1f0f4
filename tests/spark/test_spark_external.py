"""External buckets through Spark: the same records as in Python, split by bytes, committed, by timestamp."""

from __future__ import annotations

import json

import pytest
from external_samples import NAME, NOW, new_key, put_aiven, put_kafka_local, put_log, put_pinterest, write_log

from local.errors import LogError
from remote.store.open_store import open_store

pytestmark = pytest.mark.spark
AIVEN = "aiven"
LAYOUTS = (AIVEN, "local-tiered-storage", "pinterest", "logs")


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return write_log(tmp_path_factory.mktemp("log") / NAME.directory)


@pytest.fixture(scope="module")
def places(sample, tmp_path_factory):
    """(url, key) of each layout, with the same segments in each."""
    key = new_key(tmp_path_factory.mktemp("keys") / "key1.pem")
    found = {}
    for layout in LAYOUTS:
        url = tmp_path_factory.mktemp(layout).as_uri()
        store = open_store(url)
        for number, files in enumerate(sample.segments):
            match layout:
                case "aiven":
                    put_aiven(store, files, number=number, compressed=number % 2 == 0, key=key)
                case "local-tiered-storage":
                    put_kafka_local(store, files, number=number)
                case "pinterest":
                    put_pinterest(store, files)
                case "logs":
                    put_log(store, files)
        store.close()
        found[layout] = url
    return found, json.dumps({key.id: str(key.path)})


def _rows(frame):
    found = frame.selectExpr("offset", "unix_millis(timestamp) ms", "key", "value", "topic", "partition").collect()
    assert {(row["topic"], row["partition"]) for row in found} <= {(NAME.topic, NAME.partition)}
    return sorted((row["offset"], row["ms"], _bytes(row["key"]), _bytes(row["value"])) for row in found)


def _bytes(value):
    return b"none" if value is None else bytes(value)


def _expected(records):
    return sorted((each.offset, each.timestamp_ms, _bytes(each.key), _bytes(each.value)) for each in records)


def _read(spark, places, layout, **options):
    urls, keys = places
    named = {"layout": layout, "layoutKeys": keys} if layout == AIVEN else {"layout": "auto"}
    reader = spark.read.format("tiered").option("subscribe", NAME.topic)
    for name, value in {**named, **options}.items():
        reader = reader.option(name, value)
    return reader.load(urls[layout])


def test_every_external_layout_gives_the_records_of_the_python_reader(spark, places, sample):
    for layout in LAYOUTS:
        frame = _read(spark, places, layout, splitBytes="2500")
        assert frame.rdd.getNumPartitions() > len(sample.segments), layout
        assert _rows(frame) == _expected(sample.records), layout
        if layout in (AIVEN, "pinterest"):  # ranges from an index, and from the batches
            committed = _read(spark, places, layout, **{"kafka.isolation.level": "read_committed"})
            assert _rows(committed) == _expected(sample.committed), layout


def test_offsets_and_timestamps_select_in_external_buckets(spark, places, sample):
    middle = sample.records[len(sample.records) // 2]
    first = next(each.offset for each in sample.records if each.timestamp_ms >= middle.timestamp_ms)
    later = _read(spark, places, AIVEN, startingTimestamp=str(middle.timestamp_ms))
    assert _rows(later) == _expected(each for each in sample.records if each.offset >= first)
    until = _read(spark, places, "logs", endingOffsets=json.dumps({NAME.topic: {str(NAME.partition): 77}}))
    assert _rows(until) == _expected(each for each in sample.records if each.offset < 77)


def test_lost_segment_fails_the_read_unless_data_loss_is_accepted(spark, sample, tmp_path):
    store = open_store(tmp_path.as_uri())
    lost = sample.segments[1]
    for number, files in enumerate(sample.segments):
        put_aiven(store, files, number=number, without=(".rsm-manifest",) if files is lost else ())
    reader = spark.read.format("tiered").option("subscribe", NAME.topic).option("layout", AIVEN)
    with pytest.raises(Exception, match=f"lost=.{lost.base}, {lost.next}"):
        reader.load(tmp_path.as_uri()).count()
    left = [each for each in sample.records if not lost.base <= each.offset < lost.next]
    assert _rows(reader.option("failOnDataLoss", "false").load(tmp_path.as_uri())) == _expected(left)


def test_segments_of_an_external_bucket_are_a_table(spark, places, sample):
    urls, keys = places
    frame = spark.read.format("tiered-segments").option("layout", AIVEN).option("layoutKeys", keys).load(urls[AIVEN])
    rows = sorted(frame.collect(), key=lambda row: row["base_offset"])
    assert [(row["base_offset"], row["next_offset"]) for row in rows] == [(f.base, f.next) for f in sample.segments]
    assert [row["size_bytes"] for row in rows] == [len(files.log) for files in sample.segments]
    assert all(row["record_count"] is None and row["key_id"] == "key1" for row in rows)
    store = open_store(urls[AIVEN])
    assert all(store.head(row["data_key"]).size_bytes == row["stored_bytes"] for row in rows)
    assert rows[0]["max_timestamp"].timestamp() * 1000 > NOW - 1000


def test_stream_of_an_external_layout_is_refused(spark, places):
    urls, _ = places
    stream = spark.readStream.format("tiered").option("subscribe", NAME.topic).option("layout", "logs")
    with pytest.raises((LogError, Exception), match="or tiered import and a stream of the result"):
        stream.load(urls["logs"]).writeStream.format("noop").start().processAllAvailable()


@pytest.mark.deep("a broker and a Spark application")
@pytest.mark.kafka
def test_bucket_of_a_real_kafka_broker_is_read_by_spark(spark, tmp_path):
    """Every codec and transactions, compared with a consumer that read everything from the broker."""
    import tiered_by_kafka as tiering
    from kafka_artifacts import KafkaMissing, find_tiered_kafka

    try:
        written = tiering.tier(find_tiered_kafka(), tmp_path / "kafka")
    except KafkaMissing as error:
        pytest.skip(str(error))
    reader = spark.read.format("tiered").option("layout", "auto").option("splitBytes", "8000")
    frame = reader.option("subscribePattern", ".*").load(written.remote.as_uri())
    found = {topic: [] for topic in tiering.TOPICS}
    for row in frame.selectExpr("topic", "offset", "unix_millis(timestamp) ms", "key", "value").collect():
        found[row["topic"]].append((row["offset"], row["ms"], _bytes(row["key"]), _bytes(row["value"])))
    for topic, end in written.ends.items():
        assert sorted(found[topic]) == _expected(each for each in written.records[topic] if each.offset < end), topic
    frame = spark.read.format("tiered").options(
        layout="auto", subscribe="transactions", **{"kafka.isolation.level": "read_committed"}
    )
    told = [row["offset"] for row in frame.load(written.remote.as_uri()).select("offset").collect()]
    expected = [each.offset for each in written.committed["transactions"] if each.offset < written.ends["transactions"]]
    assert sorted(told) == expected[: len(told)]
    assert len(told) > len(expected) // 2
