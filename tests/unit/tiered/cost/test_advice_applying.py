"""Saved cost advice is applied as written, resumed after a crash, and refused after a change of state."""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from manager_world import DAY, NOW, TIERED, World, settle, values
from test_cost_advice import SMALL, months_of_segments

from local.errors import Conflict, InvalidRequest, Unavailable
from local.format.record import Record
from remote.manifest.catalog import list_partitions
from remote.store.open_store import open_store
from tiered.cli.main import invoke
from tiered.cli.node import plan as apply_command
from tiered.cli.topics import cost as cost_command
from tiered.config.price_file import price_rows
from tiered.cost.advice_applying import apply_advice, check_advice, save_advice
from tiered.cost.cost_advising import cost_advice
from tiered.jobs.rewriting import plan_recode, run_rewrite
from tiered.plans.saved_plan import AlterStep, RecodeStep, SavedPlan, decode_plan, encode_plan

LATER = NOW + 1000


def with_shorter_local_retention(made: SavedPlan) -> SavedPlan:
    """`made` with one more step, which alters `local.retention.ms`."""
    first = made.steps[0]
    assert isinstance(first, AlterStep)
    more = msgspec.structs.replace(first, key="local.retention.ms", before="432000000", value=str(DAY))
    basis = {name: text for name, text in made.basis.items() if name != "t local.retention.ms"}
    return replace(made, steps=(first, more, *made.steps[1:]), basis=basis)


class Advised:
    """Cost advice in its file form, for two partitions whose segments can move to another class."""

    def __init__(self, tmp_path) -> None:
        self.world = World()
        self.prices = months_of_segments(self.world, tmp_path)
        with self.open(read_only=True) as manager:
            found = cost_advice(manager, NOW, least_dollars=0.0)
            self.advice = found.advice
            self.made = save_advice(manager, found, NOW)
            self.saved = decode_plan(encode_plan(with_shorter_local_retention(self.made)))
            self.records = values(manager.reader())

    def open(self, **more):
        return self.world.open(cost_prices=self.prices, **more)

    def apply(self, manager, **more):
        return apply_advice(manager, self.saved, self.world.store, now_ms=lambda: LATER, **more)

    @property
    def move(self) -> RecodeStep:
        return next(each for each in self.saved.steps if isinstance(each, RecodeStep))

    def classes(self) -> dict[tuple[int, int], str | None]:
        with self.open(read_only=True) as manager:
            return {
                (held.name.partition, row.base_offset): row.storage_class
                for held in manager.partitions.all()
                for row in held.manifest().segments
            }


@pytest.fixture
def advised(tmp_path) -> Advised:
    return Advised(tmp_path)


def test_saved_advice_has_a_step_for_every_advice_with_the_same_figures(advised):
    (move,) = [each for each in advised.advice if each.segments]
    step = advised.move
    assert (len(step.segments), step.size_bytes) == (move.segments, move.size_bytes)
    assert (step.now_dollars, step.then_dollars) == (move.now_dollars, move.then_dollars)
    assert step.once_dollars == pytest.approx(move.once_dollars, rel=0.02)
    assert step.puts == 2 * len(step.segments) + 2
    settings = [each for each in advised.made.steps if isinstance(each, AlterStep)]
    assert settings
    assert len({each.key for each in settings}) == len(settings)
    for each in settings:
        best = max(
            one.saved_dollars for one in advised.advice if one.setting is not None and one.setting[0] == each.key
        )
        assert each.now_dollars - each.then_dollars == pytest.approx(best)


def test_apply_advice_does_every_step_and_does_nothing_when_repeated(advised):
    with advised.open() as manager:
        assert {each.due == each.parts for each in check_advice(manager, advised.saved)} == {True}
        assert all(each.is_done for each in advised.apply(manager))
        own = manager.topics.get("t").properties
        assert {each.key: own[each.key] for each in advised.saved.steps if isinstance(each, AlterStep)} == {
            each.key: each.value for each in advised.saved.steps if isinstance(each, AlterStep)
        }
    meant = {(each.partition, each.base_offset) for each in advised.move.segments}
    assert {at for at, name in advised.classes().items() if name == "STANDARD_IA"} == meant
    with advised.open() as manager:
        before = {info.key for info in advised.world.store.list("")}
        assert all(each.is_done for each in advised.apply(manager))
        assert {info.key for info in advised.world.store.list("")} == before
        assert values(manager.reader()) == advised.records


