"""The commit protocol with manifests of hardly any entry: commits write and open pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from remote.keys import PAGES
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from remote.store.memory_store import MemoryStore

sys.path.insert(0, str(Path(__file__).parent))
import test_commit_protocol
from protocol_world import PREFIX, Writer, check, entries_of
from run_profile import PAGED_CALL_STRIDE
from test_commit_protocol import (
    flow_copy,
    test_a_second_writer_between_any_two_calls_fences_the_first,  # noqa: F401
    test_a_segment_copied_again_after_a_late_commit_has_one_entry,  # noqa: F401
    test_commit_protocol_with_any_fault_at_any_call_stays_consistent,  # noqa: F401
)


@pytest.fixture(autouse=True)
def hardly_a_row(monkeypatch):
    rule = PageRule(manifest_bytes_max=1, page_rows_max=1, page_rows_min=1, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    monkeypatch.setattr(test_commit_protocol, "CALL_STRIDE", PAGED_CALL_STRIDE)


def test_a_page_is_written_before_its_manifest_and_deleted_as_a_pending_delete():
    store = MemoryStore()
    writer = Writer(store)
    writer.open()
    flow_copy(writer)
    writer.copy(120)
    manifest = check(store, writer)
    assert [page.base_offset for page in manifest.pages] == [100, 110]
    writer.expire(100)
    assert any(each.key.startswith(PAGES) for each in writer.log.cached.pending_deletes)
    assert len(list(store.list(PREFIX + PAGES))) == 2
    writer.delete_pending()
    manifest = check(store, writer)
    assert [info.key for info in store.list(PREFIX + PAGES)] == [PREFIX + page.key for page in manifest.pages]
    assert [entry.base_offset for entry in entries_of(writer.log, manifest)] == [110, 120]
