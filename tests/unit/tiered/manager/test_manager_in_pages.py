"""The manager's tests once more, with heads that keep hardly a row: all others lie in pages of three."""

from __future__ import annotations

import pytest
from manager_world import *  # noqa: F403
from test_manager import *  # noqa: F403

from remote.keys import SPILLS
from remote.manifest import commit_protocol
from remote.manifest.page_spill import SpillRule


@pytest.fixture(autouse=True)
def pages_of_three_rows(monkeypatch, world):
    monkeypatch.setattr(
        commit_protocol, "SPILL_RULE", SpillRule(head_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_rows_min=1)
    )


def test_the_pages_are_there_and_hold_what_the_manager_counts(world):
    with world.open() as manager:
        manager.create_topic("t", 1, TIERED, now_ms=NOW)  # noqa: F405
        send(manager, 1500)  # noqa: F405
        settle(manager)  # noqa: F405
        head = manager._partition(NAME).head()  # noqa: F405
        assert len(head.segments) < 3 < len(head.spills)
        assert len([info for info in world.store.list("") if SPILLS in info.key]) == len(head.spills)
        snapshot = manager.snapshots(NOW)[0]  # noqa: F405
        assert snapshot.committed_count == head.segment_count > 9
        assert snapshot.remote_next_offset == head.next_offset
