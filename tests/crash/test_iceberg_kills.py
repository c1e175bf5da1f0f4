"""Syncs into an Iceberg table that are killed at drawn points: at the end the table equals the topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from iceberg_campaign import Campaign


@pytest.mark.deep("processes that are killed")
def test_killed_syncs_leave_each_record_in_the_table_once(tmp_path: Path) -> None:
    outcome = Campaign(tmp_path, seed=3).run(records=12_000, kills=3)
    assert outcome.differences == []
    assert outcome.records >= 12_000
    assert outcome.syncs_killed >= 1
    assert outcome.syncs_killed + outcome.syncs_done == 4
