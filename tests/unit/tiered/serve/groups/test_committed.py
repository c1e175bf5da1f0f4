"""Offsets as the log says: commits, tombstones, transactions; and the partition of a group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.names import TopicPartition
from tiered.serve.groups.committed import CommittedOffsets, Transaction
from tiered.serve.groups.loader import partition_of
from tiered.serve.groups.offsets_records import OffsetValue

P = TopicPartition("orders", 0)
T1, T2 = Transaction(0, 1), Transaction(0, 2)


def value(offset: int) -> OffsetValue:
    return OffsetValue(offset=offset, commit_ms=0)


def offset_of(offsets: CommittedOffsets) -> int | None:
    found = offsets.get("g", P)
    return None if found is None else found.offset


@pytest.mark.parametrize(("is_commit", "expected"), [(True, 7), (False, 1)])
def test_pending_offsets_become_visible_with_the_commit_marker_only(is_commit: bool, expected: int) -> None:
    offsets = CommittedOffsets()
    offsets.commit("g", P, value(1), 0)
    offsets.pend(T1, "g", P, value(7), 1)
    assert (offset_of(offsets), offsets.is_pending("g", P)) == (1, True)
    offsets.end(T2, is_commit=True)
    assert offset_of(offsets) == 1
    offsets.end(T1, is_commit=is_commit)
    assert (offset_of(offsets), offsets.is_pending("g", P)) == (expected, False)


def test_a_commit_after_the_pending_one_wins_over_its_marker() -> None:
    offsets = CommittedOffsets()
    offsets.pend(T1, "g", P, value(7), 1)
    offsets.commit("g", P, value(9), 2)
    offsets.end(T1, is_commit=True)
    assert offset_of(offsets) == 9


def test_a_tombstone_removes_pending_offsets_too() -> None:
    offsets = CommittedOffsets()
    offsets.pend(T1, "g", P, value(7), 1)
    offsets.pend(T2, "g", P, value(8), 2)
    offsets.remove("g", P)
    offsets.end(T1, is_commit=True)
    offsets.end(T2, is_commit=True)
    assert (offset_of(offsets), offsets.count, list(offsets.groups())) == (None, 0, [])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "remove", "pend", "end", "abort"]),
        st.sampled_from("gh"),
        st.integers(0, 2),
        st.sampled_from([T1, T2]),
    ),
    max_size=40,
)


@given(STEPS)
def test_the_count_is_that_of_all_offsets(steps: list[tuple[str, str, int, Transaction]]) -> None:
    offsets = CommittedOffsets()
    committed: dict[object, int] = {}
    pending: dict[object, int] = {}
    for at, (verb, group, number, transaction) in enumerate(steps):
        where = TopicPartition("orders", number)
        match verb:
            case "commit":
                offsets.commit(group, where, value(at), at)
                committed[group, where] = at
            case "remove":
                offsets.remove(group, where)
                committed.pop((group, where), None)
                for each in (T1, T2):
                    pending.pop((each, group, where), None)
            case "pend":
                offsets.pend(transaction, group, where, value(at), at)
                pending[transaction, group, where] = at
            case _:
                offsets.end(transaction, is_commit=verb == "end")
                for key in [each for each in pending if each[0] == transaction]:  # type: ignore[index]
                    log_offset = pending.pop(key)
                    if verb == "end" and log_offset > committed.get(key[1:], -1):  # type: ignore[index]
                        committed[key[1:]] = log_offset  # type: ignore[index]
        assert offsets.count == len(committed) + len(pending)
    found = {(g, where): each.value.offset for g, of in offsets.items() for where, each in of.items()}
    assert found == committed


@pytest.mark.parametrize(
    ("group", "expected"),
    [("", 0), ("g1", 42), ("console-consumer-1", 24), ("grüße", 23), ("polygenelubricants", 0), ("😀", 49)],
)
def test_the_partition_of_a_group_is_that_of_java(group: str, expected: int) -> None:
    assert partition_of(group, 50) == expected
