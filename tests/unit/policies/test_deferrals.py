"""Deferrals: each reason with its segment, its code and its end, in every output that shows the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from manager_world import COMPACTED, HOUR, NAME, NOW, TIERED, SwitchableStore, World, send, settle
from policy_samples import KEEP, entry, local, snapshot
from policy_samples import NOW as MOMENT
from web_pages import data, page, site

from local.errors import Unavailable
from local.format.record import Record
from local.log.producer_state import Producer
from policies.decisions import Action, Code, Deferral
from policies.plan import deferrals, plan_partition
from policies.rules import DailyWindow, PartitionRules, Pause
from policies.snapshot import PartitionSnapshot
from tiered.cli.main import invoke
from tiered.manager.manager import LogManager
from tiered.manager.remote_acks import wait_for_bucket
from tiered.plans.planning import priced_plan
from tiered.status.status_report import status_facts, status_report

SEGMENTS = (local(0, 2), local(2, 4), local(4, 6, age=0, active=True))
LAG = replace(KEEP, copy_lag_ms=150)
BY_SIZE = replace(KEEP, copy_lag_ms=None, copy_lag_bytes=10_000)
WINDOW = replace(KEEP, copy_window=DailyWindow(start_ms=MOMENT + 70, end_ms=MOMENT + 80))
COMPACT = replace(KEEP, cleanup_compact=True)
Expected = tuple[Action, Code, int, int | None]


def _taken(rules: PartitionRules = KEEP, **changes: object) -> PartitionSnapshot:
    return replace(snapshot(*SEGMENTS, rules=rules), **changes)  # type: ignore[arg-type]


def _put_off(taken: PartitionSnapshot) -> list[Deferral]:
    return deferrals(taken, plan_partition(taken))


COPY, CLEAN, DROP = Action.COPY, Action.CLEAN, Action.DROP
CASES: dict[str, tuple[PartitionSnapshot, list[Expected]]] = {
    "lag": (_taken(LAG), [(COPY, Code.COPY_LAG, 0, MOMENT + 50), (COPY, Code.COPY_LAG, 2, MOMENT + 50)]),
    "lag by size": (_taken(BY_SIZE), [(COPY, Code.COPY_LAG, 0, None), (COPY, Code.COPY_LAG, 2, None)]),
    "window": (_taken(WINDOW), [(COPY, Code.COPY_LAG, 0, MOMENT + 70), (COPY, Code.COPY_LAG, 2, MOMENT + 70)]),
    "pause": (_taken(paused=Pause(since_ms=None)), [(COPY, Code.PAUSED, 0, None), (COPY, Code.PAUSED, 2, None)]),
    "switched off": (
        _taken(replace(KEEP, copy_disabled=True)),
        [(COPY, Code.COPY_DISABLED, 0, None), (COPY, Code.COPY_DISABLED, 2, None)],
    ),
    "being disabled": (
        _taken(replace(KEEP, copy_disabled=True, gives_up_remote=True)),
        [(COPY, Code.GIVING_UP, 0, None), (COPY, Code.GIVING_UP, 2, None)],
    ),
    "open transaction": (_taken(stable_offset=3), [(COPY, Code.OPEN_TRANSACTION, 2, None)]),
    "copy under way": (_taken(copying=frozenset({0})), [(COPY, Code.COPYING, 0, None), (COPY, Code.ORDER, 2, None)]),
    "overlap": (_taken(remote=(entry(0, 1),)), [(COPY, Code.OVERLAP, 0, None), (COPY, Code.ORDER, 2, None)]),
    "not cleaned": (
        _taken(replace(COMPACT, min_cleanable_dirty_ratio=1.0)),
        [
            (COPY, Code.NOT_CLEANED, 0, None),
            (COPY, Code.NOT_CLEANED, 2, None),
            (CLEAN, Code.DIRTY_RATIO, 0, None),
            (CLEAN, Code.DIRTY_RATIO, 2, None),
        ],
    ),
    "cleaned by this plan": (_taken(COMPACT), [(COPY, Code.NOT_CLEANED, 0, None), (COPY, Code.NOT_CLEANED, 2, None)]),
    "compaction lag": (
        _taken(replace(COMPACT, min_compaction_lag_ms=150), cleaner_offset=2),
        [(COPY, Code.NOT_CLEANED, 2, None), (CLEAN, Code.COMPACTION_LAG, 2, MOMENT + 50)],
    ),
    "cleaner held": (
        _taken(COMPACT, may_clean=False, cleaner_offset=2),
        [(COPY, Code.NOT_CLEANED, 2, None), (CLEAN, Code.CLEANER_HELD, 2, None)],
    ),
    "cleaned before it is copied": (
        _taken(replace(COMPACT, min_cleanable_dirty_ratio=0.1), cleaner_offset=2),
        [(COPY, Code.CLEANING, 0, None), (COPY, Code.NOT_CLEANED, 2, None)],
    ),
    "only copy": (
        _taken(replace(LAG, local_retention_ms=10)),
        [
            (COPY, Code.COPY_LAG, 0, MOMENT + 50),
            (COPY, Code.COPY_LAG, 2, MOMENT + 50),
            (DROP, Code.NOT_COPIED, 0, None),
            (DROP, Code.NOT_COPIED, 2, None),
        ],
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_each_deferral_states_its_segment_code_and_end(name: str) -> None:
    taken, expected = CASES[name]
    found = [each for each in _put_off(taken) if each.code is not Code.ACTIVE]
    assert [(each.action, each.code, each.base_offset, each.until_ms) for each in found] == expected
    assert all(each.why and each.size_bytes == 100 for each in found)


def test_the_cases_cover_every_deferral_code() -> None:
    told = {code for _, expected in CASES.values() for _, code, _, _ in expected}
    # covered by the tests below and by the recompaction tests
    elsewhere = {Code.ACTIVE, Code.REMOTE_UNKNOWN, Code.REPLACEMENT}
    assert told == set(Code) - elsewhere


def test_every_deferral_code_is_documented() -> None:
    told = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    assert [code for code in Code if f"| `{code.value}` |" not in told] == []


def test_a_copy_of_the_active_segment_is_deferred_until_it_rolls() -> None:
    (found,) = (each for each in _put_off(_taken(replace(KEEP, segment_ms=1000))) if each.code is Code.ACTIVE)
    assert (found.base_offset, found.until_ms) == (4, MOMENT + 1001)
    idle = _taken(replace(KEEP, segment_ms=1000), now_ms=MOMENT + 1001)
    assert type(plan_partition(idle)[0]).__name__ == "RollActive"
    (found,) = (each for each in _put_off(idle) if each.code is Code.ACTIVE)
    assert found.until_ms is None
    assert "a later plan copies it" in found.why


@pytest.mark.parametrize("wait", [{"paused": Pause(since_ms=None)}, {"rules": WINDOW}], ids=["pause", "window"])
def test_a_drop_that_waits_for_uploads_is_deferred(wait: dict[str, object]) -> None:
    rules = replace(COMPACT, local_retention_ms=10, recompaction_min_reduction=0.0, recompaction_min_saved_bytes=0)
    entries = tuple(replace(entry(at, at + 2, size=500), cleaned_through=2) for at in (0, 2))
    if "rules" in wait:
        wait = {"rules": replace(rules, copy_window=WINDOW.copy_window)}
    taken = replace(snapshot(*SEGMENTS, remote=entries, rules=rules), cleaner_offset=4, **wait)  # type: ignore[arg-type]
    found = [(each.action, each.code, each.base_offset) for each in _put_off(taken) if each.code is not Code.ACTIVE]
    assert (DROP, Code.REPLACEMENT, 0) in found


def test_a_partition_without_remote_tier_has_no_deferred_copies() -> None:
    assert _put_off(_taken(is_tiered=False)) == []


# --- outputs ----------------------------------------------------------------------------------------------------------


def _begun(world: World, **changes: str) -> LogManager:
    manager = world.open()
    settings = {**TIERED, "local.retention.ms": "-2", **{key.replace("_", "."): each for key, each in changes.items()}}
    manager.topics.create("t", 1, settings, now_ms=NOW)
    return manager


def _transaction(manager: LogManager) -> None:
    producer = Producer(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    manager.partitions.find(NAME).log.append([Record(b"k", b"v", NOW)], now_ms=NOW, producer=producer)
    manager.partitions.roll("t", now_ms=NOW)


def test_a_manager_uploads_in_the_copy_window_only_and_acknowledges_outside_it(tmp_path: Path) -> None:
    opens = (NOW // HOUR + 1) * HOUR
    window = f"{opens // HOUR % 24:02}:00-{(opens // HOUR + 2) % 24:02}:00"
    world = World()
    with _begun(world, remote_copy_window=window) as manager:
        send(manager, 10)
        manager.partitions.roll("t", now_ms=NOW)
        for now_ms in (NOW, opens - 1, opens + 2 * HOUR):
            assert not manager.tick(now_ms)
            assert manager.partitions.find(NAME).manifest().entries_end_offset == 0
        (told,) = status_facts(status_report(manager, NOW)).deferrals
        assert (told.code, told.until_ms) == ("copy_lag", opens)
        assert told.why == f"uploads begin in remote.copy.window={window} UTC"
        settle(manager, opens)
        assert manager.partitions.find(NAME).manifest().entries_end_offset == 10
        send(manager, 10, start=10)
        outside = opens + 3 * HOUR
        assert wait_for_bucket(manager, {NAME: 20}, clock=lambda: outside, pause=lambda seconds: None) is not None


def test_plan_status_and_web_page_show_the_copy_lag_with_its_end(tmp_path: Path) -> None:
    world = World()
    with _begun(world, remote_copy_lag_ms="2d") as manager:
        send(manager, 10)
        manager.partitions.roll("t", now_ms=NOW)
        (segment,) = manager.snapshots(NOW)[0].closed
        until = segment.age_timestamp_ms + 2 * 24 * HOUR
        (told,) = status_facts(status_report(manager, NOW)).deferrals
        assert (told.code, told.base_offset, told.next_offset) == ("copy_lag", 0, 10)
        assert told.until_ms == until
        priced = priced_plan(manager, NOW)
        assert [each.code for each in priced.plan.deferrals[NAME]] == [Code.COPY_LAG]
        facts = data(site(world, manager), "/plan?format=json")
        assert facts["deferrals"] == [msgspec.structs.asdict(told)]
        assert "a copy lag of remote.copy.lag.ms=2d" in page(site(world, manager), "/plan")


@pytest.mark.parametrize("is_looking", [False, True])
def test_status_names_the_open_transaction_that_holds_a_segment(is_looking: bool) -> None:
    world = World()
    with _begun(world) as manager:
        send(manager, 10)
        _transaction(manager)
        if is_looking:
            with world.open(read_only=True) as looker:
                (told,) = status_facts(status_report(looker, NOW)).deferrals
        else:
            (told,) = status_facts(status_report(manager, NOW)).deferrals
        assert (told.code, told.until_ms) == ("open_transaction", None)
        assert told.why == "a transaction is open from offset 10"


def test_a_timed_out_wait_for_the_remote_tier_names_the_open_transaction() -> None:
    world, clock = World(), [NOW]

    def pause(seconds: float) -> None:
        clock[0] += 60_000

    with _begun(world) as manager:
        _transaction(manager)
        with pytest.raises(Unavailable, match="a transaction is open from offset 0") as error:
            wait_for_bucket(manager, {NAME: 1}, clock=lambda: clock[0], pause=pause, timeout_ms=1000)
        assert error.value.facts["reason"] == "open_transaction"


def test_a_partition_whose_manifest_was_never_read_is_deferred_with_the_problem() -> None:
    world = World()
    with _begun(world) as manager:
        send(manager, 10)
        manager.partitions.roll("t", now_ms=NOW)
    down = SwitchableStore(world.store)
    with world.open(read_only=True, store=down) as manager:  # type: ignore[arg-type]
        for found in (
            priced_plan(manager, NOW).plan.deferrals[NAME],
            status_report(manager, NOW).deferrals[NAME],
        ):
            assert [each.code for each in found] == [Code.REMOTE_UNKNOWN]
            assert "the store is down" in found[0].why


def test_a_pause_is_shown_for_each_segment() -> None:
    world = World()
    with _begun(world) as manager:
        send(manager, 10)
        manager.partitions.roll("t", now_ms=NOW)
        manager.pauses.pause(["t"], now_ms=NOW, reason="a test")
    with world.open(read_only=True) as manager:
        (told,) = status_facts(status_report(manager, NOW)).deferrals
        assert (told.code, told.why) == ("paused", "uploads are paused: a test")


def test_status_shows_no_deferrals_of_a_healthy_partition() -> None:
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, COMPACTED, now_ms=NOW)
        send(manager, 40)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        assert status_facts(status_report(manager, NOW)).deferrals == []


def test_the_plan_command_prints_deferrals_of_one_reason_in_one_line(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bucket").mkdir()
    assert invoke(["-q", "init", "--remote", f"file://{tmp_path}/bucket"]) == 0
    settings = ["-X", "remote.storage.enable=true", "-X", "remote.copy.lag.ms=1d"]
    assert invoke(["-q", "topic", "create", "orders", "-p", "3", *settings]) == 0
    (tmp_path / "in").write_text("a\nb\nc\n")
    for partition in range(3):
        assert invoke(["-q", "append", f"orders/{partition}", str(tmp_path / "in")]) == 0
    capfd.readouterr()
    assert invoke(["plan"]) == 0
    said = capfd.readouterr().err
    assert said.count("3 partitions (orders/0, orders/1, orders/2): 3 segments") == 1
    assert "not copied yet: the active segment rolls when it is full, or idle for segment.ms=7d; ends in " in said
    assert invoke(["plan", "-o", "json"]) == 0
    told = json.loads(capfd.readouterr().out)["deferrals"]
    assert [(each["code"], each["partition"]) for each in told] == [("active", at) for at in range(3)]
