"""The commit protocol's faults once more, with heads that keep hardly a row, so that commits write and open pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from remote.keys import SPILLS
from remote.manifest import commit_protocol
from remote.manifest.page_spill import SpillRule
from remote.store.memory_store import MemoryStore

sys.path.insert(0, str(Path(__file__).parent))
from protocol_world import PREFIX, Writer, check, rows_of
from test_commit_protocol import (
    flow_copy,
    test_a_segment_copied_again_because_its_commit_came_true_late_is_there_once,  # noqa: F401
    test_a_writer_that_comes_in_between_any_two_calls_fences_the_first,  # noqa: F401
    test_any_call_may_fail_in_any_way,  # noqa: F401
)


@pytest.fixture(autouse=True)
def hardly_a_row(monkeypatch):
    rule = SpillRule(head_bytes_max=1, page_rows_max=1, page_rows_min=1, kept_rows_min=1)
    monkeypatch.setattr(commit_protocol, "SPILL_RULE", rule)


def test_a_page_is_written_before_the_head_that_names_it_and_leaves_by_the_list():
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    flow_copy(writer)
    writer.copy(120)
    head = check(store, writer)
    assert [spill.base_offset for spill in head.spills] == [100, 110]
    writer.expire(100)
    assert any(each.key.startswith(SPILLS) for each in writer.log.cached.unlinked)
    assert len(list(store.list(PREFIX + SPILLS))) == 2
    writer.delete_unlinked()
    head = check(store, writer)
    assert [info.key for info in store.list(PREFIX + SPILLS)] == [PREFIX + spill.key for spill in head.spills]
    assert [row.base_offset for row in rows_of(writer.log, head)] == [110, 120]
