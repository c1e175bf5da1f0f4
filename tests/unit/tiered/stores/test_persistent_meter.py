"""Store requests counted by verb and topic, and persisted over restarts and crashes."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

import pytest
from disk_model import ModelDisk, PowerCut
from manager_world import DAY, HOUR, NOW, TIERED, SwitchableStore, World, send, settle

from local.storage import replace_file
from remote.keys import topic_directory
from remote.segment_entry import PART_BYTES
from remote.store import ranged_source
from remote.store.memory_store import MemoryStore
from remote.store.middleware.store_wrapper import MeteredStore, RequestCounts
from tiered.cost.topic_cost import cost_report
from tiered.stores import persistent_meter
from tiered.stores.persistent_meter import FILE, PersistentMeter, RequestHistory, added, month_of, read_history

ORDERS, CLICKS = "orders-" + "A" * 22, "clicks-" + "B" * 22


def kept(world, root="./data"):
    return read_history(world.disk, root)


def test_requests_are_counted_by_verb_and_topic():
    store = MeteredStore(MemoryStore())
    body = bytes(2 * PART_BYTES + 1)
    store.upload(f"{ORDERS}/0/data/a", ranged_source(len(body), lambda start, length: body[start : start + length]))
    store.put(f"{ORDERS}/0/data/b.indexes", b"12")
    store.head(f"{ORDERS}/0/data/b.indexes")
    store.get_ranges(f"{CLICKS}/0/x", []) or store.put(f"{CLICKS}/0/x", b"1234")
    store.get_range(f"{CLICKS}/0/x", 1, 2)
    list(store.list(""))
    store.delete([])
    store.delete([f"{CLICKS}/0/x"])
    assert store.counts_by_topic() == {
        ORDERS: RequestCounts(
            puts=6, posts=2, gets=1, heads=1, bytes_in=len(body) + 2, data_puts=5, data_bytes_in=len(body)
        ),
        CLICKS: RequestCounts(puts=1, gets=1, deletes=1, bytes_in=4, bytes_out=2),
        "": RequestCounts(lists=1),
    }
    assert store.counts() == sum(store.counts_by_topic().values(), RequestCounts())


def test_request_counts_continue_after_a_restart():
    world, sent = World(), []
    for turn in range(3):
        with world.open(now_ms=NOW + turn * HOUR) as manager:
            if turn == 0:
                manager.topics.create("t", 1, TIERED, now_ms=NOW)
            send(manager, 100, start=turn * 100)
            manager.partitions.roll("t", now_ms=NOW)
            settle(manager, NOW + turn * HOUR)
            sent.append(manager.store.counts())
        history = kept(world)
        assert history.total() == sum(sent, RequestCounts())
    assert (history.since_ms, history.upto_ms) == (NOW, NOW + 2 * HOUR)
    assert history.url == "memory://bucket"
    (month,) = history.months
    assert {name[:2] for name in history.months[month]} <= {"t-", ""}


def test_counts_belong_to_their_month_and_old_months_are_removed():
    disk, store = ModelDisk(), MemoryStore("memory://b")
    disk.make_directory("./d")
    meter = PersistentMeter(store, lambda: (disk, "./d"), NOW)
    for turn in range(20):
        meter.put(f"{ORDERS}/0/x", b"1")
        meter.keep(NOW + turn * 31 * DAY)
    meter.keep()
    history = read_history(disk, "./d")
    assert len(history.months) == 13
    assert list(history.months) == sorted(history.months)
    assert all(each[ORDERS].puts in (1, 2) for each in history.months.values())
    assert month_of(history.since_ms) == next(iter(history.months))


def test_counts_are_written_only_after_requests_and_at_most_once_a_minute():
    disk, store = ModelDisk(), MemoryStore("memory://b")
    disk.make_directory("./d")
    meter = PersistentMeter(store, lambda: (disk, "./d"), NOW)
    meter.keep(NOW + DAY)
    assert not disk.exists("./d/" + FILE)
    meter.put(f"{ORDERS}/0/x", b"1")
    meter.keep(NOW + DAY)
    meter.put(f"{ORDERS}/0/x", b"1")
    meter.keep(NOW + DAY + 59_999)
    assert read_history(disk, "./d").total().puts == 1
    meter.keep(NOW + DAY + 60_000)
    assert read_history(disk, "./d").total().puts == 2
    before = disk.digest()
    meter.keep(NOW + 2 * DAY)
    meter.keep()
    assert disk.digest() == before


def test_read_only_and_abandoned_managers_write_no_counts():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
    before = kept(world)
    with world.open(read_only=True, now_ms=NOW + DAY) as manager:
        assert manager.store.counts().gets > 0
    manager = world.open(now_ms=NOW + DAY)
    manager.abandon()
    assert kept(world) == before


def test_power_cut_leaves_the_old_counts_or_the_new_ones():
    for cut in range(12):
        disk, store = ModelDisk(), MemoryStore("memory://b")
        disk.make_directory("./d")
        disk.sync_directory(".")
        meter = PersistentMeter(store, lambda disk=disk: (disk, "./d"), NOW)
        meter.put(f"{ORDERS}/0/x", b"1")
        meter.keep()
        meter.put(f"{ORDERS}/0/x", b"1")
        disk.cut_at, disk.cut_before = disk.effects + 1 + cut // 2, cut % 2 == 0
        with contextlib.suppress(PowerCut):
            meter.keep()
        for seed in range(5):
            found = read_history(disk.crash(random.Random(seed)), "./d")
            assert found is not None
            assert found.total().puts in (1, 2)


def test_failed_write_counts_no_request_twice():
    from local.errors import DiskFailed

    disk, store = ModelDisk(), MemoryStore("memory://b")
    disk.make_directory("./d")
    failing = {"is": True}

    class Failing:
        def __getattr__(self, name):
            return getattr(disk, name)

        def sync_directory(self, path):
            disk.sync_directory(path)
            if failing["is"]:
                raise DiskFailed("the disk fails")

    meter = PersistentMeter(store, lambda: (Failing(), "./d"), NOW)
    meter.put(f"{ORDERS}/0/x", b"1")
    meter.keep()
    failing["is"] = False
    meter.keep()
    meter.put(f"{ORDERS}/0/x", b"1")
    meter.keep()
    assert read_history(disk, "./d").total().puts == 2


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"version": 2}', b"\xff"])
def test_unreadable_file_is_restarted_and_logged(body, caplog):
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
    replace_file(world.disk, "./data/" + FILE, body)
    with world.open(now_ms=NOW + DAY) as manager:
        sent = manager.store.counts()
    assert kept(world).since_ms == NOW + DAY
    assert kept(world).total().puts >= sent.puts
    assert "counting starts at zero" in caplog.text


def test_counts_of_another_store_are_not_continued():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {"remote.storage.enable": "false"}, now_ms=NOW)
    replace_file(world.disk, "./data/" + FILE, b'{"url": "s3://other", "since_ms": 1, "upto_ms": 2}')
    with world.open() as manager:
        manager.topics.alter("t", TIERED, now_ms=NOW)
    assert kept(world).url == "memory://bucket"
    assert kept(world).since_ms == NOW


def test_counts_survive_a_store_that_is_down():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
    before = kept(world).total()
    down = SwitchableStore(world.store)
    with world.open(store=down) as manager:
        sent = manager.store.counts()
        assert sent.lists + sent.gets > 0
    assert kept(world).total() == before + sent
    assert down.closed == 1


def test_added_does_not_modify_its_arguments():
    history = RequestHistory(url="u", since_ms=NOW, upto_ms=NOW)
    more = added(history, {ORDERS: RequestCounts(puts=1), CLICKS: RequestCounts()}, NOW)
    assert history.months == {}
    assert list(more.months[month_of(NOW)]) == [ORDERS]
    assert more.recent(ORDERS, NOW)[0].puts == 1


def test_topic_is_metered_since_its_own_first_request():
    one, later = RequestCounts(puts=1), NOW + 90 * DAY
    history = added(RequestHistory(url="u", since_ms=NOW, upto_ms=NOW), {ORDERS: one}, NOW + HOUR)
    history = added(history, {ORDERS: one, CLICKS: one}, later)
    history = added(history, {ORDERS: one, CLICKS: one}, later + DAY)
    assert history.begun == {ORDERS: NOW, CLICKS: later}
    assert history.recent(CLICKS, later + DAY) == (RequestCounts(puts=2), DAY)
    # A file of an older version has no start for the topic, so its first month with counts is used.
    old = replace(history, begun={})
    assert old.recent(CLICKS, later)[1] == later - history.rate_since_ms(later)
    told = added(old, {CLICKS: one}, later + 2 * DAY)
    assert month_of(told.begun[CLICKS]) == month_of(later)
    # The start of a topic is removed with its last month.
    gone = added(history, {ORDERS: one}, NOW + 800 * DAY)
    assert CLICKS in gone.begun
    for turn in range(14):
        gone = added(gone, {ORDERS: one}, NOW + (800 + 31 * turn) * DAY)
    assert CLICKS not in gone.begun
    assert gone.since_ms >= NOW + 800 * DAY


def test_bill_of_a_new_topic_covers_only_the_time_since_its_start():
    world = World()
    with world.open(now_ms=NOW) as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 100)
        settle(manager)
    later = NOW + 300 * DAY
    with world.open(now_ms=later) as manager:
        manager.topics.create("u", 1, TIERED, now_ms=later)
        send(manager, 100, topic="u")
        manager.partitions.roll("u", now_ms=later)
        settle(manager, later)
        report = {each.topic: each for each in cost_report(manager, later + 10 * DAY).bills}
        directory = topic_directory("u", manager.topics.get("u").topic_id)
        sent, _ = manager.store.history().recent(directory, later + 10 * DAY)
    assert report["u"].month_requests.puts == pytest.approx(sent.puts * 3, rel=0.01)
    assert sent.puts > 0


def test_monthly_forecast_uses_the_recent_requests_only():
    """The period is at least 28 days where there are as many, and at most two calendar months."""
    history = RequestHistory(url="u", since_ms=NOW, upto_ms=NOW)
    for turn in range(375):
        puts = 1000 if turn < 300 else 1  # a backfill long ago
        history = added(history, {ORDERS: RequestCounts(puts=puts)}, NOW + turn * DAY)
        counts, period_ms = history.recent(ORDERS, NOW + turn * DAY)
        assert period_ms == min(turn * DAY, NOW + turn * DAY - history.rate_since_ms(NOW + turn * DAY))
        assert turn * DAY - period_ms == 0 or 28 * DAY <= period_ms < 59 * DAY
        if turn >= 361:
            assert counts.puts == pytest.approx(period_ms / DAY, abs=1)
    assert history.since_ms == NOW
    assert history.total().puts > 100_000


def test_first_start_with_an_unset_clock_does_not_begin_in_1970(monkeypatch):
    """The correct time comes with a maintenance round, or never."""
    disk, counted = ModelDisk(), [5_000]
    disk.make_directory("./d")
    monkeypatch.setattr(persistent_meter, "counted_ms", lambda: counted[0])
    meter = PersistentMeter(MemoryStore("memory://b"), lambda: (disk, "./d"), 60_000)
    meter.put(f"{ORDERS}/0/x", b"1")
    meter.keep(90_000)
    meter.keep()
    assert not disk.exists("./d/" + FILE)
    assert meter.history().recent(ORDERS, 90_000)[0].puts == 1
    counted[0] += 7_200_000
    meter.put(f"{ORDERS}/0/x", b"1")
    meter.keep(NOW)
    history = read_history(disk, "./d")
    assert history.since_ms == NOW - 7_200_000
    assert history.recent(ORDERS, NOW) == (RequestCounts(puts=2, bytes_in=2), 7_200_000)
    assert list(history.months) == [month_of(NOW)]


def test_counts_written_by_a_clock_that_was_ahead_are_moved_to_now():
    one = RequestCounts(puts=1)
    history = added(RequestHistory(url="u", since_ms=NOW + 900 * DAY, upto_ms=NOW), {ORDERS: one}, NOW + 900 * DAY)
    history = added(history, {ORDERS: one, CLICKS: one}, NOW)
    assert list(history.months) == [month_of(NOW)]
    assert (history.since_ms, history.begun) == (NOW, {ORDERS: NOW, CLICKS: NOW})
    assert history.recent(ORDERS, NOW + DAY) == (RequestCounts(puts=2), DAY)
