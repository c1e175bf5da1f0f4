"""Checks that every external layout gives the records of a sample, by every way of reading."""

from __future__ import annotations

from external_samples import NAME, NOW, Sample

from local.records.isolation import Isolation
from tiered.read.bucket_reader import RemoteLog

COMMITTED = Isolation.READ_COMMITTED


def assert_reads(bucket: RemoteLog, sample: Sample) -> None:
    """Check reads by offset, by timestamp, of committed records, and of raw batches."""
    reader = bucket.reader()
    assert bucket.topics() == [NAME.topic]
    assert bucket.partitions(NAME.topic) == [NAME]
    assert reader.offsets(NAME) == (0, sample.end)
    assert list(reader.records(NAME, 0)) == sample.records
    assert b"".join(bytes(run) for run in reader.batches(NAME, 0)) == b"".join(each.log for each in sample.segments)
    offsets = [record.offset for record in sample.records]
    for start in range(0, sample.end, 37):
        expected = [each for each in sample.records if start <= each.offset < start + 15]
        assert list(reader.records(NAME, start, start + 15)) == expected
    for record in sample.records[:: len(offsets) // 11]:
        first = next(each.offset for each in sample.records if each.timestamp_ms >= record.timestamp_ms)
        assert reader.offset_for_timestamp(NAME, record.timestamp_ms) == first
    assert reader.offset_for_timestamp(NAME, NOW + 10**12) is None
    committed = bucket.reader(COMMITTED)
    assert committed.offsets(NAME) == (0, sample.stable)
    assert list(committed.records(NAME, 0)) == sample.committed
    half = sample.end // 3
    assert list(committed.records(NAME, half)) == [each for each in sample.committed if each.offset >= half]
