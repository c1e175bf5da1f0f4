"""Random interleavings of producers and transactions: the log agrees with a simple history, after restarts too."""

from __future__ import annotations

from disk_model import ModelDisk
from hypothesis import given, settings
from hypothesis import strategies as st
from log_world import open_log
from run_profile import examples

from local.format.record import Record
from local.log import Log
from local.log.producer_state import Producer
from local.settings import LogSettings

SMALL = LogSettings(segment_bytes=700, index_interval_bytes=150, batch_bytes=300)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(1, 5), st.integers(1, 3)),
        st.tuples(st.just("end"), st.sampled_from([1, 3, 5]), st.integers(0, 1)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.integers(0, 2), st.just(0)),
    ),
    max_size=30,
)


class History:
    """The history of all calls in simple form. Producers with odd ids write in transactions."""

    def __init__(self) -> None:
        self.end = 0
        self.sequence: dict[int, int] = {}
        self.last: dict[int, tuple[Producer, list[Record], int]] = {}
        self.began: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []

    def stable(self) -> int:
        return min(self.began.values(), default=self.end)


def do(log: Log, history: History, what: str, number: int, count: int) -> None:
    if what == "data":
        sequence = history.sequence.get(number, 0)
        who = Producer(producer_id=number, producer_epoch=0, base_sequence=sequence, is_transactional=number % 2 == 1)
        records = [Record(b"k", b"x" * 40, 500)] * count
        assert log.append(records, now_ms=1000, producer=who) == (history.end, history.end + count, False)
        history.last[number] = (who, records, history.end)
        history.sequence[number] = sequence + count
        if who.is_transactional:
            history.began.setdefault(number, history.end)
        history.end += count
    elif what == "end":
        log.append_marker(number, 0, commit=bool(count), now_ms=1000)
        first = history.began.pop(number, None)
        if first is not None and not count:
            history.aborted.append((number, first, history.end))
        history.end += 1
    elif what == "roll":
        log.roll(now_ms=1000)


def restarted(log: Log, disk: ModelDisk, how: int) -> Log:
    if how == 0:
        assert log.close()
        return open_log(disk, SMALL, was_clean=True)
    point = log.recovery_point
    log.release()
    return open_log(disk, SMALL, recovery_point=point if how == 1 else 0)


def compare(log: Log, history: History) -> None:
    stable = history.stable()
    assert log.last_stable_offset == stable
    for low, high in ((0, stable), (stable // 2, stable), (0, stable // 2), (stable // 3, stable // 2)):
        found = [
            (each.producer_id, each.first_offset, each.last_offset) for each in log.aborted_transactions(low, high)
        ]
        needed = [each for each in history.aborted if each[2] >= low and each[1] < high]
        assert found == needed
    for who, records, offset in history.last.values():
        end = log.next_offset
        assert log.append(records, now_ms=1000, producer=who) == (offset, offset + len(records), True)
        assert log.next_offset == end


@given(STEPS)
@settings(max_examples=examples(150), deadline=None)
def test_stable_offset_aborted_ranges_and_retries_equal_the_history(
    steps: list[tuple[str, int, int]],
) -> None:
    disk, history = ModelDisk(), History()
    log = open_log(disk, SMALL)
    for what, number, count in steps:
        if what == "restart":
            live = log.producer_state.entries()
            log = restarted(log, disk, number)
            assert log.producer_state.entries() == live
        else:
            do(log, history, what, number, count)
        compare(log, history)
