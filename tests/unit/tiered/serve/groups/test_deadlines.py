"""Deadlines by key: the earliest first, moved ones once, cancelled ones never."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiered.serve.groups.deadlines import Deadlines

STEPS = st.lists(st.tuples(st.sampled_from("abcde"), st.one_of(st.none(), st.integers(0, 50))), max_size=60)


@given(STEPS, st.integers(0, 50))
def test_due_keys_are_those_of_a_dict(steps: list[tuple[str, int | None]], now_ms: int) -> None:
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, int] = {}
    for key, due_ms in steps:
        if due_ms is None:
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            deadlines.set(key, due_ms)
            model[key] = due_ms
        assert deadlines.next_ms() == min(model.values(), default=None)
        assert len(deadlines) == len(model)
    found = list(deadlines.pop_due(now_ms))
    assert sorted(found) == sorted(key for key, due_ms in model.items() if due_ms <= now_ms)
    assert [model[each] for each in found] == sorted(model[each] for each in found)
    assert deadlines.next_ms() == min((due_ms for due_ms in model.values() if due_ms > now_ms), default=None)


def test_a_deadline_that_moves_for_ever_needs_no_memory() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for at in range(10_000):
        deadlines.set("session", at)
        deadlines.set(f"gone {at}", at)
        deadlines.cancel(f"gone {at}")
    assert len(deadlines._heap) < 100
