"""The parts of a server decide which APIs it answers."""

from __future__ import annotations

import pytest
from fake_source import FakeSource

from tiered.serve.handlers.dispatch import HANDLERS
from tiered.serve.handlers.service import PART_OF, Service
from tiered.serve.messages.base import Api, OwnApi
from tiered.serve.protocol import OWN, SERVED

PARTS = ("sink", "admin", "configs", "groups", "transactions", "security", "operations")


def test_every_served_api_has_a_handler() -> None:
    assert set(HANDLERS) == {*SERVED, *OWN}


def test_a_server_with_a_source_alone_offers_reads() -> None:
    assert set(Service(source=FakeSource()).apis) == set(SERVED) - set(PART_OF)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_adds_its_apis(part: str) -> None:
    apis = set(Service(source=FakeSource(), **{part: object()}).apis)  # type: ignore[arg-type]
    assert apis == {key for key in (*SERVED, *OWN) if PART_OF.get(key) in (None, part)}


def test_every_api_of_a_part_is_known() -> None:
    assert set(PART_OF.values()) == set(PARTS)
    assert set(PART_OF) <= {*Api, *OwnApi}
