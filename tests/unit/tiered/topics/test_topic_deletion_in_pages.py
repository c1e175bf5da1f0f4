"""The tests of topic deletion with almost all entries in manifest pages of two entries each."""

from __future__ import annotations

import pytest
import test_topic_deletion as tests
from manager_world import NAME, World
from test_topic_deletion import *  # noqa: F403

from remote.keys import PAGES
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule


@pytest.fixture(autouse=True)
def pages_of_two_rows(monkeypatch):
    rule = PageRule(manifest_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)


def test_entries_are_in_pages_when_the_deletion_begins():
    world = World()
    with tests._filled(world) as manager:
        manifest = manager.partitions.find(NAME).manifest()
        assert len(manifest.segments) <= 1 < len(manifest.pages)
        assert [info for info in world.store.list("") if PAGES in info.key]
