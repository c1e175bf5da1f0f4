"""The plan, the status and the simulation give the same time at which a copy is due."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from local.facts import SegmentInfo
from local.names import TopicPartition
from policies.copy_lag import copy_due_since_ms, without_copy_lag
from policies.cost.simulation import Schedule, Workload
from policies.rules import ALL_DAY, DAY_MS, DailyWindow, PartitionRules
from policies.snapshot import PartitionSnapshot
from policies.tiering import copies

BATCH_MS, BATCH_BYTES = 10, 100
LAGS = st.none() | st.just(0) | st.integers(1, 500)
WINDOWS = st.just(ALL_DAY) | st.builds(DailyWindow, start_ms=st.integers(0, 700), end_ms=st.integers(701, 1500))
rules = st.builds(
    PartitionRules, copy_lag_ms=LAGS, copy_lag_bytes=LAGS, copy_window=WINDOWS, local_retention_ms=st.none()
)


def _snapshot(asked: PartitionRules, model: Schedule, now_ms: int) -> PartitionSnapshot:
    """The stream of the simulation as a partition at `now_ms`: closed segments, then the batches behind them."""
    closed = model.closed_by(now_ms)
    per_segment = model.workload.batches_per_segment
    sizes = [model.rolled_bytes] * closed
    sizes.append((now_ms // BATCH_MS + 1 - closed * per_segment) * BATCH_BYTES)
    segments = [
        SegmentInfo(
            base_offset=at * per_segment,
            next_offset=at * per_segment + size // BATCH_BYTES,
            size_bytes=size,
            max_timestamp_ms=model.newest(at) if at < closed else now_ms // BATCH_MS * BATCH_MS,
            is_active=at == closed,
            modified_ms=model.closes(at) if at < closed else now_ms,
        )
        for at, size in enumerate(sizes)
    ]
    return PartitionSnapshot(
        partition=TopicPartition("t", 0),
        rules=asked,
        now_ms=now_ms,
        log_start_offset=0,
        next_offset=segments[-1].next_offset,
        stable_offset=segments[-1].next_offset,
        segments=tuple(segments),
        is_tiered=True,
    )


@settings(deadline=None)
@given(rules, st.integers(0, 4), st.integers(1, 5))
def test_plan_status_and_simulation_agree_on_the_time_at_which_a_copy_is_due(
    asked: PartitionRules, number: int, batches: int
) -> None:
    workload = Workload(batch_bytes=BATCH_BYTES, batch_ms=BATCH_MS, segment_bytes=batches * BATCH_BYTES)
    model = Schedule(workload, asked)
    due, base = model.copies(number), number * batches
    closed = model.closes(number)
    near = [] if due > closed + 1200 else [int(due) - 1, int(due), int(due) + 1]
    for now_ms in sorted({closed, closed + 1200, *(each for each in near if each >= closed)}):
        taken = _snapshot(asked, model, now_ms)
        is_planned = base in [each.base_offset for each in copies(taken)]
        is_open = asked.copy_window.next_open_ms(now_ms) == now_ms
        assert is_planned == (now_ms >= due and is_open), (now_ms, due)
        assert base in [each.base_offset for each in copies(without_copy_lag(taken))]
    since = copy_due_since_ms(taken)
    first = model.copies(0)
    if asked.copy_lag_bytes is None or asked.copy_lag_ms == 0:
        assert since == (int(first) if first <= taken.now_ms else None), "a segment stays due when the window ends"


MS_OF_DAY = st.integers(0, DAY_MS - 1)


@given(MS_OF_DAY, st.integers(1, DAY_MS), st.integers(-3 * DAY_MS, 3 * DAY_MS))
def test_a_daily_window_opens_at_the_first_time_of_day_in_it(start_ms: int, end_ms: int, at_ms: int) -> None:
    if start_ms == end_ms:
        return
    window = DailyWindow(start_ms=start_ms, end_ms=end_ms)

    def is_in(moment: int) -> bool:
        of_day = moment % DAY_MS
        return start_ms <= of_day < end_ms if start_ms < end_ms else of_day >= start_ms or of_day < end_ms

    opens = window.next_open_ms(at_ms)
    assert at_ms <= opens < at_ms + DAY_MS
    assert is_in(opens)
    assert opens == at_ms or (opens % DAY_MS == start_ms and not is_in(at_ms) and not is_in(opens - 1))
