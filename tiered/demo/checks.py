"""Compare the records that were read back with the source. A difference raises Corrupt with its place.

The checks through Spark read the bucket alone: no manager, no local directory.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from local.errors import Corrupt
from local.format.record import Record, StoredRecord
from local.names import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """The sums in which two readers of one range of a partition must agree.

    `value_crcs` is the sum of the values' CRC-32.
    """

    records: int
    first_offset: int
    last_offset: int
    offset_sum: int
    value_crcs: int
    distance: int


def check_every_record(partition: TopicPartition, sent: Sequence[Record], found: Iterable[StoredRecord]) -> Digest:
    """Check that each sent record is at its own offset, without missing or extra records."""
    count = crcs = distance = 0
    for stored in found:
        if count >= len(sent) or stored.offset != count or (stored.key, stored.value) != sent[count][:2]:
            _differs(partition, f"the record at offset {stored.offset}")
        if stored.timestamp_ms != sent[count].timestamp_ms:
            _differs(partition, f"the timestamp at offset {stored.offset}")
        assert stored.value is not None
        crcs += zlib.crc32(stored.value)
        distance += int(json.loads(stored.value)["distance"])
        count += 1
    if count != len(sent):
        _differs(partition, f"the count, {count} of {len(sent)} records")
    return _digest(range(count), crcs, distance)


def check_newest(partition: TopicPartition, sent: Sequence[Record], found: Iterable[StoredRecord]) -> dict[bytes, int]:
    """Check each found record and that each key's newest is present; the newest offset by key.

    A found record must equal the record that was sent at its offset.
    """
    last: dict[bytes, int] = {}
    reached = -1
    for stored in found:
        if stored.offset <= reached or (stored.key, stored.value) != sent[stored.offset][:2] or stored.key is None:
            _differs(partition, f"the record at offset {stored.offset}")
        reached = stored.offset
        last[stored.key or b""] = stored.offset
    if last != newest_offsets(sent):
        _differs(partition, "the newest record of a key")
    return last


def newest_offsets(sent: Sequence[Record]) -> dict[bytes, int]:
    return {record.key: offset for offset, record in enumerate(sent) if record.key is not None}


def digest_of(sent: Sequence[Record], next_offset: int) -> Digest:
    """The digest of the sent records below `next_offset`."""
    head = sent[:next_offset]
    crcs = sum(zlib.crc32(record.value or b"") for record in head)
    return _digest(range(len(head)), crcs, sum(int(json.loads(record.value or b"{}")["distance"]) for record in head))


def check_equal(what: str, expected: Mapping[K, V], found: Mapping[K, V]) -> None:
    """Raises Corrupt with the first key that has different values."""
    for key in {*expected, *found}:
        if expected.get(key) != found.get(key):
            raise Corrupt(f"check failed, {what} differs", where=key, expected=expected.get(key), found=found.get(key))


def _digest(offsets: range, crcs: int, distance: int) -> Digest:
    last = len(offsets) - 1
    return Digest(
        records=len(offsets),
        first_offset=0,
        last_offset=last,
        offset_sum=sum(offsets),
        value_crcs=crcs,
        distance=distance,
    )


def _differs(partition: TopicPartition, what: str) -> None:
    raise Corrupt(f"check of the read failed, {what} differs", partition=partition)


# -- through Spark -----------------------------------------------------------------------------------------------------


def read_topic(spark: SparkSession, url: str, options: Mapping[str, object], topic: str) -> DataFrame:
    """The topic in the form of Spark's Kafka source."""
    reader = spark.read.format("tiered").option("subscribe", topic)
    return reader.option("storeOptions", json.dumps(dict(options))).load(url)


def digests(frame: DataFrame) -> dict[int, Digest]:
    """By partition: counts, offsets and sums, computed in Spark."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

    distance = F.get_json_object(F.col("value").cast("string"), "$.distance").cast("long")
    rows = (
        frame.groupBy("partition")
        .agg(
            F.count("*").alias("records"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.sum("offset").alias("offsets"),
            F.sum(F.crc32("value")).alias("crcs"),
            F.sum(distance).alias("distance"),
        )
        .collect()
    )
    return {
        row["partition"]: Digest(
            records=row["records"],
            first_offset=row["first"],
            last_offset=row["last"],
            offset_sum=row["offsets"],
            value_crcs=row["crcs"],
            distance=row["distance"],
        )
        for row in rows
    }


def newest_by_key(frame: DataFrame) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """(partition, key) to the newest (offset, value), computed in Spark."""
    from pyspark.sql import functions as F  # noqa: N812

    newest = frame.groupBy("partition", "key").agg(F.max(F.struct("offset", "value")).alias("newest"))
    return {
        (row["partition"], bytes(row["key"])): (row["newest"]["offset"], bytes(row["newest"]["value"]))
        for row in newest.collect()
    }
