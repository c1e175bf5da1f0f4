"""Clients that are not ours, commands and kills at one node for some seconds; `serve_campaign.py` runs for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
from serve_campaign import race_once

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # clients leave the sockets of killed nodes open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KILLS = ("nodes killed", "records acknowledged", "offsets committed", "transactions committed", "commands")


@pytest.mark.deep("a node, two replicas and a dozen clients")
def test_a_race_of_clients_commands_and_kills_keeps_all_promises(tmp_path: Path) -> None:
    race = race_once(1, 6, tmp_path, rate=60, is_enough=lambda race, world: all(race.counts[each] for each in KILLS))
    assert race.wrong == []
    assert all(race.counts[each] for each in KILLS), race.counts
