"""Lag and used retention of groups: unknown figures are None, both tiers count, metrics are bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from manager_world import DAY, NOW, TIERED, World, send, settle

from local.names import TopicPartition
from policies.snapshot import PartitionSnapshot
from tiered.serve.groups import lag
from tiered.serve.groups.lag import SeenGroup, group_lags, lag_figures

T0 = TopicPartition("t", 0)


def seen(**committed: int) -> SeenGroup:
    offsets = {TopicPartition(topic, 0): offset for topic, offset in committed.items()}
    return SeenGroup(group="g", state="Stable", members=2, committed=offsets)


def snapshot() -> PartitionSnapshot:
    """400 offsets in several segments, most of them in both tiers."""
    with World().open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "7d"}, now_ms=NOW)
        send(manager, 300)
        settle(manager)
        send(manager, 100, start=300)
        (found,) = manager.snapshots(NOW)
    return found


def test_a_group_without_commits_or_with_an_unknown_end_has_no_lag() -> None:
    for group in (seen(), seen(t=3, gone=1)):
        (found,) = group_lags([group], {T0: snapshot()})
        assert (found.lag, found.expired) == (None, None)
    assert group_lags([seen(t=3)], {T0: snapshot()})[0].lag == 397


def test_a_committed_offset_above_the_end_is_no_negative_lag() -> None:
    (found,) = group_lags([seen(t=500)], {T0: snapshot()})
    assert (found.lag, found.retention_used) == (0, 0.0)


def test_topics_select_partitions_and_groups() -> None:
    groups = [seen(t=3, u=4), replace(seen(u=1), group="h")]
    (found,) = group_lags(groups, {T0: snapshot()}, ["t"])
    assert (found.group, [each.partition for each in found.partitions]) == ("g", [T0])


def test_time_uses_retention_by_the_oldest_unread_segment_of_either_tier() -> None:
    known = snapshot()
    later = replace(known, now_ms=known.now_ms + 7 * DAY // 2)
    for offset, newest_ms in ((0, known.committed[0].max_timestamp_ms), (399, known.segments[-1].age_timestamp_ms)):
        (found,) = group_lags([seen(t=offset)], {T0: later})
        assert newest_ms is not None
        assert found.retention_used == pytest.approx((later.now_ms - newest_ms) / (7 * DAY))
        assert 0.5 < found.retention_used < 1
    (found,) = group_lags([seen(t=400)], {T0: later})
    assert found.retention_used == 0.0


def test_size_uses_retention_by_the_bytes_after_the_oldest_unread_segment() -> None:
    known = snapshot()
    remote = sum(each.size_bytes for each in known.committed)
    local = [each for each in known.segments if each.next_offset > (known.remote_next_offset or 0)]
    total = remote + sum(each.size_bytes for each in local)
    limited = replace(known, rules=replace(known.rules, retention_ms=None, retention_bytes=total))
    first, last = (group_lags([seen(t=offset)], {T0: limited})[0].retention_used for offset in (0, 399))
    assert first == pytest.approx(1 - known.committed[0].size_bytes / total)
    assert last == 0.0


def test_without_retention_nothing_is_used_and_an_unread_bucket_is_unknown() -> None:
    known = snapshot()
    unlimited = replace(known, rules=replace(known.rules, retention_ms=None, retention_bytes=None))
    assert group_lags([seen(t=0)], {T0: unlimited})[0].retention_used is None
    unread = replace(known, head_sequence=0)
    (found,) = group_lags([seen(t=0)], {T0: unread})
    assert (found.lag, found.expired, found.retention_used) == (400, None, None)


def test_offsets_below_the_log_start_expired_unread() -> None:
    known = replace(snapshot(), log_start_offset=100)
    (found,) = group_lags([seen(t=40)], {T0: known})
    assert (found.lag, found.expired, found.retention_used) == (360, 60, 1.0)


def test_metrics_are_bounded_and_count_what_they_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "GROUPS_MAX", 3)
    monkeypatch.setattr(lag, "SERIES_MAX", 5)
    at = {TopicPartition("t", each): 1 for each in range(2)}
    groups = [SeenGroup(group=f"g{each}", state="Empty", members=None, committed=at) for each in range(9)]
    found = list(lag_figures(groups, {}))
    values = {name: value for name, value, labels in found if not labels}
    assert values == {"tiered_consumergroups": 9, "tiered_consumergroup_unreported_partitions": 13}
    assert sum(name == "tiered_consumergroup_current_offset" for name, *_ in found) == 5
    assert sum(name == "tiered_consumergroup_state" for name, *_ in found) == 3
    assert not any(name in ("tiered_consumergroup_lag", "tiered_consumergroup_members") for name, *_ in found)


def test_metrics_compute_only_the_partitions_that_they_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "SERIES_MAX", 5)
    computed = []
    of_snapshot = lag._Lags.of
    monkeypatch.setattr(lag._Lags, "of", lambda self, *at: computed.append(at) or of_snapshot(self, *at))
    at = {TopicPartition("t", each): each + 1 for each in range(4)}
    known = snapshot()
    snapshots = {each: replace(known, partition=each) for each in at}
    groups = [SeenGroup(group=f"g{each}", state="Empty", members=0, committed=at) for each in range(9)]
    found = list(lag_figures(groups, snapshots))
    assert len(computed) == 5
    assert [value for name, value, _ in found if name == "tiered_consumergroup_lag"] == [399, 398, 397, 396, 399]
    assert [value for name, value, _ in found if name == "tiered_consumergroup_lag_sum"] == [1590] * 9
    assert {name: value for name, value, labels in found if not labels} == {
        "tiered_consumergroups": 9,
        "tiered_consumergroup_unreported_partitions": 31,
    }


def test_unknown_offsets_of_a_group_are_no_zero() -> None:
    group = SeenGroup(group="g", state="Stable", members=2, committed=None)
    for topics in ((), ("t",)):
        (found,) = group_lags([group], {T0: snapshot()}, topics)
        figures = (found.partitions, found.partition_count, found.lag, found.expired, found.retention_used)
        assert figures == (None,) * 5
    assert not any("lag" in name for name, *_ in lag_figures([group], {T0: snapshot()}))
