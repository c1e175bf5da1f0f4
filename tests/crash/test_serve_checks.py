"""What the race of Kafka clients takes for a broken promise of a command."""

from __future__ import annotations

from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest
from racing_clients import Sent
from serve_commands import Commands, Trimmed
from serve_world import Race

NO_REPLY = "! 1 partition (lines/0): cannot list objects, no reply before the deadline: store=s3://b/p"


@pytest.mark.parametrize(
    ("code", "said", "is_up", "is_broken"),
    [
        (0, "", True, False),
        (6, NO_REPLY, True, False),
        (6, "cannot read the topic", True, True),
        (1, NO_REPLY, True, True),
        (1, "no node", False, False),
        (0, "Traceback (most recent call last):", True, True),
    ],
)
def test_a_command_may_fail_while_a_node_is_down_or_the_store_is_silent(
    code: int, said: str, is_up: bool, is_broken: bool
) -> None:
    race = Race(1, 1)
    node = SimpleNamespace(was_up=lambda since_s: is_up)
    world: Any = SimpleNamespace(
        race=race, node=node, tiered=lambda *words, stdin: CompletedProcess(words, code, "", said)
    )
    assert Commands(world, Trimmed(Sent(race, "trimmed", 1)))._run("topic", "list") is (code == 0)
    assert bool(race.wrong) is is_broken
