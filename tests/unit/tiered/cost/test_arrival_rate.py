"""The arrival rate: measured from records or given by the user, with a warning for too little data."""

import pytest

from local.errors import InvalidRequest
from policies.cost.storage_cost import DAY_MS
from tiered.cost.cost_history import Mark, Piece, arrival, by_offsets, given_arrival, rates_of, read_rates, steady

GIB = 1 << 30


def seen(span_ms):
    return arrival([Piece(size_bytes=478_000, min_ms=1000, max_ms=1000 + span_ms)], [], 16_384, 1.0, 1)


def test_less_than_a_day_of_records_gives_a_warning_and_no_figures():
    for span_ms, word in ((2000, "2s"), (3_600_000, "1h"), (DAY_MS - 1, "23h")):
        warning = seen(span_ms).warning("orders")
        assert warning is not None
        assert word in warning
        assert "no figures" in warning
        assert "--rate orders=" in warning
        assert "0.0 days" not in seen(span_ms).said
    assert seen(DAY_MS).warning("orders") is None
    assert "1.0 days" in seen(DAY_MS).said


def test_records_with_one_timestamp_give_no_rate_and_a_warning():
    found = seen(0)
    assert found.bytes_per_ms == 0
    assert "the records cover no time span" in str(found.warning("orders"))


def test_rate_of_a_compacted_log_is_measured_by_offsets_of_all_appended_records():
    """One record a second for 30 days in each partition. Compaction has removed an older part."""
    month = 30 * 86_400
    for begins in (0, 1, month // 2, month - 3 * 86_400):
        ends = [end for end in (month // 3, month // 2 + 1, month - 86_400, month) if end > begins]
        marks = [Mark(next_offset=end, at_ms=end * 1000) for end in (begins, *ends)]
        for partitions in (1, 3):
            found = by_offsets([marks] * partitions, 100.0)
            assert found is not None
            assert found.bytes_per_ms == pytest.approx(0.1)
            assert found.seen_ms == min((month - begins) * 1000, found.seen_ms)
    for nothing in ([], [[]], [[Mark(next_offset=5, at_ms=7)]], [[Mark(next_offset=at, at_ms=7) for at in (1, 2)]]):
        assert by_offsets(nothing, 100.0) is None


def test_idle_partition_counts_in_the_average_rate():
    marks = [Mark(next_offset=at, at_ms=at * 1000) for at in (0, 86_400)]
    rates = [by_offsets(each, 100.0) for each in ([marks, []], [marks, [*marks[:1], Mark(next_offset=1, at_ms=1)]])]
    assert [each.bytes_per_ms for each in rates] == pytest.approx([0.05, 0.05], rel=1e-4)


def test_given_rate_applies_to_the_whole_topic_without_a_warning():
    found = given_arrival(20 * GIB, 4)
    assert found.bytes_per_ms * DAY_MS * 4 == pytest.approx(20 * GIB)
    assert found.warning("orders") is None
    assert "as stated, 20.0 GiB a day" in found.said


def test_rounding_to_whole_milliseconds_keeps_the_rate():
    for batch_bytes in (100, 512, 16_384, 1 << 20):
        for mib_per_s in (0.001, 0.1, 1, 7, 10, 100, 1000):
            rate = mib_per_s * (1 << 20) / 1000
            size, every_ms = steady(batch_bytes, rate)
            assert size / every_ms == pytest.approx(rate, rel=0.006), (batch_bytes, mib_per_s)


def test_rate_option_is_parsed_as_bytes_per_time():
    read = {
        "20GiB/d": {None: 20 * GIB},
        "orders=10MiB/s": {"orders": 10 * (1 << 20) * 86_400},
        "a=1MB/h": {"a": 24e6},
        " a = 1000 / d ": {"a": 1000},
    }
    for text, expected in read.items():
        assert read_rates([text]) == expected
    for wrong in ("", "20GiB", "20GiB/", "/d", "x/d", "-1/d", "0/d", "1/y", "=1/d", "a=", "nan/d", "inf/s", "a=b=/d"):
        with pytest.raises(InvalidRequest, match="invalid --rate"):
            read_rates([wrong])
    with pytest.raises(InvalidRequest, match="a topic is repeated"):
        read_rates(["a=1/d", "a=2/d"])


def test_rate_without_a_topic_applies_to_the_only_topic():
    assert rates_of({None: 5.0}, ["a"]) == {"a": 5.0}
    assert rates_of({"b": 5.0}, ["a", "b"]) == {"b": 5.0}
    for rates, topics in (({None: 5.0}, ["a", "b"]), ({None: 5.0, "a": 6.0}, ["a"]), ({"c": 1.0}, ["a", "b"])):
        with pytest.raises(InvalidRequest, match="invalid --rate"):
            rates_of(rates, topics)
