"""Hanging transactions: found, and ended by the operator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from manager_world import NAME, NOW, TIERED, World, settle
from test_cli import home, printed  # noqa: F401 - a fixture

from local.errors import NotFound
from local.format.record import Record
from local.log import Log
from local.log.producer_state import Producer
from local.records.isolation import Isolation
from tiered.cli.main import invoke
from tiered.manager.manager import LogManager
from tiered.partition import hanging_transactions
from tiered.partition.hanging_transactions import end_transaction, open_transactions


def begin(log: Log, number: int, count: int = 1) -> None:
    who = Producer(producer_id=number, producer_epoch=3, base_sequence=0, is_transactional=True)
    log.append([Record(b"k", b"%d" % number, NOW)] * count, now_ms=NOW, producer=who)


@pytest.mark.parametrize("commit", [True, False])
def test_ending_a_hanging_transaction_releases_the_records_after_it(commit: bool) -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        held = manager.partitions.find(NAME)
        for number in (8, 7):
            begin(held.log, number, 30)
        held.log.append([Record(b"k", b"after", NOW)] * 60, now_ms=NOW)
        settle(manager)
        found = open_transactions(held)
        assert [(each.producer_id, each.transaction_first_offset) for each in found] == [(8, 0), (7, 30)]
        manifest = held.manifest()
        assert manifest is not None
        assert manifest.next_offset == 0
        assert list(manager.reader(Isolation.READ_COMMITTED).records(NAME, 0)) == []
        ended = end_transaction(held, 8, commit=commit, now_ms=NOW)
        assert (ended.transaction_first_offset, ended.producer_epoch) == (0, 3)
        assert held.log.last_stable_offset == 30
        end_transaction(held, 7, commit=False, now_ms=NOW)
        assert open_transactions(held) == []
        settle(manager, NOW + 3_600_000)
        manifest = held.manifest()
        assert manifest is not None
        assert manifest.next_offset > 60
        seen = [record.value for record in manager.reader(Isolation.READ_COMMITTED).records(NAME, 0)]
        assert seen == [b"8"] * (30 if commit else 0) + [b"after"] * 60
        with pytest.raises(NotFound, match="producer_id=7 open=none"):
            end_transaction(held, 7, commit=False, now_ms=NOW)


def test_transaction_that_ended_by_itself_does_not_abort_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An abort applies only to the transaction that was found:

    1. The hanging transaction is found.
    2. Its marker arrives after all, and the producer begins a new transaction.
    3. The abort is refused, because it was asked for the old transaction.
    """
    with World().open() as manager:
        manager.topics.create("t", 1, {}, now_ms=NOW)
        held = manager.partitions.find(NAME)
        begin(held.log, 7)
        find_open = hanging_transactions.find_open

        def find(*given: object) -> object:
            found = find_open(*given)  # type: ignore[arg-type]
            held.log.append_marker(7, 3, commit=True, now_ms=NOW)
            who = Producer(producer_id=7, producer_epoch=3, base_sequence=1, is_transactional=True)
            held.log.append([Record(b"k", b"next", NOW)], now_ms=NOW, producer=who)
            return found

        monkeypatch.setattr(hanging_transactions, "find_open", find)
        with pytest.raises(NotFound, match="already ended"):
            end_transaction(held, 7, commit=False, now_ms=NOW)
        held.log.append_marker(7, 3, commit=True, now_ms=NOW)
        seen = [record.value for record in manager.reader(Isolation.READ_COMMITTED).records(NAME, 0)]
        assert seen == [b"7", b"next"]


def test_transactions_command_lists_and_ends_open_transactions(home: Path, capfd) -> None:  # noqa: F811
    from tiered.config.config import Config

    with LogManager.open(Config.load("tiered.toml", {}, {}), now_ms=NOW) as manager:
        begin(manager.partitions.find(manager.topics.get("orders").partitions()[1]).log, 5)
    (entry,) = json.loads(printed(capfd, "transactions", "list", "orders", "-o", "json"))["transactions"]
    assert (entry["partition"], entry["producer_id"], entry["producer_epoch"], entry["waiting"]) == (1, 5, 3, 1)
    assert printed(capfd, "transactions", "list", "-o", "csv").count("\n") == 2
    assert invoke(["transactions", "end", "orders/1", "--producer-id", "5", "--abort"]) == 2, (
        "the command must refuse without a confirmation"
    )
    assert invoke(["transactions", "end", "orders/1", "--producer-id", "5", "--yes"]) == 2
    assert invoke(["transactions", "end", "orders/1", "--producer-id", "6", "--abort", "--yes"]) == 1
    assert "the producer has no open transaction" in capfd.readouterr().err
    assert invoke(["transactions", "end", "orders", "--producer-id", "5", "--abort", "--yes"]) == 2
    assert invoke(["transactions", "end", "orders/1", "--producer-id", "5", "--abort", "--yes"]) == 0
    assert json.loads(printed(capfd, "transactions", "list", "-o", "json"))["transactions"] == []
