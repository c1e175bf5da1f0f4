"""Clients that are not ours, commands and kills at one node for some seconds; `serve_campaign.py` runs for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
from serve_campaign import race_once

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # clients leave the sockets of killed nodes open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.deep("a node, two replicas and a dozen clients")
def test_a_race_of_clients_commands_and_kills_keeps_all_promises(tmp_path: Path) -> None:
    race = race_once(1, 6, tmp_path, rate=60)
    assert race.wrong == []
    for name in ("nodes killed", "records acknowledged", "offsets committed", "transactions committed", "commands"):
        assert race.counts[name], (name, race.counts)
