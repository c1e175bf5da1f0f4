"""Clients that are not ours, commands and kills at one node for some seconds; `serve_campaign.py` runs for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
import serve_plants
from serve_campaign import race_once
from serve_world import Race, World

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # clients leave the sockets of killed nodes open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KILLS = ("nodes killed", "records acknowledged", "offsets committed", "transactions committed", "commands")
ACKNOWLEDGED = ("offsets committed", "commands", "transactions aborted")


@pytest.mark.deep("a node, two replicas and a dozen clients")
def test_a_race_of_clients_commands_and_kills_keeps_all_promises(tmp_path: Path) -> None:
    race = race_once(1, 6, tmp_path, rate=60, is_enough=lambda race, world: all(race.counts[each] for each in KILLS))
    assert race.wrong == []
    assert all(race.counts[each] for each in KILLS), race.counts


@pytest.mark.deep("a node, two replicas and a dozen clients")
def test_a_race_reports_each_promise_that_the_node_breaks(tmp_path: Path) -> None:
    """The seed has no kills, and draws soon: a command that appends, one that deletes records, aborts."""

    def is_enough(race: Race, world: World) -> bool:
        said = world.node.log.read_text()
        return all(each in said for each in serve_plants.REPORTS) and all(race.counts[each] for each in ACKNOWLEDGED)

    race = race_once(1100, 6, tmp_path, rate=60, program=(serve_plants.__file__,), is_enough=is_enough)
    for plant, report in serve_plants.REPORTS.items():
        assert any(each.startswith(report) for each in race.wrong), (plant, race.wrong, race.counts)
