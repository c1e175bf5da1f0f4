"""The choice among copies of the same offsets: Kafka's own cases, and a simulated log."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from run_profile import examples

from remote.external.external_layout import ExternalSegment, KnownSegment, choose, lineage_of


def _copy(number, base, following, epochs=(), stamp=0):
    segment = ExternalSegment(data_key=str(number), base_offset=base, size_bytes=1, stored_bytes=1, stamp_ms=stamp)
    return KnownSegment(
        segment=segment, next_offset=following, size_bytes=1, max_timestamp_ms=None, epochs=tuple(epochs)
    )


def _numbers(selected):
    return [(int(copy.segment.data_key), end) for copy, end in selected]


CASES = {
    "one after another": ([(0, 10, [(0, 0)]), (10, 20, [(0, 10)])], [(0, 10), (1, 20)]),
    "a retry that reaches further": ([(0, 100, [(0, 0)]), (0, 105, [(0, 0)])], [(1, 105)]),
    "wholly inside another": ([(0, 100, [(0, 0)]), (10, 90, [(0, 10)])], [(0, 100)]),
    "two leaders' cuts of one log": ([(0, 100, [(0, 0)]), (50, 200, [(0, 50), (1, 120)])], [(0, 50), (1, 200)]),
    "a later leader began below": ([(0, 100, [(0, 0)]), (60, 150, [(1, 60)])], [(0, 60), (1, 150)]),
    "a whole branch was lost": (
        [(0, 40, [(0, 0)]), (40, 90, [(0, 40), (1, 60)]), (90, 120, [(1, 90)]), (50, 130, [(2, 50)])],
        [(0, 40), (1, 50), (3, 130)],
    ),
    "of equal starts the earlier epoch goes": ([(0, 10, [(3, 0)]), (10, 20, [(4, 10)])], [(0, 10), (1, 20)]),
    "nobody knows the epochs": ([(0, 10, []), (5, 20, []), (20, 30, [])], [(0, 5), (1, 20), (2, 30)]),
    "an epoch that nothing else knows": ([(0, 10, [(7, 0)])], [(0, 10)]),
    "a gap stays": ([(0, 10, [(0, 0)]), (20, 30, [(0, 20)])], [(0, 10), (1, 30)]),
}


def test_choice_among_copies_in_kafkas_own_cases() -> None:
    for what, (copies, expected) in CASES.items():
        found = choose([_copy(number, *each) for number, each in enumerate(copies)])
        assert _numbers(found) == expected, what


def test_of_two_equal_copies_the_newer_is_read() -> None:
    for stamps in ((1, 2), (2, 1)):
        copies = [_copy(number, 0, 10, [(0, 0)], stamp) for number, stamp in enumerate(stamps)]
        assert _numbers(choose(copies)) == [(stamps.index(2), 10)]


@st.composite
def _histories(draw):
    """A log with several leaders, some elected uncleanly: the final log, and the copies made.

    The log is a list of (offset, epoch).

    Each leader continues from its own log, and copies some ranges of it.
    """
    log, copies, epoch = [], [], 0
    for _ in range(draw(st.integers(1, 6))):
        if log and draw(st.booleans()):
            log = log[: draw(st.integers(0, len(log)))]  # records that the new leader never had
        log = log + [epoch] * draw(st.integers(1, 20))
        for _ in range(draw(st.integers(0, 4))):
            base = draw(st.integers(0, len(log) - 1))
            following = draw(st.integers(base + 1, len(log)))
            copies.append((base, following, tuple(log[base:following])))
        epoch += draw(st.integers(1, 2))
    base = draw(st.integers(0, len(log) - 1))
    copies.append((base, len(log), tuple(log[base:])))  # the last leader copied its end, so its epoch is known
    return log, draw(st.permutations(copies))


def _epochs(base, content):
    return [(epoch, base + at) for at, epoch in enumerate(content) if at == 0 or content[at - 1] != epoch]


@settings(max_examples=examples(400), deadline=None)
@given(_histories())
def test_chosen_copies_give_exactly_the_records_of_the_last_leader(history) -> None:
    """No offset twice, no record of a lost branch, and no record left out that some copy has."""
    log, copies = history
    made = [_copy(number, base, end, _epochs(base, content)) for number, (base, end, content) in enumerate(copies)]
    known = _epochs(0, log)  # the checkpoint of the last leader's copies
    found = {}
    reached = 0
    for number, end in _numbers(choose(made, known)):
        base, _, content = copies[number]
        assert base >= reached
        reached = end
        found.update({offset: content[offset - base] for offset in range(base, end)})
    assert lineage_of(made, known).entries[-1][0] == log[-1]
    assert all(log[offset] == epoch for offset, epoch in found.items())
    has = {
        base + at for base, _, content in copies for at, epoch in enumerate(content) if _counts(log, base, content, at)
    }
    assert set(found) == has


def _counts(log, base, content, at):
    """Whether the record and all before it in its copy belong to the last leader."""
    return base + at < len(log) and content[: at + 1] == tuple(log[base : base + at + 1])
