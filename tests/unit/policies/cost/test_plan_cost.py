"""The price of a plan equals the requests that the plan sends, and its bill afterwards equals the bucket's cost."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from manager_world import COMPACTED, DAY, HOUR, NAME, NOW, TIERED, World, send, settle

from local.errors import LogError
from policies import invariants, retention
from policies.cost.plan_cost import bill_changes, plan_cost, removed_usage
from policies.cost.prices import BUILT_IN
from policies.cost.storage_cost import GIB, StorageUsage, monthly_storage, stored_of
from policies.decisions import (
    CopySegment,
    DeletePage,
    DeletePending,
    DisableTier,
    DropLocal,
    ExpirePage,
    ExpireRemote,
)
from remote.manifest import commit_protocol
from remote.manifest.page_out import PageRule
from remote.store.middleware.store_wrapper import RequestCounts
from tiered.config.price_file import price_rows
from tiered.cost.topic_cost import cost_report
from tiered.plans.planning import decision_row, line_fields, priced_plan, total_rows
from tiered.status.status_report import all_usage, status_facts, status_report, topic_row
from tiered.web.pages.site import Site

EXPIRING = {**TIERED, "retention.ms": "2d", "remote.log.delete.grace.ms": "1h"}


def sent_and_priced(manager, now_ms):
    """Apply plans until no work is left. Yields each priced plan and the requests it sent."""
    for _ in range(20):
        priced = priced_plan(manager, now_ms)
        if priced.plan.is_empty:
            return
        before = manager.store.counts()
        manager.apply(priced.plan)
        assert manager.problems == {}
        yield priced, manager.store.counts() - before
    raise AssertionError("the manager does not settle")


def check(priced, sent: RequestCounts, *, bytes_within: float = 0.05) -> None:
    verbs = {name: round(priced.cost.sum_of(name)) for name in ("puts", "gets", "lists", "deletes")}
    assert verbs == {name: getattr(sent, name) for name in verbs}
    uploaded = sum(each.bytes_in for each in priced.cost.lines)
    assert uploaded >= sent.data_bytes_in * (1 - bytes_within)


@pytest.mark.parametrize("settings", [TIERED, COMPACTED, {**TIERED, "remote.compression": "zstd"}, EXPIRING])
def test_every_plan_of_a_topic_sends_the_requests_it_was_priced_for(settings):
    world, kinds = World(), set()
    with world.open() as manager:
        manager.topics.create("t", 1, settings, now_ms=NOW)
        for turn in range(4):
            now = NOW + turn * DAY
            send(manager, 300, start=turn * 300)
            manager.partitions.roll("t", now_ms=now)
            for priced, sent in sent_and_priced(manager, now):
                check(priced, sent)
                kinds |= {type(each.decision) for each in priced.cost.lines}
        for priced, sent in sent_and_priced(manager, NOW + 9 * DAY):
            check(priced, sent)
            kinds |= {type(each.decision) for each in priced.cost.lines}
    assert {CopySegment, DropLocal} <= kinds
    assert (ExpireRemote in kinds) == (settings is EXPIRING)


def test_plans_with_pages_and_manifest_deletions_are_priced_by_their_requests(monkeypatch):
    monkeypatch.setattr(retention, "MANIFESTS_RETAINED", 3)
    monkeypatch.setattr(retention, "MANIFESTS_AT_ONCE", 2)
    monkeypatch.setattr(invariants, "MANIFESTS_RETAINED_MIN", 3)
    rule = PageRule(manifest_bytes_max=1300, page_rows_max=8, page_rows_min=2, kept_entries_min=2)
    world, kinds = World(), set()
    with world.open() as manager:
        manager.topics.create("t", 1, EXPIRING, now_ms=NOW)
        monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
        for turn in range(8):
            send(manager, 300, start=turn * 300)
            manager.partitions.roll("t", now_ms=NOW)
            for priced, sent in sent_and_priced(manager, NOW + turn * HOUR):
                kinds |= {type(each.decision).__name__ for each in priced.cost.lines}
                verbs = {name: round(priced.cost.sum_of(name)) for name in ("gets", "lists", "deletes")}
                assert verbs == {name: getattr(sent, name) for name in verbs}
    assert "CollectManifests" in kinds


def test_the_bill_after_a_plan_equals_the_cost_of_the_bucket():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, EXPIRING, now_ms=NOW)
        send(manager, 500)
        manager.partitions.roll("t", now_ms=NOW)
        first = priced_plan(manager, NOW)
        assert (first.cost.now_bytes, first.cost.now.storage) == (0, 0)
        settle(manager)
        held = priced_plan(manager, NOW).cost
        assert first.cost.then_dollars - first.cost.now.index == pytest.approx(held.now.storage, rel=0.15)
        entries = manager.partitions.find(NAME).manifest().segments
        assert held.now_bytes == sum(entry.stored_bytes + entry.indexes_bytes for entry in entries)
        assert held.now.storage == pytest.approx(monthly_storage(held.now_bytes))
        last = priced_plan(manager, NOW + 5 * DAY).cost
        assert last.then_bytes == 0
        assert last.then_dollars == pytest.approx(last.now.index)  # old manifests remain


@pytest.mark.parametrize("in_pages", [False, True], ids=["rows", "pages"])
def test_prices_of_a_plan_agree_with_the_status_report_before_and_after_it(monkeypatch, tmp_path, in_pages):
    """Includes pending deletes, for every plan in the life of a topic. A second topic's data fills the same price
    bands."""
    bands = ((3000 / GIB, 1e6), (9000 / GIB, 4e5), (None, 1e5))
    table = replace(BUILT_IN, classes={"STANDARD": replace(BUILT_IN.of("STANDARD"), storage_bands=bands)})
    (tmp_path / "prices.json").write_text(json.dumps(price_rows(table)))
    if in_pages:
        rule = PageRule(manifest_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_entries_min=1)
        monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    world, kinds, waited = World(), set(), 0.0
    with world.open(cost_prices=str(tmp_path / "prices.json")) as manager:
        for topic in ("t", "other"):
            manager.topics.create(topic, 1, EXPIRING, now_ms=NOW)
        send(manager, 300, topic="other")
        for now in (NOW, NOW + HOUR, NOW + 5 * DAY, NOW + 5 * DAY + 2 * HOUR, NOW + 6 * DAY):
            if now <= NOW + HOUR:
                send(manager, 300, start=0)
                manager.partitions.roll("t", now_ms=now)
            for _ in range(20):
                kept = status_report(manager, now, storage=world.disk).storage
                priced = priced_plan(manager, now)
                cost = priced.cost
                assert cost.now_dollars == pytest.approx(sum(each.total for each in kept.values()))
                assert cost.now.waiting == pytest.approx(sum(each.waiting for each in kept.values()))
                assert cost.then_dollars == pytest.approx(cost.now_dollars + cost.sum_of("monthly_dollars"))
                one = priced_plan(manager, now, ["t"]).cost
                # its share of a bill with the bands of all topics
                assert one.now_dollars == pytest.approx(kept[NAME].total)
                kinds |= {type(each.decision).__name__ for each in cost.lines}
                waited = max(waited, cost.now.waiting)
                deleted = [each for each in cost.lines if isinstance(each.decision, DeletePending | DeletePage)]
                assert all(each.monthly_dollars < 0 for each in deleted)
                if priced.plan.is_empty:
                    break
                manager.apply(priced.plan)
    assert waited > 0
    assert {"CopySegment", "DeletePage" if in_pages else "DeletePending"} <= kinds


def test_each_line_is_priced_in_the_band_that_it_fills_or_empties():
    bands = ((1.0, 3.0), (None, 1.0))
    table = replace(BUILT_IN, classes={"STANDARD": replace(BUILT_IN.of("STANDARD"), storage_bands=bands)})
    half = StorageUsage(data={"STANDARD": stored_of([GIB // 2], table)})
    there = [half, half]  # the first band is full
    assert list(
        bill_changes(there, [half, StorageUsage(), removed_usage(half, table), removed_usage(half, table)], table)
    ) == [
        pytest.approx(0.5),
        0.0,
        pytest.approx(-0.5),
        pytest.approx(-1.5),
    ]
    waiting = StorageUsage(waiting_bytes=GIB)
    assert list(bill_changes([*there, waiting], [removed_usage(waiting, table)], table)) == [pytest.approx(-1.0)]


def test_bill_changes_of_small_objects_use_the_minimum_billed_size():
    tiny = StorageUsage(data={"STANDARD_IA": stored_of([1000], BUILT_IN)})
    floor = monthly_storage(BUILT_IN.of("STANDARD_IA").min_bytes, BUILT_IN.of("STANDARD_IA"))
    assert (
        list(bill_changes([tiny, tiny], [removed_usage(tiny, BUILT_IN), removed_usage(tiny, BUILT_IN)], BUILT_IN))
        == [pytest.approx(-floor)] * 2
    )


def test_objects_deleted_before_their_minimum_duration_are_billed_to_its_end():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, EXPIRING, now_ms=NOW)
        send(manager, 500)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        priced = priced_plan(manager, NOW + 5 * DAY)
        assert priced.cost.sum_of("early_dollars") == 0
        cold = [
            replace(each, remote=tuple(replace(entry, storage_class="GLACIER_IR") for entry in each.remote))
            for each in priced.snapshots
        ]
        cost = plan_cost(priced.plan, cold, BUILT_IN)
        stored = sum(entry.stored_bytes for entry in cold[0].remote)
        rest = (90 - 5 - 1 / 24) / 30
        assert cost.sum_of("early_dollars") == pytest.approx(
            monthly_storage(stored, BUILT_IN.of("GLACIER_IR")) * rest, rel=0.01
        )
        assert cost.dollars > priced.cost.dollars


def test_a_priced_plan_converts_to_a_data_frame():
    pytest.importorskip("pandas")
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        priced = priced_plan(manager, NOW)
        frame = priced.to_frame()
    assert len(frame) == len(priced.cost.lines) > 3
    assert set(frame.columns) == set(line_fields(priced.cost.lines[0]))


@pytest.mark.parametrize("in_pages", [False, True], ids=["rows", "pages"])
def test_a_disabled_remote_tier_is_priced_once_and_then_costs_nothing(monkeypatch, in_pages):
    if in_pages:
        rule = PageRule(manifest_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_entries_min=1)
        monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    world, kinds = World(), []
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 600)
        settle(manager)
        manager.topics.alter("t", off, now_ms=NOW)
        for priced, sent in sent_and_priced(manager, NOW):
            kinds += [type(each.decision) for each in priced.cost.lines]
            assert priced.cost.then_bytes == 0
            assert priced.cost.then_dollars - priced.cost.now.index == pytest.approx(0, abs=1e-12)
            if DisableTier in kinds[-len(priced.cost.lines) :]:
                assert priced.cost.now_bytes > 0
                assert round(priced.cost.sum_of("puts")) == sent.puts
    assert kinds[0] is DisableTier
    assert {ExpirePage if in_pages else ExpireRemote} <= set(kinds)


def test_entries_of_two_classes_expire_by_the_minimum_duration_of_their_own_class():
    """A storage class move applies to the older entries, so the newest entry may have another class."""
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.ms": "1d"}, now_ms=NOW)
        send(manager, 500)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        priced = priced_plan(manager, NOW + 5 * DAY)
    (snapshot,) = priced.snapshots
    half = len(snapshot.remote) // 2
    assert half
    entries = [
        replace(entry, storage_class="GLACIER_IR" if at < half else None) for at, entry in enumerate(snapshot.remote)
    ]
    cost = plan_cost(priced.plan, [replace(snapshot, remote=tuple(entries))], BUILT_IN)
    moved = monthly_storage(sum(entry.stored_bytes for entry in entries[:half]), BUILT_IN.of("GLACIER_IR"))
    grace_days = snapshot.rules.delete_grace_ms / DAY
    assert cost.sum_of("early_dollars") == pytest.approx(moved * (90 - 5 - grace_days) / 30, rel=0.01)


def test_uploads_are_priced_in_the_configured_storage_class():
    """The bucket may be empty, or its newest entry may have the class that was configured before."""
    world = World()
    with world.open(remote_storage_class="STANDARD_IA") as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        first = priced_plan(manager, NOW)
        settle(manager)
        send(manager, 300, start=300)
        manager.partitions.roll("t", now_ms=NOW)
    with world.open(remote_storage_class="GLACIER_IR", read_only=True) as manager:
        (snapshot,) = priced_plan(manager, NOW).snapshots
        assert snapshot.remote[-1].storage_class == "STANDARD_IA"
        second = priced_plan(manager, NOW)
    with world.open(read_only=True) as manager:
        third = priced_plan(manager, NOW)
    for priced, name in ((first, "STANDARD_IA"), (second, "GLACIER_IR"), (third, "STANDARD")):
        of, standard = BUILT_IN.of(name), BUILT_IN.of("STANDARD")
        copies = [each for each in priced.cost.lines if isinstance(each.decision, CopySegment)]
        assert len(copies) > 2
        for each in copies[1:]:  # the first one includes the commit
            small = (standard.put_per_1000 + 2 * standard.get_per_1000) / 1000
            assert each.dollars == pytest.approx(of.put_per_1000 / 1000 + small)
            data = monthly_storage(max(each.decision.size_bytes, of.min_bytes), of)
            assert each.monthly_dollars == pytest.approx(data, rel=0.2 if name == "STANDARD" else 0.05)


def test_a_plan_includes_the_price_per_uploaded_byte_of_a_class():
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, TIERED, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        priced = priced_plan(manager, NOW)
    free = replace(BUILT_IN.of("EXPRESS_ONEZONE"), write_per_gb=0.0)
    dear = replace(free, write_per_gb=1e6)
    costs = [
        plan_cost(
            priced.plan,
            priced.snapshots,
            replace(BUILT_IN, classes={**BUILT_IN.classes, "EXPRESS_ONEZONE": of}),
            new_class="EXPRESS_ONEZONE",
        ).dollars
        for of in (free, dear)
    ]
    copied = sum(each.decision.size_bytes for each in priced.cost.lines if isinstance(each.decision, CopySegment))
    assert costs[1] - costs[0] == pytest.approx(copied / GIB * 1e6, rel=1e-3)


def test_a_removal_larger_than_the_estimate_does_not_reduce_the_price_of_later_lines():
    half = StorageUsage(data={"STANDARD": stored_of([GIB // 2], BUILT_IN)})
    whole = StorageUsage(data={"STANDARD": stored_of([GIB], BUILT_IN)})
    price = BUILT_IN.of("STANDARD").storage_bands[0][1]
    changes = list(bill_changes([half], [removed_usage(whole, BUILT_IN), half], BUILT_IN))
    assert changes == [pytest.approx(-price / 2), pytest.approx(price / 2)]


def test_a_page_with_known_entries_includes_the_rest_of_their_minimum_durations(monkeypatch):
    rule = PageRule(manifest_bytes_max=1, page_rows_max=2, page_rows_min=1, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    world = World()
    with world.open(remote_storage_class="GLACIER_IR") as manager:
        manager.topics.create("t", 1, EXPIRING, now_ms=NOW)
        send(manager, 500)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        priced = priced_plan(manager, NOW + 5 * DAY)
    (snapshot,) = priced.snapshots
    pages = {page.key: page for page in snapshot.known_pages}
    lines = [each for each in priced.cost.lines if isinstance(each.decision, ExpirePage)]
    assert lines
    for each in lines:
        page = pages[each.decision.key]
        rest = (90 - 5 - 1 / 24) / 30
        owed = monthly_storage(page.stored_bytes, BUILT_IN.of("GLACIER_IR")) * rest
        assert each.early_dollars == pytest.approx(owed, rel=0.01)


def test_entries_of_a_known_page_are_priced_in_the_class_of_the_bill(monkeypatch):
    """Until a page of an older manifest is read, it is assumed to have the class of the newest entry. Its entries may
    differ."""
    rule = PageRule(manifest_bytes_max=1, page_rows_max=9, page_rows_min=4, kept_entries_min=1)
    monkeypatch.setattr(commit_protocol, "PAGE_RULE", rule)
    world = World()
    with world.open() as manager:
        manager.topics.create("t", 1, {**TIERED, "retention.bytes": "-1"}, now_ms=NOW)
        send(manager, 500)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        held = sum(each.size_bytes for each in priced_plan(manager, NOW).snapshots[0].committed_parts)
        manager.topics.alter("t", {"retention.bytes": str(held - 3500)}, now_ms=NOW)
        priced = priced_plan(manager, NOW)
        (snapshot,) = priced.snapshots
        gone_rows = [each for each in priced.plan.decisions[NAME] if isinstance(each, ExpireRemote)]
        in_page = [each for each in gone_rows if any(page.base_offset <= each.base_offset < page.next_offset
                                                      for page in snapshot.known_pages)]  # fmt: skip
        assert in_page
        cold = tuple(replace(entry, storage_class="GLACIER_IR") for entry in snapshot.remote[:-1])
        lying = all_usage(manager, BUILT_IN)
        older = tuple(replace(page, other_classes=None) for page in snapshot.known_pages)
        known = replace(snapshot, remote=(*cold, snapshot.remote[-1]), known_pages=older)
        cost = plan_cost(priced.plan, [known], BUILT_IN, lying)
    assert [each.monthly_dollars for each in cost.lines if each.decision in in_page] == [
        pytest.approx(each.monthly_dollars) for each in priced.cost.lines if each.decision in in_page
    ]


@pytest.mark.parametrize("body", [None, "{", '{"classes": {"STANDARD": {"put_per_1000": "dear"}}}'])
def test_with_unreadable_prices_reports_omit_dollars_and_show_the_rest(tmp_path, body, caplog):
    path = tmp_path / "prices.json"
    if body is not None:
        path.write_text(body)
    world, at = World(), NOW + 5 * DAY
    with world.open() as manager:
        manager.topics.create("t", 1, EXPIRING, now_ms=NOW)
        send(manager, 300)
        manager.partitions.roll("t", now_ms=NOW)
        settle(manager)
        known = priced_plan(manager, at)
    with world.open(cost_prices=str(path), read_only=True) as manager:
        priced, report = priced_plan(manager, at), status_report(manager, at, storage=world.disk)
        site = Site(manager, lambda: at, storage=world.disk)
        pages = [site.answer(target) for target in ("/", "/plan", "/topics/t", "/topics/t/0", "/plan?format=json")]
        with pytest.raises(LogError):
            cost_report(manager, at)
    assert priced.plan == known.plan
    assert priced.prices is report.prices is None
    assert priced.basis["prices"] == "unknown"
    assert priced.cost.then_bytes == known.cost.then_bytes
    for entry in [*map(decision_row, priced.cost.lines), *total_rows(priced.cost.lines)]:
        assert {entry[name] for name in ("once", "dollars_per_month")} == {None}
    entry = topic_row(report, report.topics[0])
    assert (entry["dollars_per_month"], status_facts(report).prices) == (None, None)
    assert entry["remote_bytes"] == sum(each.stored_bytes for each in known.snapshots[0].remote)
    assert [status for status, _, _ in pages] == [200] * 5
    assert all("is unreadable" in body for _, _, body in pages[:2])
    assert "NaN" not in "".join(body for _, _, body in pages)
    assert "nan" not in json.loads(pages[-1][2])["decisions"][0].values()
    assert caplog.text.count("dollars are not shown") >= 2