class FailingStore:
    """A store that accepts `puts` uploads and then raises `Unavailable`, as if the process had crashed."""

    def __init__(self, inner, puts: int) -> None:
        self._inner = inner
        self.left = puts

    def __getattr__(self, verb):
        if verb.startswith(("put", "upload", "open_upload", "create")):
            self.left -= 1
            if self.left < 0:
                raise Unavailable("the machine is gone", verb=verb)
        return getattr(self._inner, verb)


def test_apply_advice_resumes_after_a_crash_at_any_upload(tmp_path):
    reached = set()
    for puts in (0, 5, 90, 130):
        (tmp_path / str(puts)).mkdir()
        advised = Advised(tmp_path / str(puts))
        manager = advised.open()
        with contextlib.suppress(Unavailable):
            apply_advice(manager, advised.saved, FailingStore(advised.world.store, puts), now_ms=lambda: LATER)
        manager.abandon()
        with advised.open() as manager:
            states = check_advice(manager, advised.saved)
            reached.add(tuple(each.due for each in states))
            assert all(each.is_done for each in advised.apply(manager))
            assert values(manager.reader()) == advised.records
        meant = {(each.partition, each.base_offset) for each in advised.move.segments}
        assert {at for at, name in advised.classes().items() if name == "STANDARD_IA"} == meant
    assert len(reached) >= 3  # crashes before the first move, after one partition, and after all moves


def test_cancelled_apply_reports_the_steps_that_are_due(advised):
    answers = iter([False])
    with advised.open() as manager:
        states = advised.apply(manager, should_stop=lambda: next(answers, True))
        assert [each.is_done for each in states] == [True] + [False] * (len(states) - 1)
        assert all(each.is_done for each in advised.apply(manager))


@pytest.mark.parametrize("what", ["setting", "other setting", "rewritten", "expired", "prices", "gone", "anew"])
def test_apply_advice_refuses_and_names_a_change_of_the_state_it_was_based_on(advised, what):
    with advised.open() as manager:
        match what:
            case "setting":
                named = "t local.retention.ms 432000000 -> "
                manager.topics.alter("t", {"local.retention.ms": "4d"}, now_ms=LATER)
            case "other setting":
                manager.topics.alter("t", {"retention.ms": "60d"}, now_ms=LATER)
                named = "retention.ms"
            case "rewritten":
                name = list_partitions(advised.world.store)[0]
                gone = advised.move.segments[0].ulid
                plan = plan_recode(
                    advised.world.store,
                    name,
                    now_ms=LATER,
                    storage_class="GLACIER_IR",
                    entry_filter=lambda row: row.ulid == gone,
                )
                run_rewrite(advised.world.store, plan, now_ms=lambda: LATER)
                named = "t/0 segment"
            case "expired":
                manager.maintenance.delete_records({each.name: 30 for each in manager.partitions.all()}, now_ms=LATER)
                settle(manager, LATER)
                named = "t/0 segment"
            case "prices":
                path = Path(advised.prices)
                path.write_text(json.dumps({**json.loads(path.read_text()), "as_of": "2031-01-01"}))
                named = "2031-01-01"
            case _:
                manager.topics.delete("t", now_ms=LATER)
                named = "t topic id"
                if what == "anew":
                    manager.topics.create("t", 2, TIERED, now_ms=LATER)
    with advised.open() as manager:
        before = {info.key for info in advised.world.store.list("")}
        with pytest.raises(Conflict, match="the state has changed") as refused:
            advised.apply(manager)
        assert named in str(refused.value)
        assert {info.key for info in advised.world.store.list("")} == before
        if what not in ("gone", "setting"):
            own = manager.topics.get("t").properties
            assert not [each for each in advised.saved.steps[:-1] if own.get(each.key) == each.value]


def test_apply_advice_accepts_records_appended_after_the_advice(advised):
    with advised.open() as manager:
        manager.append("t", [Record(b"k", b"new", LATER)], 0, now_ms=LATER)
        manager.partitions.roll("t", now_ms=LATER)
        settle(manager, LATER)
        assert all(each.is_done for each in advised.apply(manager))


def test_advice_file_that_could_lose_records_is_refused(advised):
    lowered = msgspec.structs.replace(
        next(each for each in advised.saved.steps if isinstance(each, AlterStep)), key="retention.ms", value="1"
    )
    body = encode_plan(replace(advised.saved, steps=(lowered,)))
    with pytest.raises(InvalidRequest, match="never advised"):
        decode_plan(body)
    by_hand = encode_plan(advised.saved).replace(b'"STANDARD_IA"', b'"DEEP_ARCHIVE"')
    with pytest.raises(InvalidRequest, match="the file was edited"):
        decode_plan(by_hand)
    with pytest.raises(InvalidRequest, match="'tiered cost advise --out FILE'"):
        decode_plan(b"{}")


