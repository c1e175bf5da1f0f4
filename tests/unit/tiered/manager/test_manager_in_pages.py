"""The tests of the manager again, with nearly all entries in manifest pages of three."""

from __future__ import annotations

import pytest
from manager_world import *  # noqa: F403
from test_manager import *  # noqa: F403

from remote.keys import PAGES
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule


@pytest.fixture(autouse=True)
def pages_of_three_rows(monkeypatch, world):
    monkeypatch.setattr(
        commit_protocol,
        "PAGE_RULE",
        PageRule(manifest_bytes_max=1, page_rows_max=3, page_rows_min=2, kept_entries_min=1),
    )


def test_manifest_pages_exist_and_have_the_counted_entries(world):
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)  # noqa: F405
        send(manager, 1500)  # noqa: F405
        settle(manager)  # noqa: F405
        manifest = manager.partitions.find(NAME).manifest()  # noqa: F405
        assert len(manifest.segments) < 3 < len(manifest.pages)
        assert len([info for info in world.store.list("") if PAGES in info.key]) == len(manifest.pages)
        snapshot = manager.snapshots(NOW)[0]  # noqa: F405
        assert snapshot.committed_count == manifest.segment_count > 9
        assert snapshot.remote_next_offset == manifest.next_offset
