"""Time series of tier figures: bounded size, coarser with age, unchanged by a file, robust against a wrong clock."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manager_world import NOW
from run_profile import examples

from local.errors import Corrupt, InvalidRequest
from tiered.status.tier_history import (
    DAY_MS,
    FORGOTTEN_MS,
    HOUR_MS,
    MINUTE_MS,
    STEPS,
    TOPIC_POINTS_MAX,
    TOPICS_MAX,
    Series,
    TierPoint,
    TierSeries,
    stretches,
)

FIVE = 5 * MINUTE_MS
KINDS = st.integers(0, 2**50)


def at(ms: int, local: int = 0, *, remote: int | None = 0, lag: int | None = 0, risk: int | None = 0) -> TierPoint:
    return TierPoint(
        at_ms=ms, local_bytes=local, remote_bytes=remote, lag_bytes=lag, at_risk_bytes=risk, dollars_per_month=0.25
    )


def filled(times: Iterable[int], **topics: int) -> TierSeries:
    found = TierSeries()
    for each in times:
        found.add(at(each, each % 1000), {name: at(each, size) for name, size in topics.items()})
    return found


def counts(series: Series, now_ms: int) -> dict[int, int]:
    return {step: len(series.points(step, 0, now_ms)) for step in STEPS}


def test_three_years_of_notes_fit_the_bounds_at_the_resolution_of_each_age() -> None:
    found = filled(range(NOW - 1200 * DAY_MS, NOW - 40 * DAY_MS, HOUR_MS))
    for each in range(NOW - 40 * DAY_MS, NOW + 1, FIVE):
        found.add(at(each), {})
    assert counts(found.total, NOW) == STEPS
    for span, step in ((2 * DAY_MS, FIVE), (HOUR_MS, FIVE), (30 * DAY_MS, HOUR_MS), (3 * 365 * DAY_MS, DAY_MS)):
        assert found.total.step_for(span, NOW) == step
        points = found.total.points(step, NOW - span, NOW)
        assert points[0].at_ms - (NOW - span) <= 2 * step
        assert points[-1].at_ms == NOW
    assert len(found.encoded()) < 60_000


def test_thousand_topics_need_at_most_half_a_megabyte_with_daily_points() -> None:
    rng, found = random.Random(7), TierSeries()
    for day in range(40):
        total = at(NOW + day * DAY_MS)
        rows = {
            f"topic-{number}": TierPoint(
                at_ms=NOW + day * DAY_MS + rng.randrange(3000),
                local_bytes=rng.randrange(2**30),
                remote_bytes=(number << 31) + rng.randrange(2**30),
                lag_bytes=rng.randrange(2**28),
                at_risk_bytes=rng.randrange(2**28),
                dollars_per_month=rng.random() * 1000,
            )
            for number in range(TOPICS_MAX + 50)
        }
        found.add(total, rows)
    now = NOW + 40 * DAY_MS
    assert len(found.encoded()) < 512_000
    assert len(found.topics) == TOPICS_MAX
    assert sum(sum(counts(each, now).values()) for each in found.topics.values()) <= TOPIC_POINTS_MAX
    assert all(counts(each, now)[DAY_MS] >= 13 for each in found.topics.values())


def test_largest_topics_stay_and_deleted_topics_are_removed_after_a_month() -> None:
    found = filled([NOW], gone=5, **{f"t{number}": number for number in range(TOPICS_MAX)})
    assert "t0" not in found.topics
    assert "gone" in found.topics
    found.add(at(NOW + FORGOTTEN_MS), {"t7": at(NOW + FORGOTTEN_MS)})
    assert "gone" in found.topics
    found.add(at(NOW + FORGOTTEN_MS + 1), {"t7": at(NOW + FORGOTTEN_MS + 1)})
    assert list(found.topics) == ["t7"]


def test_step_keeps_the_last_point_with_the_maximum_of_lag_and_at_risk() -> None:
    found = Series()
    found.add(at(NOW, 10, remote=100, lag=7, risk=9))
    found.add(at(NOW + FIVE, 20, remote=50, lag=3, risk=1))
    (hour,) = found.points(HOUR_MS, 0, NOW + DAY_MS)
    assert (hour.at_ms, hour.local_bytes, hour.remote_bytes) == (NOW + FIVE, 20, 50)
    assert (hour.lag_bytes, hour.at_risk_bytes) == (7, 9)
    found.add(at(NOW + 2 * FIVE, 30, remote=None, lag=None, risk=None))
    (hour,) = found.points(HOUR_MS, 0, NOW + DAY_MS)
    assert (hour.local_bytes, hour.remote_bytes, hour.lag_bytes) == (30, 50, 7), (
        "a known figure must not be replaced by an unknown one"
    )
    assert [each.remote_bytes for each in found.points(FIVE, 0, NOW + DAY_MS)] == [100, 50, None]


@pytest.mark.parametrize("wrong_ms", [-40 * 365 * DAY_MS, -DAY_MS, 30 * 365 * DAY_MS])
def test_wrong_clock_for_two_days_removes_no_points_beyond_the_bounds(wrong_ms: int) -> None:
    found = filled(range(NOW - 100 * DAY_MS, NOW, FIVE * 12))
    before = found.total.points(DAY_MS, 0, NOW)
    for each in range(NOW + wrong_ms, NOW + wrong_ms + 2 * DAY_MS, FIVE):
        found.add(at(max(0, each)), {})
    later = NOW + 2 * DAY_MS
    for each in range(later, later + 3 * DAY_MS, FIVE):
        found.add(at(each, 77), {})
    now = later + 3 * DAY_MS
    shown = found.total.points(FIVE, now - 2 * DAY_MS, now)
    assert [each.local_bytes for each in shown] == [77] * len(shown)
    assert len(shown) > 570, "the series must soon be complete again"
    days = found.total.points(DAY_MS, NOW - 100 * DAY_MS, now)
    kept = {each.at_ms for each in days}
    assert sum(each.at_ms in kept for each in before) >= len(before) - 3
    for step in STEPS:
        times = [each.at_ms for each in found.total.points(step, 0, 2**52)]
        assert times == sorted(set(times))
        assert len(times) <= STEPS[step]


def test_coarser_steps_are_shown_if_no_finer_step_exists() -> None:
    found = filled(range(NOW - 40 * DAY_MS, NOW - 3 * DAY_MS, HOUR_MS))
    assert found.total.step_for(2 * DAY_MS, NOW) == DAY_MS, "the finer steps must have no points here"
    assert found.total.points(DAY_MS, NOW - 2 * DAY_MS, NOW) == []
    found.add(at(NOW), {})
    assert found.total.step_for(2 * DAY_MS, NOW) == FIVE
    assert found.total.step_for(30 * DAY_MS, NOW) == HOUR_MS
    few = filled([NOW - 60 * MINUTE_MS, NOW], **{f"t{number}": 1 for number in range(TOPICS_MAX)})
    assert few.of("t1").step_for(2 * DAY_MS, NOW) == HOUR_MS, "only the last of the five-minute points is retained"
    assert few.of("none").points(FIVE, 0, NOW) == []


def test_gap_ends_a_stretch_and_a_single_late_note_does_not() -> None:
    times = [0, 5, 10, 19, 30, 31, 90, 200]
    found = list(stretches([at(each * MINUTE_MS) for each in times], FIVE))
    assert [[each.at_ms // MINUTE_MS for each in run] for run in found] == [[0, 5, 10, 19], [30, 31], [90], [200]]
    assert list(stretches([], FIVE)) == []


POINTS = st.builds(
    TierPoint,
    at_ms=st.integers(0, 2**42).map(lambda ms: ms // 1000 * 1000),
    local_bytes=KINDS,
    remote_bytes=st.none() | KINDS,
    lag_bytes=st.none() | KINDS,
    at_risk_bytes=st.none() | KINDS,
    dollars_per_month=st.none() | st.integers(0, 10**12).map(lambda micros: micros / 1e6),
    missing_partitions=st.integers(0, 1000),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(POINTS, max_size=20), st.dictionaries(st.text(min_size=1, max_size=9), POINTS, max_size=4))
def test_series_survives_an_encode_and_decode(points: list[TierPoint], topics: dict[str, TierPoint]) -> None:
    found = TierSeries()
    for each in points:
        found.add(each, topics)
    again = TierSeries.decoded(found.encoded())
    assert again.encoded() == found.encoded()
    assert again.topics.keys() == found.topics.keys()
    if points:
        newest = max(each.at_ms for each in points)
        assert again.total.points(FIVE, newest, newest)[0].at_ms == newest
    joined = TierSeries.decoded(found.encoded())
    joined.join(again)
    assert joined.encoded() == found.encoded(), "merging the same notes again must change nothing"


def test_damaged_file_is_corrupt_and_a_newer_version_is_refused() -> None:
    whole = filled(range(NOW, NOW + 3 * DAY_MS, HOUR_MS), orders=3).encoded()
    for cut in range(0, len(whole), 7):
        with pytest.raises(Corrupt):
            TierSeries.decoded(whole[:cut])
    for place in range(0, len(whole), 11):
        broken = bytearray(whole)
        broken[place] ^= 0x10
        with pytest.raises(Corrupt):
            TierSeries.decoded(bytes(broken))
    unpacked = msgspec.msgpack.decode(zlib.decompress(whole))

    def packed(**changes: object) -> bytes:
        return zlib.compress(msgspec.msgpack.encode({**unpacked, **changes}))

    with pytest.raises(InvalidRequest):
        TierSeries.decoded(packed(version=2))
    columns = unpacked["series"][""]
    for wrong in (
        columns[:1],
        [each[:3] for each in columns],
        [[[2, -2], *each[1:]] for each in columns],
        [[[-5]] * 7] * 3,
    ):
        with pytest.raises(Corrupt):
            TierSeries.decoded(packed(series={"": wrong}))
    with pytest.raises(Corrupt):
        TierSeries.decoded(packed(series={"": [[[2**63]] * 7] * 3}))