EARLIER = Path(__file__).with_name("advice-of-version-0.1.0.json")


def test_a_file_of_advice_of_an_earlier_version_is_read_with_its_steps_and_checked():
    saved = decode_plan(EARLIER.read_bytes())
    assert [type(each) for each in saved.steps] == [AlterStep, RecodeStep]
    assert saved.fingerprint == json.loads(EARLIER.read_bytes())["fingerprint"]
    assert decode_plan(encode_plan(saved)).steps == saved.steps
    with pytest.raises(InvalidRequest, match="the file was edited"):
        decode_plan(EARLIER.read_bytes().replace(b'"zstd"', b'"none"'))


def test_save_advice_leaves_out_a_setting_that_an_override_outranks(tmp_path):
    advised = Advised(tmp_path)
    keys = [each.key for each in advised.saved.steps if isinstance(each, AlterStep)]
    with advised.open(read_only=True, **{keys[0].replace(".", "_"): advised.saved.steps[0].before}) as manager:
        found = save_advice(manager, cost_advice(manager, NOW, least_dollars=0.0), NOW)
        assert keys[0] not in [each.key for each in found.steps if isinstance(each, AlterStep)]


def test_apply_command_moves_the_segments_that_its_dry_run_shows(tmp_path, monkeypatch, capfd):
    """Uses files on a real disk and replaces the function that opens the bucket for another storage class."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(time, "time_ns", lambda: NOW * 1_000_000)
    (tmp_path / "prices.json").write_text(json.dumps(price_rows(SMALL)))
    at = ["-q", "-X", "cost.prices=prices.json"]
    assert invoke([*at, "init"]) == 0
    rules = {**TIERED, "retention.ms": "70d", "local.retention.ms": "5d", "segment.bytes": "3000"}
    assert (
        invoke([*at, "topic", "create", "t", *(word for each in rules.items() for word in ("-X", "=".join(each)))]) == 0
    )
    for age in (30, 29, 20, 2):
        line = {"key": "k", "value": "v" * 2500, "timestamp": NOW - age * DAY}
        (tmp_path / "line").write_text(json.dumps(line) + "\n")
        assert invoke([*at, "append", "t", "line", "--jsonl"]) == 0
    assert invoke([*at, "run", "--once"]) == 0
    capfd.readouterr()
    assert invoke([*at[1:], "cost", "advise", "--out", "cut.json"]) == 3
    assert "moves are not in the file: storage classes exist on S3 only" in capfd.readouterr().err
    assert not moves_in(tmp_path / "cut.json")
    monkeypatch.setattr(cost_command, "_has_classes", lambda session: True)
    assert invoke([*at, "cost", "advise", "--out", "cut.json"]) == 3
    (step,) = moves_in(tmp_path / "cut.json")
    assert invoke([*at, "apply", "cut.json", "--yes"]) == 2
    assert "storage class and encryption are settings of S3" in capfd.readouterr().err
    monkeypatch.setattr(apply_command, "open_target", lambda session, url, options, **named: open_store(url, options))
    capfd.readouterr()
    for words, due in ((["--dry-run"], len(step.segments)), (["--yes"], 0), (["--yes"], 0), (["--dry-run"], 0)):
        assert invoke([*at, "apply", "cut.json", *words, "-o", "json"]) == 0
        found = json.loads(capfd.readouterr().out)["steps"][-1]
        assert (found["change"], found["due"], found["parts"]) == (step.change, due, len(step.segments))
        assert found["requests"] == step.puts + step.gets
    assert len(step.segments) == 3
    assert invoke([*at, "consume", "t", "-f", "%o "]) == 0
    assert capfd.readouterr().out == "0 1 2 3 "


def moves_in(path: Path) -> list[RecodeStep]:
    return [each for each in decode_plan(path.read_bytes()).steps if isinstance(each, RecodeStep)]


def test_storage_class_that_cannot_be_opened_is_refused_before_the_first_step(advised):
    def refused(storage_class: str):
        raise InvalidRequest("cannot open a store")

    with advised.open() as manager:
        with pytest.raises(InvalidRequest):
            advised.apply(manager, target_of=refused)
        assert [each.due for each in check_advice(manager, advised.saved)] == [1, 1, len(advised.move.segments)]
